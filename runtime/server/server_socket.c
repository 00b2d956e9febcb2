/* SPDX-License-Identifier: MIT */
#include "server_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_PENDING_CONNECTIONS = 128 };

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static uint16_t bound_port(int descriptor)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(descriptor, (struct sockaddr *)&address, &size) != 0) {
        return 0;
    }
    return address.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&address)->sin_port)
                                        : ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
}

static int listen_on(const struct addrinfo *address)
{
    const int on = 1;
    int descriptor = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) {
        return -1;
    }
    if (setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(descriptor, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(descriptor, MOST_PENDING_CONNECTIONS) != 0) {
        int failure = errno;
        close(descriptor);
        errno = failure;
        return -1;
    }
    return descriptor;
}

int server_listen(const char *host, uint16_t *port, bool may_be_public, char *error,
                  size_t error_size)
{
    char service[8];
    struct addrinfo *addresses;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    snprintf(service, sizeof service, "%u", (unsigned)*port);
    int failure = getaddrinfo(host, service, &hints, &addresses);
    if (failure != 0) {
        snprintf(error, error_size, "--host %.200s: %s", host, gai_strerror(failure));
        return -1;
    }
    int descriptor = -1;
    if (!may_be_public && !is_loopback(addresses->ai_addr)) {
        snprintf(error, error_size,
                 "--host %.200s can be reached from other machines: name the keys of those who "
                 "may use it with --api-key-file",
                 host);
    } else {
        descriptor = listen_on(addresses);
        if (descriptor < 0) {
            snprintf(error, error_size, "--host %.200s --port %u: %s", host, (unsigned)*port,
                     strerror(errno));
        } else {
            *port = bound_port(descriptor);
        }
    }
    freeaddrinfo(addresses);
    return descriptor;
}

bool server_is_loopback_name(const char *host)
{
    char name[64];
    struct in_addr v4;
    size_t size = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (size >= sizeof name || size > strlen(host)) {
        return false;
    }
    const char *rest = host + size; /* nothing, or a port */
    if (rest[0] == ':') {
        rest += 1 + strspn(rest + 1, "0123456789");
    }
    if (*rest != '\0') {
        return false;
    }
    snprintf(name, sizeof name, "%.*s", (int)size, host);
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

bool server_peer_left(int descriptor)
{
    struct pollfd state = {.fd = descriptor, .events = POLLRDHUP};
    return poll(&state, 1, 0) > 0 &&
           (state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}
