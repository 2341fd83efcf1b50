/* The floor: what a keepalive costs when a server does nothing but receive it.
 *
 * `floor [MAXEVENTS]` listens on 127.0.0.1, prints `ready 127.0.0.1:PORT` on standard error and serves until
 * it is terminated. One thread, level-triggered epoll_wait, one recv per ready connection: the loop of a plain
 * C server. No session, no timer, no memory per connection. A frame `[1, id, {...}]` (login), `[3, id]`
 * (keepalive that asks for an answer) or `[4, id]` (logout) is answered with `[64, id]`; the plain keepalive
 * `[3]` with nothing.
 *
 * A yardstick and no server: a frame that comes in pieces is not put together, and who reads too slowly loses
 * answers. The load generator sends whole frames.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAXEVENTS_LIMIT = 4096, BACKLOG = 4096, READ_BYTES = 4096, HEADER_BYTES = 4 };
enum { LOGIN = 1, KEEPALIVE = 3, LOGOUT = 4, OK = 64 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Bytes of the MessagePack unsigned integer that begins with this one; 0 if it is none. */
static size_t integer_bytes(uint8_t first)
{
    if (first < 0x80)
        return 1;
    return first == 0xcc ? 2 : first == 0xcd ? 3 : first == 0xce ? 5 : 0;
}

/* Answer one frame's body if it asks for that. */
static void answer(int fd, const uint8_t *body, size_t size)
{
    uint8_t reply[HEADER_BYTES + 2 + 5] = {0, 0, 0, 0, 0x92, OK};
    size_t id;

    if (size < 3 || (body[1] != LOGIN && body[1] != KEEPALIVE && body[1] != LOGOUT))
        return;
    id = integer_bytes(body[2]);
    if (id == 0 || 2 + id > size)
        return;
    reply[3] = (uint8_t)(2 + id);
    memcpy(reply + HEADER_BYTES + 2, body + 2, id);
    if (send(fd, reply, HEADER_BYTES + 2 + id, MSG_NOSIGNAL) < 0 && errno != EAGAIN)
        close(fd);
}

static void serve(int fd)
{
    uint8_t data[READ_BYTES];
    ssize_t size = recv(fd, data, sizeof data, 0);

    if (size <= 0) {
        if (size == 0 || errno != EAGAIN)
            close(fd);
        return;
    }
    for (size_t at = 0; at + HEADER_BYTES <= (size_t)size;) {
        uint32_t body;

        memcpy(&body, data + at, HEADER_BYTES);
        body = ntohl(body);
        at += HEADER_BYTES;
        if (body > (size_t)size - at)
            return;
        answer(fd, data + at, body);
        at += body;
    }
}

static void take_new(int epoll, int listener)
{
    for (;;) {
        struct epoll_event event = {.events = EPOLLIN};
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0)
            return;
        event.data.fd = fd;
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
            fail("epoll_ctl");
    }
}

int main(int count, char **arguments)
{
    static struct epoll_event events[MAXEVENTS_LIMIT];
    int most = count > 1 ? atoi(arguments[1]) : 512;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct epoll_event event = {.events = EPOLLIN};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    if (most < 1 || most > MAXEVENTS_LIMIT) {
        fprintf(stderr, "MAXEVENTS is 1 to %d\n", MAXEVENTS_LIMIT);
        return 2;
    }
    if (listener < 0 || epoll < 0)
        fail("socket");
    if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, BACKLOG) < 0)
        fail("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        fail("getsockname");
    event.data.fd = listener;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0)
        fail("epoll_ctl");
    fprintf(stderr, "ready 127.0.0.1:%d\n", ntohs(address.sin_port));
    for (;;) {
        int ready = epoll_wait(epoll, events, most, -1);

        for (int n = 0; n < ready; n++) {
            if (events[n].data.fd == listener)
                take_new(epoll, listener);
            else
                serve(events[n].data.fd);
        }
        if (ready < 0 && errno != EINTR)
            fail("epoll_wait");
    }
}
