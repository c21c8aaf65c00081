// What reading streams costs at least: epoll, recv, one clock read, and nothing else.
//
//   cc -O2 -o floor_client floor_client.c && ./floor_client PORT STREAMS TOKENS SPREAD_MS    (prints us of processor time per token)
//
// One request a stream; the starts are spread over SPREAD_MS, as those of the other clients are.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: floor_client PORT STREAMS TOKENS SPREAD_MS\n"), 2;
    int streams = atoi(argv[2]), tokens = atoi(argv[3]), started = 0, left = streams, epoll = epoll_create1(0);
    int64_t spread_us = 1000LL * atoi(argv[4]), begun_us = now_us();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(atoi(argv[1]))};
    char body[128], request[512], bytes[65536];
    int size = sprintf(body, "{\"model\":\"truth\",\"messages\":[{\"role\":\"user\",\"content\":\"floor\"}],\"max_tokens\":%d}", tokens);
    size = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s", size, body);
    struct epoll_event events[256];
    struct timespec stamp;
    while (left > 0) {
        int64_t wait_us = 0;
        for (; started < streams && (wait_us = begun_us + started * spread_us / streams - now_us()) <= 0; started++) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
            if (connect(fd, (void *)&address, sizeof address) || write(fd, request, size) != size) return perror("floor_client"), 1;
            epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
        }
        int n = epoll_wait(epoll, events, 256, started < streams ? (int)(wait_us / 1000) + 1 : -1);
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
