/* SPDX-License-Identifier: MIT */
/* Computes the checksum of a file while it is being downloaded: a thread reads the part that is
 * there without a gap, so that little is left to do after the last byte. */
#ifndef HUB_SUM_H
#define HUB_SUM_H

#include <stdbool.h>
#include <stdint.h>

#include "hub_names.h"

typedef struct hub_sum hub_sum;

/* Starts the thread. wanted: 64 digits: SHA-256 of the bytes; 40 digits: git's SHA-1. The caller
 * keeps fd. NULL: memory is short. */
hub_sum *hub_sum_start(int fd, uint64_t size, const char *wanted);
/* Tells the thread that this many bytes from the beginning are there. */
void hub_sum_advance(hub_sum *sum, uint64_t bytes);
/* Sets *bytes to the bytes that the thread has read. True: it has read all, or has failed. */
bool hub_sum_is_done(hub_sum *sum, uint64_t *bytes);
/* Ends the thread, whether it is done or not. True: the sum is the wanted one. */
bool hub_sum_end(hub_sum **sum);

#endif
