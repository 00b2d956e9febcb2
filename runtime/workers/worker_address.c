/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_address.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

int moe_worker_address_find(const char *text, struct addrinfo **found, moe_error *err)
{
    char host[256];
    const char *port = strrchr(text, ':');
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    size_t n = port != NULL ? (size_t)(port - text) : 0;
    if (n == 0 || n >= sizeof host || port[1] == '\0') {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "'%s' is no address of a worker: that is HOST:PORT, for example "
                        "127.0.0.1:7070",
                        text);
    }
    bool brackets = text[0] == '[' && text[n - 1] == ']'; /* of an IPv6 address */
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), text + brackets);
    int code = getaddrinfo(host, port + 1, &hints, found);
    return code == 0 ? MOE_OK
                     : moe_fail(err, MOE_ERR_ARGUMENT, "worker '%s': %s", text, gai_strerror(code));
}

bool moe_worker_address_is_local(const struct addrinfo *address)
{
    if (address->ai_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address->ai_addr;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address->ai_addr;
    return address->ai_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}
