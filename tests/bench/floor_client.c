// What reading streams costs at least: epoll, recv, one clock read, and nothing else.
//
//   cc -O2 -o floor_client floor_client.c && ./floor_client PORT STREAMS TOKENS    (prints us of processor time per token)
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: floor_client PORT STREAMS TOKENS\n"), 2;
    int streams = atoi(argv[2]), tokens = atoi(argv[3]), left = streams, epoll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(atoi(argv[1]))};
    char body[128], request[512], bytes[65536];
    int size = sprintf(body, "{\"model\":\"truth\",\"messages\":[{\"role\":\"user\",\"content\":\"floor\"}],\"max_tokens\":%d}", tokens);
    size = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s", size, body);
    for (int i = 0; i < streams; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (connect(fd, (void *)&address, sizeof address) || write(fd, request, size) != size) return perror("floor_client"), 1;
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
    struct epoll_event events[256];
    struct timespec stamp;
    while (left > 0) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            ssize_t r = recv(events[i].data.fd, bytes, sizeof bytes, 0);
            clock_gettime(CLOCK_REALTIME, &stamp);
            if (r <= 0 || (r >= 5 && !memcmp(bytes + r - 5, "0\r\n\r\n", 5))) close(events[i].data.fd), left--;
        }
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double us = 1e6 * (used.ru_utime.tv_sec + used.ru_stime.tv_sec) + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
    printf("%.3f\n", us / streams / tokens);
}
