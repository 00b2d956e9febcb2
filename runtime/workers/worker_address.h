/* SPDX-License-Identifier: MIT */
/* "HOST:PORT" as a worker's address. */
#ifndef MOE_WORKERS_WORKER_ADDRESS_H
#define MOE_WORKERS_WORKER_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>

#include <moe/status.h>

/* Finds the addresses of "host:port", "[::1]:port". Free *found with freeaddrinfo(). May ask a name
 * server, and then waits for its answer. */
int moe_worker_address_find(const char *text, struct addrinfo **found, moe_error *err);
/* Whether only this machine can reach the address. */
bool moe_worker_address_is_local(const struct addrinfo *address);

#endif
