/* SPDX-License-Identifier: MIT */
/* Checksum of a file that is being downloaded: a thread follows the part that is there without a
 * gap, so that little is left to do when the last byte has come. */
#ifndef HUB_SUM_H
#define HUB_SUM_H

#include <stdbool.h>
#include <stdint.h>

#include "hub_names.h"

typedef struct hub_sum hub_sum;

/* Starts the thread. wanted: 64 digits, SHA-256 of the bytes; 40, SHA-1 as git has it. fd: stays
 * the caller's. NULL: memory is short. */
hub_sum *hub_sum_start(int fd, uint64_t size, const char *wanted);
/* Says that so many bytes from the beginning are there. */
void hub_sum_advance(hub_sum *sum, uint64_t bytes);
/* Bytes that the thread has seen; true: all of them, or it has failed. */
bool hub_sum_is_done(hub_sum *sum, uint64_t *bytes);
/* Ends the thread, whether it is done or not. True: the sum is the wanted one. */
bool hub_sum_end(hub_sum **sum);

#endif
