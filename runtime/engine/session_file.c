/* SPDX-License-Identifier: MIT */
/* A saved session:
 *
 *  header | tokens [n_tokens] | positions of those sampled and not taken [n_sampled]
 *         | KV pages [n_pages][page_bytes] | state of recurrent layers [state_bytes] when
 *         n_evaluated > 0 | logits [n_vocab] when has_logits
 *         | XXH3 of everything before
 *
 * If the process is killed, the file is the old or the new one. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_state.h"

#define MAGIC   "MOESESS"
#define VERSION 4u
/* A moe_sampling up to its frequency_penalty; this version of the file holds no more of it. */
#define SAMPLING_WORDS 6u

typedef struct session_header {
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
    uint64_t sampling[SAMPLING_WORDS];
    uint64_t random_state[4];
    uint64_t draft_random_state[4]; /* 0: the session did not speculate */
    uint64_t state_bytes;           /* of recurrent layers; 0: the model has none */
    uint32_t replay_end;
    uint32_t reserved;
} session_header;

/* The layout in files: no padding, so that every byte is written and checked. */
_Static_assert(sizeof(session_header) == 184 && offsetof(session_header, fingerprint) == 16 &&
                   offsetof(session_header, n_tokens) == 32 &&
                   offsetof(session_header, sampling) == 56 &&
                   offsetof(session_header, random_state) == 104 &&
                   offsetof(session_header, state_bytes) == 168 &&
                   offsetof(session_header, replay_end) == 176,
               "the header of a saved session");
_Static_assert(sizeof *((moe_session *)0)->tokens == 4 &&
                   sizeof *((moe_session *)0)->sampled == 4 &&
                   sizeof *((moe_session *)0)->logits == 4,
               "what follows it");
_Static_assert(SAMPLING_WORDS * 8 == offsetof(moe_sampling, reserved),
               "a moe_sampling up to its frequency_penalty");

typedef struct checked_file {
    FILE *file;
    XXH3_state_t *hash;
    const char *path;
    moe_error *err;
} checked_file;

static int put(checked_file *out, const void *data, size_t size)
{
    XXH3_64bits_update(out->hash, data, size);
    if (size > 0 && fwrite(data, 1, size, out->file) != size) {
        return moe_fail(out->err, MOE_ERR_IO, "%s: cannot write: %s", out->path, strerror(errno));
    }
    return MOE_OK;
}

static int get(checked_file *in, void *data, size_t size)
{
    if (size > 0 && fread(data, 1, size, in->file) != size) {
        if (ferror(in->file)) {
            return moe_fail(in->err, MOE_ERR_IO, "%s: cannot read: %s", in->path, strerror(errno));
        }
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: the session file is truncated", in->path);
    }
    XXH3_64bits_update(in->hash, data, size);
    return MOE_OK;
}

