// An OpenAI-compatible endpoint that knows when it wrote every token.
//
//   cc -O2 -o truth_server truth_server.c && ./truth_server TTFT_MS INTERVAL_MS     (prints its port)
//
// POST streams as many one-token events as max_tokens asks: the first TTFT_MS after the request arrived, then one each INTERVAL_MS,
// then finish, usage and [DONE]. GET /truth answers one line a finished request: the first words of its prompt, a tab, and the
// CLOCK_REALTIME nanoseconds at which the request arrived and each token was written. GET /v1/models names one model.
// The arrival is the kernel's stamp: what a request waits in its socket for this server is this server's latency too.
// One thread, epoll and a timer of 0.25 ms: 75,000 events a second fit on a core of its own.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { FDS = 16384, INPUT = 1 << 18, KEY = 96, TICK_NS = 250000 };

typedef struct Stream {  // one request, kept after its end for /truth
    struct Stream *next;
    char key[KEY];
    int tokens, written;
    int64_t arrived_ns, times_ns[];
} Stream;

typedef struct {
    int fd, used, slot;  // slot: place in `live`, or -1
    int64_t arrived_ns;  // of what was read last
    Stream *stream;
    char input[INPUT];
} Peer;

static Peer *peers[FDS], *live[FDS];
static int live_count;
static Stream *finished;
static int64_t ttft_ns, interval_ns;

static int64_t ns_of(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ns_of(t);
}

static void put(int fd, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n > 0) bytes += n, size -= n;
        else if (errno != EAGAIN) return;  // gone: the read side finds out
    }
}

// An event as one HTTP chunk, in one send.
__attribute__((format(printf, 2, 3))) static void put_event(int fd, const char *format, ...) {
    char event[512], chunk[600];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(event, sizeof event, format, args);
    va_end(args);
    put(fd, chunk, sprintf(chunk, "%x\r\ndata: %s\n\n\r\n", size + 8, event));
}

static void put_body(int fd, const char *type, const char *body, size_t size) {
    char head[256];
    put(fd, head, sprintf(head, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", type, size));
    put(fd, body, size);
}

static void put_truth(int fd) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (Stream *s = finished; s; s = s->next) {
        fprintf(out, "%s\t%ld", s->key, (long)s->arrived_ns);
        for (int i = 0; i < s->written; i++) fprintf(out, " %ld", (long)s->times_ns[i]);
        fputc('\n', out);
    }
    fclose(out);
    put_body(fd, "text/plain", text, size);
    free(text);
}

static void begin(Peer *p, const char *body) {
    const char *limit = strstr(body, "\"max_tokens\":"), *content = strstr(body, "\"content\":\"");
    int tokens = limit ? atoi(limit + 13) : 16;
    Stream *s = p->stream = calloc(1, sizeof *s + tokens * sizeof(int64_t));
    s->arrived_ns = p->arrived_ns;
    s->tokens = tokens;
    if (content) sscanf(content + 11, "%95[^\"]", s->key);
    p->slot = live_count;
    live[live_count++] = p;
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    put(p->fd, head, sizeof head - 1);
}

static void leave(Peer *p) {
    live[p->slot] = live[--live_count];
    live[p->slot]->slot = p->slot;
    p->slot = -1;
}

static void serve(Peer *p) {  // whole requests, until one starts a stream
    for (char *end; !p->stream && (p->input[p->used] = 0, end = strstr(p->input, "\r\n\r\n"));) {
        char *length = strcasestr(p->input, "content-length:");
        int head = end - p->input + 4, size = length && length < end ? atoi(length + 15) : 0;
        if (p->used < head + size) return;
        char after = p->input[head + size];
        p->input[head + size] = 0;
        if (!strncmp(p->input, "POST", 4)) begin(p, end + 4);
        else if (!strncmp(p->input, "GET /truth", 10)) put_truth(p->fd);
        else {
            static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\"}]}";
            put_body(p->fd, "application/json", models, sizeof models - 1);
        }
        p->input[head + size] = after;
        p->used -= head + size;
        memmove(p->input, p->input + head + size, p->used);
    }
}

static void write_token(Peer *p) {
    static const char *form = "{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"truth\",\"choices\":"
                              "[{\"index\":0,\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s}]}";
    Stream *s = p->stream;
    if (s->written == 0) put_event(p->fd, form, "\"role\":\"assistant\",\"content\":\"\"", "null");
    s->times_ns[s->written++] = now_ns();
    put_event(p->fd, form, "\"content\":\" token\"", s->written < s->tokens ? "null" : "\"length\"");
    if (s->written < s->tokens) return;
    put_event(p->fd, "{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"truth\",\"choices\":[],\"usage\":"
                     "{\"prompt_tokens\":100,\"completion_tokens\":%d,\"total_tokens\":%d}}", s->tokens, 100 + s->tokens);
    put_event(p->fd, "[DONE]");
    put(p->fd, "0\r\n\r\n", 5);
    s->next = finished;
    finished = s;
    p->stream = NULL;
    leave(p);
    serve(p);
}

static void tick(int timer) {
    uint64_t ticks;
    if (read(timer, &ticks, sizeof ticks) < 0) return;
    int64_t now = now_ns();
    for (int i = live_count - 1; i >= 0; i--) {  // downwards: a stream that ends takes the last one's place
        Stream *s = live[i]->stream;
        if (now >= s->arrived_ns + ttft_ns + s->written * interval_ns) write_token(live[i]);
    }
}

static void on_input(Peer *p) {
    char control[CMSG_SPACE(sizeof(struct timespec))];
    struct iovec input = {p->input + p->used, INPUT - p->used - 1};
    struct msghdr message = {.msg_iov = &input, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(p->fd, &message, 0);
    if (n < 0 && errno == EAGAIN) return;
    struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
    p->arrived_ns = stamp ? ns_of(*(struct timespec *)CMSG_DATA(stamp)) : now_ns();
    if (n > 0) {
        p->used += n;
        serve(p);
        return;
    }
    if (p->stream) leave(p), free(p->stream);
    close(p->fd);
    peers[p->fd] = NULL;
    free(p);
}

static void watch(int epoll, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: truth_server TTFT_MS INTERVAL_MS\n"), 2;
    ttft_ns = atof(argv[1]) * 1e6;
    interval_ns = atof(argv[2]) * 1e6;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (void *)&address, size) || listen(listener, 4096)) return perror("truth_server"), 1;
    getsockname(listener, (void *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec every = {{0, TICK_NS}, {0, TICK_NS}};
    timerfd_settime(timer, 0, &every, NULL);
    watch(epoll, listener);
    watch(epoll, timer);
    for (struct epoll_event events[256];;) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == timer) tick(timer);
            else if (fd != listener) on_input(peers[fd]);
            else for (int peer; (peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                if (peer >= FDS) { close(peer); continue; }
                setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                setsockopt(peer, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
                peers[peer] = calloc(1, sizeof(Peer));
                peers[peer]->fd = peer;
                peers[peer]->slot = -1;
                watch(epoll, peer);
            }
        }
    }
}
