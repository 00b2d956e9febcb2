/* SPDX-License-Identifier: MIT */
/* What is measured of a model once and kept beside it, in its sidecar: by a calibration on a text,
 * and by what conversations add. Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_calibrate_options_init_sized, moe_calibrate_options_init
 *   in turn: moe_calibrate, moe_learn_begin, moe_learn_save, moe_engine_warm */
#ifndef MOE_CALIBRATE_H
#define MOE_CALIBRATE_H

#include <moe/moe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Calibration --------------------------------------------------------------------------- */

/* What a model's routers do on a text, and what its experts are like, measured once and kept in a
 * sidecar file beside the model: hot experts and co-activation (cache policies, --offload caching),
 * entropies and affinities (lossy modes, self-speculation), checksums of all weights (of
 * resident ones looked at when they are loaded, of an expert at every read of it). */
typedef struct moe_calibrate_options {
    size_t struct_size;    /* set by moe_calibrate_options_init() */
    const int32_t *tokens; /* [n_tokens] the text; evaluated in windows of 512 */
    size_t n_tokens;       /* >= 1; some thousands of the kind of text to be run */
    const char *text_name; /* kept in the sidecar; may be NULL */
    const char *path;      /* of the sidecar; NULL: MODEL.moe-cal.gguf beside MODEL.gguf */
    bool gram; /* also X^T X of the routers' inputs: n_embd^2 floats a layer; default false */
    uint32_t n_output_tokens; /* tokens on which all experts of a layer are compared; 0: 64 */
    double save_interval_s;   /* how often unfinished work is saved; 0: 30 */
    moe_progress_fn progress; /* of the whole; false stops. May be NULL */
    void *user;
} moe_calibrate_options;

MOE_API void moe_calibrate_options_init_sized(moe_calibrate_options *options, size_t struct_size);
static inline void moe_calibrate_options_init(moe_calibrate_options *options)
{
    moe_calibrate_options_init_sized(options, sizeof *options);
}
/* Writes the sidecar; an engine opened later uses it. Unfinished work lies in PATH.partial: the
 * same call after MOE_ERR_CANCELLED, or after whatever ended the process, goes on from there. At
 * any time PATH is the old sidecar or the new one. */
MOE_API int moe_calibrate(moe_engine *engine, const moe_calibrate_options *options, moe_error *err);

/* ---- Learning from use --------------------------------------------------------------------- */

/* Counts, from here on, which experts the evaluated tokens are routed to (with speculation also
 * those that were drafted and did not stand: they were asked for all the same). Counting again
 * starts at zero. */
MOE_API int moe_learn_begin(moe_engine *engine, moe_error *err);
/* Adds the counts to the sidecar's, atomically, and starts at zero again; engines opened later go
 * by the sum. Where there is no sidecar, one is made that holds hotness alone; what needs more than
 * that (affinities, buddies) asks for a calibration. *n_tokens (may be NULL): tokens counted. path:
 * NULL: moe_engine_info.sidecar. MOE_ERR_ARGUMENT when nothing was counted; MOE_ERR_MISMATCH and
 * MOE_ERR_FORMAT when a file is there that is none of this model's: it stays as it is. When two do
 * this to one file at the same moment, one's counts may be lost. */
MOE_API int moe_learn_save(moe_engine *engine, const char *path, uint64_t *n_tokens,
                           moe_error *err);

/* Begins to fill empty expert slots with the experts that the sidecar says are hottest, in the
 * background, and returns at once: for when the program waits for its user. Nothing is evicted for
 * it, and the next step takes back what has not begun. Does nothing where options.warm_start has
 * nothing to go by, or is off. */
MOE_API void moe_engine_warm(moe_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
