/* SPDX-License-Identifier: MIT */
/* Sets up the heap for serving: freed memory goes back to the system, so that one large request
 * does not keep it, and the threads of connections share a heap. */
#ifndef SERVER_HEAP_H
#define SERVER_HEAP_H

/* Before threads are started. A front door calls it: the settings are the process's. */
void server_heap_configure(void);
/* Gives free memory back to the system. */
void server_heap_trim(void);

#endif
