/* SPDX-License-Identifier: MIT */
/* A saved session:
 *
 *  header | tokens [n_tokens] | positions of sampled tokens that were not taken [n_sampled]
 *         | first page of each group [n_kv_groups]
 *         | KV pages, by page number; of each number the pages of all groups that have it [page
 *           bytes of the group]; they contain the keys of layers' indexers
 *         | state of recurrent layers [state_bytes] when n_evaluated > 0
 *         | logits [n_vocab] when has_logits
 *         | version 12: moe_session_head_header, hidden states, pages of the drafting layer
 *         | XXH3 of everything before
 *
 * Saving is atomic: if the process is killed, the file is the old or the new one. */
#ifndef MOE_ENGINE_SESSION_FORMAT_H
#define MOE_ENGINE_SESSION_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <xxhash.h>

#include "runtime/draft/draft_head.h"
#include "runtime/engine/engine_parts.h"

#define MOE_SESSION_MAGIC   "MOESESS"
#define MOE_SESSION_VERSION 11u
/* The version of the file of a session with a drafting layer. */
#define MOE_SESSION_VERSION_WITH_HEAD 12u
/* The file holds the first 64-bit words of a moe_sampling, up to frequency_penalty. */
#define MOE_SESSION_SAMPLING_WORDS 6u

typedef struct moe_session_header {
    char magic[8];
    uint32_t version;
    uint32_t kv_type;
    uint64_t fingerprint;
    uint64_t page_bytes;
    uint32_t n_tokens;
    uint32_t n_evaluated;
    uint32_t n_sampled;
    uint32_t n_sampled_pending;
    uint32_t has_logits;
    uint32_t evaluate_only;
    uint64_t sampling[MOE_SESSION_SAMPLING_WORDS];
    uint64_t random_state[4];
    uint64_t draft_random_state[4]; /* 0: the session did not speculate */
    uint64_t state_bytes;           /* of recurrent layers; 0: the model has none */
    uint32_t replay_end;
    uint32_t n_kv_groups;
    /* A moe_weights_identity: the checksum of all weights, or 0 if not all checksums were known;
     * and the state of the model's files. Everything behind the tokens was computed from those
     * weights. */
    uint64_t weights_whole, weights_files;
    /* As in moe_session; 0: an exact run computed the session. Also MOE_SESSION_OWN_ATTENTION,
     * which holds for the whole session and does not count for marked_from. */
    uint32_t marks, marked_from;
} moe_session_header;

/* The part of a drafting layer; a session without one skips it. */
typedef struct moe_session_head_header {
    uint64_t row_bytes, page_bytes;
    uint32_t n_entries, first, n_hidden;
    uint32_t flags; /* MOE_SESSION_HEAD_ */
} moe_session_head_header;

#define MOE_SESSION_HEAD_BEHIND 1u /* hidden states are missing */
#define MOE_SESSION_HEAD_EAGLE  2u /* hidden states of an EAGLE-3 head: another meaning */
#define MOE_SESSION_HEAD_FLAGS  3u

_Static_assert(sizeof(moe_session_head_header) == 32, "the header of a saved drafting layer");

/* The layout in files: no padding, so that every byte is written and checked. */
_Static_assert(sizeof(moe_session_header) == 208 &&
                   offsetof(moe_session_header, fingerprint) == 16 &&
                   offsetof(moe_session_header, n_tokens) == 32 &&
                   offsetof(moe_session_header, sampling) == 56 &&
                   offsetof(moe_session_header, random_state) == 104 &&
                   offsetof(moe_session_header, state_bytes) == 168 &&
                   offsetof(moe_session_header, replay_end) == 176 &&
                   offsetof(moe_session_header, weights_whole) == 184 &&
                   offsetof(moe_session_header, marks) == 200,
               "the header of a saved session");
_Static_assert(sizeof *((moe_session *)0)->tokens == 4 &&
                   sizeof *((moe_session *)0)->sampled == 4 &&
                   sizeof *((moe_session *)0)->logits == 4,
               "what follows it");
_Static_assert(MOE_SESSION_SAMPLING_WORDS * 8 == offsetof(moe_sampling, reserved),
               "a moe_sampling up to its frequency_penalty");

/* A file that is written or read. Both use the same calls in the same order. */
typedef struct moe_session_file {
    FILE *file;
    XXH3_state_t *hash;
    const char *path;
    moe_error *err;
    bool writes;
    void *block; /* buffer between the file and the device */
    size_t block_size;
} moe_session_file;

/* session_file.c */
int moe_session_file_begin(moe_session_file *f, moe_error *err);
void moe_session_file_end(moe_session_file *f);
/* Writes the bytes to the file, or reads them from it (f->writes). */
int moe_session_file_bytes(moe_session_file *f, void *data, size_t size);
/* Writes bytes of the device to the file, or reads bytes of the file to the device; NULL: drops the
 * bytes read. */
int moe_session_file_block(moe_session_file *f, moe_device *device, void *address, size_t size);
/* Writes or reads KV pages: of each group, those from its first page on. */
int moe_session_file_pages(moe_session_file *f, const moe_session *session, const uint32_t *first);
/* Writes or reads the state of recurrent layers, if the model has any. */
int moe_session_file_state(moe_session_file *f, moe_session *session);
/* Writes or reads a drafting layer's pages, with this many entries. */
int moe_session_file_head_pages(moe_session_file *f, const moe_head_line *line, uint32_t n_entries);

static inline uint32_t moe_session_head_kind(const moe_head_line *line)
{
    return line->head->eagle != NULL ? MOE_SESSION_HEAD_EAGLE : 0;
}

/* NULL: the session does not draft by a layer. */
static inline const moe_head_line *moe_session_head_of(const moe_session *session)
{
    return session->draft != NULL ? session->draft->head : NULL;
}

#endif
