/* SPDX-License-Identifier: MIT */
/* The socket that the server listens on. */
#ifndef SERVER_SOCKET_H
#define SERVER_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Listens on the host's first address; other machines may reach it only if may_be_public. *port: 0
 * becomes one that was free. The socket, or -1 and one line that says why. */
int server_listen(const char *host, uint16_t *port, bool may_be_public, char *error,
                  size_t error_size);
/* Whether a Host header names this machine to itself: localhost, 127.x.y.z or [::1]. */
bool server_is_loopback_name(const char *host);
/* The other end has closed the connection. */
bool server_peer_left(int socket);

#endif
