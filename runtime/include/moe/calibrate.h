/* SPDX-License-Identifier: MIT */
/* The sidecar: a file beside a model with measurements of it, which a calibration on a text makes
 * once and conversations add to. Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *  free:    moe_calibrate_options_init_sized, moe_calibrate_options_init
 *  in turn: moe_calibrate, moe_learn_begin, moe_learn_save, moe_engine_warm */
#ifndef MOE_CALIBRATE_H
#define MOE_CALIBRATE_H

#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Calibration --------------------------------------------------------------------------- */

/* A calibration measures what a model's routers do on a text and how similar its experts are, and
 * keeps this in the sidecar: hot experts and co-activation (for cache policies and
 * MOE_OFFLOAD_CACHING), entropies and affinities (for lossy modes and self-speculation), and
 * checksums of all weights (the engine checks resident weights when it loads them, and an expert at
 * every read). */
typedef struct moe_calibrate_options {
    size_t struct_size;    /* set by moe_calibrate_options_init() */
    const int32_t *tokens; /* [n_tokens] the text; evaluated in windows of 512 */
    size_t n_tokens;       /* >= 1; a few thousand of the kind of text that will be run */
    const char *text_name; /* kept in the sidecar; may be NULL */
    const char *path;      /* of the sidecar; NULL: MODEL.moe-cal.gguf beside MODEL.gguf */
    bool gram; /* also write X^T X of the routers' inputs: n_embd^2 floats a layer; default false */
    uint32_t n_output_tokens; /* tokens on which all experts of a layer are compared; 0: 64 */
    double save_interval_s;   /* interval between saves of unfinished work; 0: 30 */
    moe_progress_fn progress; /* fraction of all work; returns false to stop. May be NULL */
    void *user;
    /* "Q2_K", "Q3_K" or "Q4_0": also makes a copy of every expert in this type, for lossy mode
     * low_bit (lossy_modes.h), in a second file beside the sidecar: NAME.moe-lowbit.gguf beside
     * NAME.moe-cal.gguf. A matrix that would not get smaller is copied as it is. NULL: none. */
    const char *low_bit_type;
} moe_calibrate_options;

MOE_API void moe_calibrate_options_init_sized(moe_calibrate_options *options, size_t struct_size);
static inline void moe_calibrate_options_init(moe_calibrate_options *options)
{
    moe_calibrate_options_init_sized(options, sizeof *options);
}
/* Writes the sidecar; engines opened later use it. Unfinished work is kept in PATH.partial: after
 * MOE_ERR_CANCELLED, or after the process was killed, the same call continues from there. At any
 * time PATH is the old sidecar or the new one. */
MOE_API int moe_calibrate(moe_engine *engine, const moe_calibrate_options *options, moe_error *err);

/* ---- Learning from use --------------------------------------------------------------------- */

/* Counts from now on which experts the evaluated tokens are routed to, including drafted tokens
 * that were not accepted, since their experts were needed too. Counting starts at zero. */
MOE_API int moe_learn_begin(moe_engine *engine, moe_error *err);
/* Adds the counts to the sidecar's, atomically, and starts again at zero; engines opened later use
 * the sum. Also saves what speculation learnt about its drafts (how many were accepted, what they
 * cost). If there is no sidecar, makes one that holds only hotness; features that need more
 * (affinities, substitutes) still need a calibration. *n_tokens (may be NULL): tokens counted.
 * path: NULL: moe_engine_info.sidecar. MOE_ERR_ARGUMENT when nothing was counted; MOE_ERR_MISMATCH
 * and MOE_ERR_FORMAT when the file at path is not a sidecar of this model: it stays unchanged. If
 * two processes do this to one file at the same moment, the counts of one may be lost. */
MOE_API int moe_learn_save(moe_engine *engine, const char *path, uint64_t *n_tokens,
                           moe_error *err);

/* Begins to fill empty expert slots with the sidecar's hottest experts, in the background, and
 * returns at once; call it while the program waits for its user. It evicts nothing. The next step
 * cancels the reads that have not begun, unless all experts fit (options.warm_start). Does nothing
 * if options.warm_start is off, or there is no sidecar and not all experts fit. */
MOE_API void moe_engine_warm(moe_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
