/* SPDX-License-Identifier: MIT */
/* Opens the socket on which the server listens. */
#ifndef SERVER_SOCKET_H
#define SERVER_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Listens on the host's first address. Fails for an address that other machines can reach, unless
 * may_be_public. If *port is 0, a free port is used and stored there. Returns the socket, or -1
 * and one line that says why. */
int server_listen(const char *host, uint16_t *port, bool may_be_public, char *error,
                  size_t error_size);
/* Whether the name in a Host header always means this machine: localhost, 127.x.y.z or [::1]. */
bool server_is_loopback_name(const char *host);
/* Whether the client has closed the connection. */
bool server_peer_left(int socket);

#endif
