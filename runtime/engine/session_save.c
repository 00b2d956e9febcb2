/* SPDX-License-Identifier: MIT */
/* Writes a session to a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/files.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/session_format.h"
#include "runtime/engine/session_wake.h"

static int put_head(moe_session_file *out, const moe_head_line *line)
{
    const moe_draft_head *head = line->head;
    bool is_behind = line->is_behind || line->base > 0; /* entries of the file begin at position
                                                         * 0 */
    moe_session_head_header h = {.row_bytes = head->width * sizeof(float),
                                 .page_bytes = head->kv.page_bytes,
                                 .n_entries = is_behind ? 0 : line->n_entries,
                                 .first = is_behind ? 0 : line->first,
                                 .n_hidden = is_behind ? 0 : line->n_hidden,
                                 .flags = (is_behind ? MOE_SESSION_HEAD_BEHIND : 0) |
                                          moe_session_head_kind(line)};
    MOE_TRY(moe_session_file_bytes(out, &h, sizeof h));
    MOE_TRY(moe_session_file_bytes(out, line->hidden, h.n_hidden * h.row_bytes));
    return moe_session_file_head_pages(out, line, h.n_entries);
}

static int put_session(moe_session_file *out, moe_session *s, const moe_weights_identity *weights)
{
    moe_session_header header;
    memset(&header, 0, sizeof header);
    memcpy(header.magic, MOE_SESSION_MAGIC, sizeof MOE_SESSION_MAGIC);
    header.version =
        moe_session_head_of(s) != NULL ? MOE_SESSION_VERSION_WITH_HEAD : MOE_SESSION_VERSION;
    header.kv_type = (uint32_t)s->engine->kv.type;
    header.fingerprint = s->engine->fingerprint;
    header.page_bytes = s->engine->kv.page_bytes;
    header.n_tokens = s->n_tokens;
    header.n_evaluated = s->n_evaluated;
    header.n_sampled = s->n_sampled;
    header.n_sampled_pending = s->n_sampled_pending;
    header.has_logits = s->has_logits;
    header.evaluate_only = s->evaluate_only;
    header.state_bytes = s->engine->states.state_bytes;
    header.replay_end = s->replay_end;
    header.n_kv_groups = s->engine->kv.n_groups;
    header.weights_whole = weights->whole;
    header.weights_files = weights->files;
    header.marks = moe_session_marks(s);
    header.marked_from = header.marks != 0 ? s->marked_from : 0;
    header.marks |= s->engine->own_attention ? MOE_SESSION_OWN_ATTENTION : 0;
    moe_struct_init(&moe_kind_sampling, header.sampling, sizeof header.sampling,
                    &s->sampler.settings);
    memcpy(header.random_state, s->sampler.random.state, sizeof header.random_state);
    if (s->draft != NULL) {
        memcpy(header.draft_random_state, s->draft->random.state, sizeof header.draft_random_state);
    }
    int status = moe_session_file_bytes(out, &header, sizeof header);
    if (status == MOE_OK) {
        status = moe_session_file_bytes(out, s->tokens, s->n_tokens * sizeof *s->tokens);
    }
    if (status == MOE_OK) {
        status = moe_session_file_bytes(out, s->sampled, s->n_sampled * sizeof *s->sampled);
    }
    if (status == MOE_OK) {
        status = moe_session_file_bytes(out, s->kv.first_page,
                                        header.n_kv_groups * sizeof *s->kv.first_page);
    }
    if (status == MOE_OK) {
        status = moe_session_file_pages(out, s, s->kv.first_page);
    }
    if (status == MOE_OK) {
        status = moe_session_file_state(out, s);
    }
    if (status == MOE_OK && s->has_logits) {
        status =
            moe_session_file_bytes(out, s->logits, s->engine->config.n_vocab * sizeof *s->logits);
    }
    if (status == MOE_OK && moe_session_head_of(s) != NULL) {
        status = put_head(out, moe_session_head_of(s));
    }
    if (status != MOE_OK) {
        return status;
    }
    uint64_t sum = XXH3_64bits_digest(out->hash);
    return moe_session_file_bytes(out, &sum, sizeof sum);
}

int moe_session_save(const moe_session *session, const char *path, moe_error *err)
{
    if (session == NULL || path == NULL) {
        return moe_fail_null(err, "moe_session_save", "session or path");
    }
    moe_atomic_file *file;
    moe_session_file out = {.path = path, .err = err, .writes = true};
    moe_session *parked = (moe_session *)session;
    moe_weights_identity weights;
    int status = moe_park_wake(session->engine, &parked, 1, err);
    status = status == MOE_OK ? moe_session_file_begin(&out, err) : status;
    if (status == MOE_OK) {
        /* Writes the checksums first: they say which weights the saved session was computed with.
         */
        moe_checksum_book_keep(&session->engine->book);
        moe_checksum_book_identify(&session->engine->book, &weights);
        status = moe_atomic_file_open(&file, path, MOE_FILE_PRIVATE, err);
        if (status == MOE_OK) {
            out.file = moe_atomic_file_stream(file);
            status = put_session(&out, (moe_session *)session, &weights); /* only read */
            if (status == MOE_OK) {
                status = moe_atomic_file_commit(&file, err);
            } else {
                moe_atomic_file_abandon(&file);
            }
        }
        moe_session_file_end(&out);
    }
    return status;
}
