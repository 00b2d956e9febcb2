/* SPDX-License-Identifier: MIT */
/* Sets up the heap for serving: freed memory goes back to the system, so that one large request
 * does not keep it, and the threads of connections share a heap. */
#ifndef SERVER_HEAP_H
#define SERVER_HEAP_H

/* Call before any thread is started. Only the command's main code calls it, because the settings
 * hold for the whole process. */
void server_heap_configure(void);
/* Returns unused memory of the heap to the system. */
void server_heap_trim(void);

#endif