static uint32_t pages_of(uint32_t n_positions)
{
    return (n_positions + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
}

static int put_pages(checked_file *out, const moe_session *session)
{
    moe_engine *engine = session->engine;
    void *page = moe_calloc_aligned(engine->kv.page_bytes, 1);
    if (page == NULL) {
        return moe_fail(out->err, MOE_ERR_MEMORY, "no memory to save a page");
    }
    int status = MOE_OK;
    for (uint32_t p = 0; p < pages_of(session->n_evaluated) && status == MOE_OK; p++) {
        status = engine->device->ops->download(engine->device, page, session->kv.addresses[p],
                                               engine->kv.page_bytes, out->err);
        if (status == MOE_OK) {
            status = put(out, page, engine->kv.page_bytes);
        }
    }
    free(page);
    return status;
}

static int put_state(checked_file *out, const moe_session *session)
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

static int put_session(checked_file *out, const moe_session *s)
{
    session_header header;
    memset(&header, 0, sizeof header);
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    header.version = VERSION;
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
        checked_file out = {.file = file.stream, .hash = hash, .path = path, .err = err};
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

static int get_sampling(const session_header *h, moe_sampling *sampling, moe_error *err)
{
    moe_sampling saved;
    memset(&saved, 0, sizeof saved);
    memcpy(&saved, h->sampling, sizeof h->sampling);
    moe_sampling_init(sampling);
    return moe_sampling_take(sampling, &saved, err);
}

static int check_header(const session_header *h, const moe_engine *engine, checked_file *in)
{
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0 || h->version != VERSION) {
        return moe_fail(in->err, MOE_ERR_FORMAT,
                        "%s is not a session file of version %u of this program", in->path,
                        VERSION);
    }
    if (h->fingerprint != engine->fingerprint) {
        return moe_fail(in->err, MOE_ERR_MISMATCH,
                        "%s was saved with another model, or other weights (fingerprint %016llx, "
                        "this one is %016llx)",
                        in->path, (unsigned long long)h->fingerprint,
                        (unsigned long long)engine->fingerprint);
    }
    if (h->kv_type != (uint32_t)engine->kv.type || h->page_bytes != engine->kv.page_bytes ||
        h->state_bytes != engine->states.state_bytes) {
        return moe_fail(in->err, MOE_ERR_MISMATCH,
                        "%s was saved with another type of KV cache; open the model with that one",
                        in->path);
    }
    if (h->n_tokens > engine->context) {
        return moe_fail(in->err, MOE_ERR_CONTEXT_FULL,
                        "%s holds %u tokens, more than the context of %u; open the model with a "
                        "larger context",
                        in->path, h->n_tokens, engine->context);
    }
    const uint64_t *random = h->random_state;
    moe_error reason;
    if (h->n_evaluated > h->n_tokens || h->n_sampled > h->n_tokens ||
        h->n_sampled_pending > h->n_tokens - h->n_evaluated || h->n_sampled_pending > 1 ||
        h->replay_end > h->n_tokens || h->has_logits > 1 ||
        (h->has_logits == 1 && h->n_evaluated == 0 && h->replay_end == 0) || h->evaluate_only > 1) {
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: contradictory counts", in->path);
    }
    if ((random[0] | random[1] | random[2] | random[3]) == 0) {
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: the generator's state is 0", in->path);
    }
    moe_sampling sampling;
    if (get_sampling(h, &sampling, &reason) != MOE_OK) {
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: %.400s", in->path, reason.message);
    }
    return MOE_OK;
}

static int get_pages(checked_file *in, moe_session *session, uint32_t n_evaluated)
{
    moe_engine *engine = session->engine;
    int status = moe_kv_table_reserve(&engine->kv, &session->kv, 0, n_evaluated, in->err);
    void *page = moe_calloc_aligned(engine->kv.page_bytes, 1);
    if (page == NULL) {
        status = moe_fail(in->err, MOE_ERR_MEMORY, "no memory to load a page");
    }
    for (uint32_t p = 0; p < pages_of(n_evaluated) && status == MOE_OK; p++) {
        status = get(in, page, engine->kv.page_bytes);
        if (status == MOE_OK) {
            status = engine->device->ops->upload(engine->device, session->kv.addresses[p], page,
                                                 engine->kv.page_bytes, in->err);
        }
    }
    free(page);
    return status;
}

static int get_state(checked_file *in, moe_session *session)
{
    moe_engine *engine = session->engine;
    size_t size = engine->states.state_bytes;
    if (size == 0 || session->n_evaluated == 0) {
        return MOE_OK;
    }
    void *state = moe_calloc_aligned(size, 1);
    if (state == NULL) {
        return moe_fail(in->err, MOE_ERR_MEMORY, "no memory to load a state");
    }
    int status = get(in, state, size);
    if (status == MOE_OK) {
        status = moe_state_table_upload(&engine->states, &session->states, state,
                                        session->n_evaluated, in->err);
    }
    free(state);
    return status;
}

/* Reads n token ids, and checks each before it is used as an index. */
static int get_tokens(checked_file *in, const moe_engine *engine, uint32_t n, int32_t **tokens)
{
    *tokens = moe_calloc(n, sizeof **tokens);
    if (*tokens == NULL) {
        return moe_fail(in->err, MOE_ERR_MEMORY, "no memory for %u tokens", n);
    }
    int status = get(in, *tokens, n * sizeof **tokens);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        if ((*tokens)[i] < 0 || (uint32_t)(*tokens)[i] >= engine->config.n_vocab) {
            status = moe_fail(in->err, MOE_ERR_FORMAT, "%s: token %u is outside the vocabulary",
                              in->path, i);
        }
    }
    return status;
}

