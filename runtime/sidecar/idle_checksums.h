/* SPDX-License-Identifier: MIT */
/* Makes the checksums that are still missing while the engine has nothing to do: a thread of low
 * priority reads those parts in the order of the files' bytes. It begins when no step has run for a
 * second, stops at the next piece when a step begins, and ends when all checksums are known or a
 * part cannot be read. */
#ifndef MOE_SIDECAR_IDLE_CHECKSUMS_H
#define MOE_SIDECAR_IDLE_CHECKSUMS_H

#include "runtime/sidecar/checksum_book.h"

typedef struct moe_idle_checksums moe_idle_checksums;

/* Starts the thread. reading: how to read the model; it names the gguf. The book and the gguf
 * must outlive the thread. *out stays NULL if no checksum is missing. */
int moe_idle_checksums_start(moe_idle_checksums **out, moe_checksum_book *book,
                             const moe_model_reader_options *reading, moe_error *err);
/* moe_idle_checksums_pause() says that a step begins, moe_idle_checksums_resume() that it has
 * ended. Neither waits. Both accept NULL (there is no thread). */
void moe_idle_checksums_pause(moe_idle_checksums *idle);
void moe_idle_checksums_resume(moe_idle_checksums *idle);
/* Returns how many bytes the thread has read so far. */
uint64_t moe_idle_checksums_bytes(const moe_idle_checksums *idle);
/* Stops at the next piece and ends the thread. Takes a tenth of a second at most, also if a disk
 * hangs. */
void moe_idle_checksums_stop(moe_idle_checksums **idle);

#endif
