/* SPDX-License-Identifier: MIT */
/* Writes a session to a file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/session_format.h"

static int put(moe_session_file *out, const void *data, size_t size)
{
    XXH3_64bits_update(out->hash, data, size);
    if (size > 0 && fwrite(data, 1, size, out->file) != size) {
        return moe_fail(out->err, MOE_ERR_IO, "%s: cannot write: %s", out->path, strerror(errno));
    }
    return MOE_OK;
}
static int put_pages(moe_session_file *out, const moe_session *session)
{
    moe_engine *engine = session->engine;
    const uint32_t *first = session->kv.first_page;
    uint32_t n_groups = engine->kv.n_groups;
    void *page = moe_calloc_aligned(engine->kv.page_bytes, 1);
    if (page == NULL) {
        return moe_fail(out->err, MOE_ERR_MEMORY, "no memory to save a page");
    }
    int status = put(out, first, n_groups * sizeof *first);
    for (uint32_t i = 0;
         i < moe_session_n_entries(engine, session->n_evaluated) && status == MOE_OK; i++) {
        size_t bytes = engine->kv.groups[i % n_groups].page_bytes;
        if (i / n_groups < first[i % n_groups]) {
            continue;
        }
        status = engine->device->ops->download(engine->device, page, session->kv.addresses[i],
                                               bytes, out->err);
        if (status == MOE_OK) {
            status = put(out, page, bytes);
        }
    }
    free(page);
    return status;
}

static int put_state(moe_session_file *out, const moe_session *session)
{
    moe_engine *engine = session->engine;
    size_t size = engine->states.state_bytes;
    if (size == 0 || session->n_evaluated == 0) {
        return MOE_OK;
    }
    void *state = moe_calloc_aligned(size, 1);
    if (state == NULL) {
        return moe_fail(out->err, MOE_ERR_MEMORY, "no memory to save a state");
    }
    int status = engine->device->ops->download(engine->device, state,
                                               session->states.current->memory, size, out->err);
    status = status == MOE_OK ? put(out, state, size) : status;
    free(state);
    return status;
}

static int put_head(moe_session_file *out, const moe_head_line *line)
{
    moe_draft_head *head = line->head;
    bool is_behind = line->is_behind || line->base > 0; /* entries are those of a whole text */
    moe_session_head_header h = {.row_bytes = head->config.n_embd * sizeof(float),
                                 .page_bytes = head->kv.page_bytes,
                                 .n_entries = is_behind ? 0 : line->n_entries,
                                 .first = is_behind ? 0 : line->first,
                                 .n_hidden = is_behind ? 0 : line->n_hidden,
                                 .is_behind = is_behind};
    int status = put(out, &h, sizeof h);
    status = status == MOE_OK ? put(out, line->hidden, h.n_hidden * h.row_bytes) : status;
    void *page = moe_calloc_aligned(h.page_bytes, 1);
    if (page == NULL && status == MOE_OK) {
        status = moe_fail(out->err, MOE_ERR_MEMORY, "no memory to save a page");
    }
    for (uint32_t p = 0; p < moe_kv_pages_of(h.n_entries) && status == MOE_OK; p++) {
        status =
            head->device->ops->download(head->device, page, line->pages[p], h.page_bytes, out->err);
        status = status == MOE_OK ? put(out, page, h.page_bytes) : status;
    }
    free(page);
    return status;
}

static int put_session(moe_session_file *out, const moe_session *s)
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
    moe_struct_init(&moe_kind_sampling, header.sampling, sizeof header.sampling,
                    &s->sampler.settings);
    memcpy(header.random_state, s->sampler.random.state, sizeof header.random_state);
    if (s->draft != NULL) {
        memcpy(header.draft_random_state, s->draft->random.state, sizeof header.draft_random_state);
    }
    int status = put(out, &header, sizeof header);
    if (status == MOE_OK) {
        status = put(out, s->tokens, s->n_tokens * sizeof *s->tokens);
    }
    if (status == MOE_OK) {
        status = put(out, s->sampled, s->n_sampled * sizeof *s->sampled);
    }
    if (status == MOE_OK) {
        status = put_pages(out, s);
    }
    if (status == MOE_OK) {
        status = put_state(out, s);
    }
    if (status == MOE_OK && s->has_logits) {
        status = put(out, s->logits, s->engine->config.n_vocab * sizeof *s->logits);
    }
    if (status == MOE_OK && moe_session_head_of(s) != NULL) {
        status = put_head(out, moe_session_head_of(s));
    }
    if (status != MOE_OK) {
        return status;
    }
    uint64_t sum = XXH3_64bits_digest(out->hash);
    return put(out, &sum, sizeof sum);
}

int moe_session_save(const moe_session *session, const char *path, moe_error *err)
{
    if (session == NULL || path == NULL) {
        return moe_fail_null(err, "moe_session_save", "session or path");
    }
    moe_atomic_file file;
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to save a session");
    }
    int status = moe_atomic_file_open(&file, path, err);
    if (status == MOE_OK) {
        XXH3_64bits_reset(hash);
        moe_session_file out = {.file = file.stream, .hash = hash, .path = path, .err = err};
        status = put_session(&out, session);
        if (status == MOE_OK) {
            status = moe_atomic_file_commit(&file, err);
        } else {
            moe_atomic_file_abandon(&file);
        }
    }
    XXH3_freeState(hash);
    return status;
}