/* Reads positions of sampled tokens: ascending, and within the timeline. */
static int get_sampled(checked_file *in, moe_session *s, uint32_t n)
{
    s->sampled = moe_calloc(n, sizeof *s->sampled);
    if (s->sampled == NULL) {
        return moe_fail(in->err, MOE_ERR_MEMORY, "no memory for %u tokens", n);
    }
    int status = get(in, s->sampled, n * sizeof *s->sampled);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        if (s->sampled[i] >= s->n_tokens || (i > 0 && s->sampled[i] <= s->sampled[i - 1])) {
            status = moe_fail(in->err, MOE_ERR_FORMAT, "%s: no sampled token can stand at %u",
                              in->path, s->sampled[i]);
        }
    }
    return status;
}

static int get_logits(checked_file *in, moe_session *s)
{
    size_t n_vocab = s->engine->config.n_vocab;
    s->logits = moe_map_pages(n_vocab * sizeof *s->logits);
    if (s->logits == NULL) {
        return moe_fail(in->err, MOE_ERR_MEMORY, "no memory for logits");
    }
    s->has_logits = true;
    return get(in, s->logits, n_vocab * sizeof *s->logits);
}

static int get_body(checked_file *in, const session_header *h, moe_session *s)
{
    int status = moe_session_grant(s, h->n_tokens, h->n_tokens, in->err);
    if (status == MOE_OK) {
        status = get_tokens(in, s->engine, h->n_tokens, &s->tokens);
    }
    if (status == MOE_OK) {
        s->n_tokens = s->n_tokens_capacity = h->n_tokens;
        status = get_sampled(in, s, h->n_sampled);
    }
    if (status == MOE_OK) {
        s->n_sampled = s->n_sampled_capacity = h->n_sampled;
        s->n_sampled_pending = h->n_sampled_pending;
        s->n_evaluated = h->n_evaluated;
        s->replay_end = h->replay_end;
        status = get_pages(in, s, h->n_evaluated);
    }
    if (status == MOE_OK) {
        status = get_state(in, s);
    }
    if (status == MOE_OK && h->has_logits) {
        status = get_logits(in, s);
    }
    uint64_t expected = XXH3_64bits_digest(in->hash);
    uint64_t sum = 0;
    if (status == MOE_OK) {
        status = get(in, &sum, sizeof sum);
    }
    if (status == MOE_OK && (sum != expected || fgetc(in->file) != EOF)) {
        status = moe_fail(in->err, MOE_ERR_FORMAT, "%s: the checksum does not match; it is damaged",
                          in->path);
    }
    memcpy(s->sampler.random.state, h->random_state, sizeof s->sampler.random.state);
    const uint64_t *drawn = h->draft_random_state;
    if (s->draft != NULL && (drawn[0] | drawn[1] | drawn[2] | drawn[3]) != 0) {
        memcpy(s->draft->random.state, drawn, sizeof s->draft->random.state);
    } else if (s->draft != NULL) {
        moe_session_draft_seed(s->draft, &s->sampler.random);
    }
    return status;
}

static int load_from(checked_file *in, moe_session **out, moe_engine *engine)
{
    session_header header;
    int status = get(in, &header, sizeof header);
    if (status == MOE_OK) {
        status = check_header(&header, engine, in);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_session_options options;
    moe_session_options_init(&options);
    status = get_sampling(&header, &options.sampling, in->err);
    options.evaluate_only = header.evaluate_only != 0;
    if (status == MOE_OK) {
        status = moe_session_create(out, engine, &options, in->err);
    }
    if (status != MOE_OK) {
        return status;
    }
    status = get_body(in, &header, *out);
    if (status != MOE_OK) {
        moe_session_close(out);
    }
    return status;
}

int moe_session_load(moe_session **out, moe_engine *engine, const char *path, moe_error *err)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (out == NULL || engine == NULL || path == NULL) {
        return moe_fail_null(err, "moe_session_load", "out, engine or path");
    }
    int status = moe_engine_need_model(engine, "a session", err);
    if (status != MOE_OK) {
        return status;
    }
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to load a session");
    }
    XXH3_64bits_reset(hash);
    checked_file in = {.file = fopen(path, "rbe"), .hash = hash, .path = path, .err = err};
    if (in.file == NULL) {
        status = moe_fail(err, MOE_ERR_IO, "%s: cannot open it: %s", path, strerror(errno));
    } else {
        status = load_from(&in, out, engine);
        fclose(in.file);
    }
    XXH3_freeState(hash);
    return status;
}
