/* SPDX-License-Identifier: MIT */
/* The heap of a process that serves: what is freed goes back to the system, so that one large
 * request does not stay in memory, and the threads of connections share a heap. */
#ifndef SERVER_HEAP_H
#define SERVER_HEAP_H

/* Before threads are started. A front door calls it: the settings are the process's. */
void server_heap_configure(void);
/* Gives back what is free. */
void server_heap_trim(void);

#endif
