/* SPDX-License-Identifier: MIT */
/* Limits the memory and the work with which a call reads a text. Use this for texts from strangers,
 * which may be hostile, such as what clients send to a server: conversations, grammars, schemas and
 * texts to be tokenized. A function NAME_within does the same as the function NAME, but fails when
 * it reaches a limit of its allowance.
 *
 * Work is counted in steps. A step is about the work for one byte of text, one instruction of a
 * template or one rule: some nanoseconds. How many steps a call takes depends on its input alone,
 * not on the machine.
 *
 * Errors, beside those of the other functions: MOE_ERR_BUDGET, if the allowance has not enough
 * bytes or steps; MOE_ERR_CANCELLED, if the caller stopped the call.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_grammar_create_within, moe_json_schema_grammar_within,
 *            moe_json_schema_grammar_loose, moe_grammar_bytes
 *   reading: moe_tokenize_within, moe_chat_render_within, moe_chat_grammar_create_within */
#ifndef MOE_ALLOWANCE_H
#define MOE_ALLOWANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/chat.h>
#include <moe/grammar.h>
#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bounds of one call, or of several calls one after the other. Fill the struct with 0 first.
 * With a NULL allowance a function has no bounds. */
typedef struct moe_allowance {
    uint64_t bytes; /* the most memory at a time, results included. 0: no limit */
    uint64_t steps; /* the most steps of all calls. 0: no limit */
    /* Called every 65536 steps on the calling thread; true ends the call. NULL: it is never
     * stopped. */
    bool (*stopped)(void *user);
    void *user; /* passed to stopped */

    /* Written by the calls. */
    uint64_t bytes_now;  /* memory taken now. Memory of a result counts until the program lowers
                          * bytes_now */
    uint64_t bytes_peak; /* the most that bytes_now was */
    uint64_t steps_taken;
    int refused;       /* the status with which the allowance ended a call; MOE_OK: none */
    uint32_t reserved; /* must be 0 */
} moe_allowance;

MOE_API int moe_tokenize_within(const moe_engine *engine, const char *text, size_t size,
                                unsigned flags, int32_t **tokens, size_t *n_tokens,
                                moe_allowance *allowance, moe_error *err);
MOE_API int moe_chat_render_within(moe_chat_prompt **out, const moe_engine *engine,
                                   const moe_chat_options *options, moe_allowance *allowance,
                                   moe_error *err);
MOE_API int moe_grammar_create_within(moe_grammar **out, const char *text, size_t size,
                                      moe_allowance *allowance, moe_error *err);
MOE_API int moe_json_schema_grammar_within(char **grammar, const char *schema, size_t size,
                                           moe_allowance *allowance, moe_error *err);
/* Does the same as moe_json_schema_grammar_within(). If `dropped` is not NULL, leaves out keywords
 * that a grammar cannot express. *dropped (moe_free()) names them with their places ("pattern of
 * /city"), or is NULL if there are none. */
MOE_API int moe_json_schema_grammar_loose(char **grammar, char **dropped, const char *schema,
                                          size_t size, moe_allowance *allowance, moe_error *err);
MOE_API int moe_chat_grammar_create_within(moe_grammar **out, const moe_engine *engine,
                                           const moe_chat_prompt *prompt, moe_grammar *answer,
                                           moe_allowance *allowance, moe_error *err);
/* Returns the bytes that the grammar takes while it is open. */
MOE_API size_t moe_grammar_bytes(const moe_grammar *grammar);

#ifdef __cplusplus
}
#endif

#endif
