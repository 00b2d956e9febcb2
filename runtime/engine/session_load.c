/* SPDX-License-Identifier: MIT */
/* Reads a session from a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <moe/files.h>
#include <moe/verify.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/session_format.h"
#include "runtime/engine/session_timeline.h"

static int get_sampling(const moe_session_header *h, moe_sampling *sampling, moe_error *err)
{
    moe_sampling saved;
    memset(&saved, 0, sizeof saved);
    memcpy(&saved, h->sampling, sizeof h->sampling);
    moe_sampling_init(sampling);
    return moe_sampling_take(sampling, &saved, err);
}

static int check_version(const moe_session_header *h, const moe_session_file *in)
{
    if (memcmp(h->magic, MOE_SESSION_MAGIC, sizeof MOE_SESSION_MAGIC) != 0 ||
        (h->version != MOE_SESSION_VERSION && h->version != MOE_SESSION_VERSION_WITH_HEAD)) {
        return moe_fail(in->err, MOE_ERR_FORMAT,
                        "%s is not a session file of version %u or %u of this program", in->path,
                        MOE_SESSION_VERSION, MOE_SESSION_VERSION_WITH_HEAD);
    }
    return MOE_OK;
}

/* The marks that hold from marked_from on. */
static uint32_t marks_of(const moe_session_header *h)
{
    return h->marks & MOE_SESSION_MARKS;
}

static int check_header(const moe_session_header *h, const moe_engine *engine, moe_session_file *in)
{
    MOE_TRY(check_version(h, in));
    if (h->fingerprint != engine->fingerprint) {
        return moe_fail(in->err, MOE_ERR_MISMATCH,
                        "%s was saved with another model, or other weights (fingerprint %016llx, "
                        "this one is %016llx)",
                        in->path, (unsigned long long)h->fingerprint,
                        (unsigned long long)engine->fingerprint);
    }
    if (h->kv_type != (uint32_t)engine->kv.type || h->page_bytes != engine->kv.page_bytes ||
        h->state_bytes != engine->states.state_bytes || h->n_kv_groups != engine->kv.n_groups) {
        return moe_fail(in->err, MOE_ERR_MISMATCH,
                        "%s was saved with another type of KV cache, or on a device that keeps "
                        "it in another way; open the model with that one",
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
    uint32_t n_seen = h->n_evaluated > h->replay_end ? h->n_evaluated : h->replay_end;
    if (h->marks > (MOE_SESSION_MARKS | MOE_SESSION_OWN_ATTENTION) ||
        (marks_of(h) != 0 ? h->marked_from >= n_seen : h->marked_from != 0)) {
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: contradictory marks", in->path);
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

/* Whether pages, states and logits were computed with the weights that the engine has. */
static bool has_these_weights(const moe_session_header *h, moe_engine *engine)
{
    const moe_weights_identity then = {.whole = h->weights_whole, .files = h->weights_files};
    moe_weights_identity now;
    moe_checksum_book_identify(&engine->book, &now);
    return moe_weights_identity_matches(&now, &then);
}

/* Whether the engine's attention has the arithmetic that the file was computed with. */
static bool has_this_attention(const moe_session_header *h, const moe_engine *engine)
{
    return ((h->marks & MOE_SESSION_OWN_ATTENTION) != 0) == engine->own_attention;
}

/* Whether this engine can use the file's keys and values, and not only its tokens. The weights and
 * the arithmetic of attention must be the same, and the engine must have all marks of the file: for
 * a file computed under lossy modes, the engine must have lossy modes, too. Every engine with the
 * same attention can use the file of an exact one. */
static bool is_usable(const moe_session_header *h, moe_engine *engine)
{
    return has_these_weights(h, engine) && has_this_attention(h, engine) &&
           (marks_of(h) & ~engine->marks) == 0;
}

/* Of a file that is not usable, though it has the engine's weights: what it was computed with. */
static const char *computed_how(const moe_session_header *h, const moe_engine *engine)
{
    if ((marks_of(h) & ~engine->marks & MOE_SESSION_LOSSY) != 0) {
        return "under lossy modes, which are off now";
    }
    if ((marks_of(h) & ~engine->marks) != 0) {
        return "with float_gemm MOE_FLOAT_GEMM_BLAS, which is off now";
    }
    return engine->own_attention ? "by exact attention (on a CPU or with options.exact_attention), "
                                   "and this device has an attention of its own"
                                 : "on a GPU without options.exact_attention";
}

/* Why not. */
static int fail_usable(const moe_session_header *h, moe_engine *engine, const moe_session_file *in)
{
    if (has_these_weights(h, engine)) {
        return moe_fail(in->err, MOE_ERR_MISMATCH, "%s was computed %s", in->path,
                        computed_how(h, engine));
    }
    return moe_fail(in->err, MOE_ERR_MISMATCH,
                    "%s was saved with other weights, or nothing tells that they are the same: %s",
                    in->path,
                    h->weights_whole != 0
                        ? "their checksums differ, or not all are known of this model (moe-offload "
                          "verify makes them)"
                        : "it was saved before all checksums were known, and the model's file was "
                          "written to, replaced or found damaged since");
}

/* Reads which pages of each group the file has. The session skips pages that it would have freed
 * itself: another engine may free fewer, and an engine with a short context frees none. */
static int get_first_pages(moe_session_file *in, moe_session *session, uint32_t *in_file)
{
    const moe_kv_pool *pool = &session->engine->kv;
    uint32_t n = session->n_evaluated;
    MOE_TRY(moe_session_file_bytes(in, in_file, pool->n_groups * sizeof *in_file));
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        const moe_kv_group *group = &pool->groups[g];
        uint32_t own =
            group->frees && n > MOE_KV_MARGIN ? moe_kv_first_needed(group, n - MOE_KV_MARGIN) : 0;
        session->kv.first_page[g] = in_file[g] > own ? in_file[g] : own;
        if (in_file[g] > moe_kv_first_needed(group, n)) {
            return moe_fail(in->err, MOE_ERR_FORMAT,
                            "%s: keys and values from page %u on are not enough to go on after "
                            "%u tokens",
                            in->path, in_file[g], n);
        }
    }
    return MOE_OK;
}

static int get_pages(moe_session_file *in, moe_session *session)
{
    uint32_t first[MOE_KV_GROUPS] = {0};
    MOE_TRY(get_first_pages(in, session, first));
    MOE_TRY(
        moe_kv_table_reserve(&session->engine->kv, &session->kv, 0, session->n_evaluated, in->err));
    return moe_session_file_pages(in, session, first);
}

/* Reads n token ids, and checks each before it is used as an index. */
static int get_tokens(moe_session_file *in, const moe_engine *engine, uint32_t n, int32_t **tokens)
{
    *tokens = moe_calloc(n, sizeof **tokens);
    if (*tokens == NULL) {
        return moe_fail(in->err, MOE_ERR_MEMORY, "no memory for %u tokens", n);
    }
    MOE_TRY(moe_session_file_bytes(in, *tokens, n * sizeof **tokens));
    for (uint32_t i = 0; i < n; i++) {
        if ((*tokens)[i] < 0 || (uint32_t)(*tokens)[i] >= engine->config.n_vocab) {
            return moe_fail(in->err, MOE_ERR_FORMAT, "%s: token %u is outside the vocabulary",
                            in->path, i);
        }
    }
    return MOE_OK;
}

/* Reads positions of sampled tokens: ascending, and within the timeline. */
static int get_sampled(moe_session_file *in, moe_session *s, uint32_t n)
{
    s->sampled = moe_calloc(n, sizeof *s->sampled);
    if (s->sampled == NULL) {
        return moe_fail(in->err, MOE_ERR_MEMORY, "no memory for %u tokens", n);
    }
    MOE_TRY(moe_session_file_bytes(in, s->sampled, n * sizeof *s->sampled));
    for (uint32_t i = 0; i < n; i++) {
        if (s->sampled[i] >= s->n_tokens || (i > 0 && s->sampled[i] <= s->sampled[i - 1])) {
            return moe_fail(in->err, MOE_ERR_FORMAT, "%s: no sampled token can stand at %u",
                            in->path, s->sampled[i]);
        }
    }
    return MOE_OK;
}

static int get_logits(moe_session_file *in, moe_session *s)
{
    size_t n_vocab = s->engine->config.n_vocab;
    s->logits = moe_map_pages(n_vocab * sizeof *s->logits);
    if (s->logits == NULL) {
        return moe_fail(in->err, MOE_ERR_MEMORY, "no memory for logits");
    }
    s->has_logits = true;
    return moe_session_file_bytes(in, s->logits, n_vocab * sizeof *s->logits);
}

static int skip(moe_session_file *in, uint64_t size)
{
    uint8_t bytes[4096];
    for (uint64_t done = 0; done < size; done += sizeof bytes) {
        MOE_TRY(moe_session_file_bytes(in, bytes,
                                       size - done < sizeof bytes ? size - done : sizeof bytes));
    }
    return MOE_OK;
}

static bool is_behind(const moe_session_head_header *h)
{
    return (h->flags & MOE_SESSION_HEAD_BEHIND) != 0;
}

/* If the file lacks the session's drafting layer, or has another one, the session's drafting layer
 * starts without entries. */
static int get_head(moe_session_file *in, const moe_session_header *header, moe_session *s)
{
    moe_head_line *line = s->draft != NULL ? s->draft->head : NULL;
    moe_session_head_header h = {.flags = MOE_SESSION_HEAD_BEHIND};
    int status = header->version == MOE_SESSION_VERSION_WITH_HEAD
                     ? moe_session_file_bytes(in, &h, sizeof h)
                     : MOE_OK;
    if (line != NULL) {
        line->is_behind = is_behind(&h) && header->n_evaluated > 0;
    }
    if (status != MOE_OK || header->version != MOE_SESSION_VERSION_WITH_HEAD) {
        return status;
    }
    if (h.flags > MOE_SESSION_HEAD_FLAGS || h.n_hidden > MOE_HEAD_ROWS + 1 ||
        h.n_entries > header->n_evaluated || h.first > h.n_entries || h.row_bytes > UINT32_MAX ||
        h.page_bytes > UINT32_MAX ||
        (!is_behind(&h) && (uint64_t)h.first + h.n_hidden != header->n_evaluated)) {
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: contradictory counts of a drafting layer",
                        in->path);
    }
    bool same = line != NULL &&
                (h.flags & ~(uint32_t)MOE_SESSION_HEAD_BEHIND) == moe_session_head_kind(line) &&
                h.row_bytes == line->head->width * sizeof(float) &&
                h.page_bytes == line->head->kv.page_bytes;
    if (!same) {
        if (line != NULL) {
            line->is_behind = header->n_evaluated > 0;
        }
        return skip(in, h.n_hidden * h.row_bytes + moe_kv_pages_of(h.n_entries) * h.page_bytes);
    }
    line->n_entries = h.n_entries;
    line->first = h.first;
    line->n_hidden = h.n_hidden;
    status = moe_session_file_bytes(in, line->hidden, h.n_hidden * h.row_bytes);
    status = status == MOE_OK ? moe_head_line_reserve(line, h.n_entries, in->err) : status;
    return status == MOE_OK ? moe_session_file_head_pages(in, line, h.n_entries) : status;
}

/* Reads the parts of the file that were computed from the model's weights. */
static int get_computed(moe_session_file *in, const moe_session_header *h, moe_session *s)
{
    s->n_evaluated = h->n_evaluated;
    s->replay_end = h->replay_end;
    s->marks = marks_of(h);
    s->marked_from = h->marked_from;
    MOE_TRY(get_pages(in, s));
    MOE_TRY(moe_session_file_state(in, s));
    if (h->has_logits) {
        MOE_TRY(get_logits(in, s));
    }
    return get_head(in, h, s);
}

/* Skips to the checksum at the end of the file. */
static int skip_to_sum(moe_session_file *in)
{
    struct stat state;
    long at = ftell(in->file);
    if (at < 0 || fstat(fileno(in->file), &state) != 0 ||
        state.st_size < at + (long)sizeof(uint64_t)) {
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: it is truncated", in->path);
    }
    return skip(in, (uint64_t)(state.st_size - at) - sizeof(uint64_t));
}

static int check_sum(moe_session_file *in)
{
    uint64_t expected = XXH3_64bits_digest(in->hash);
    uint64_t sum = 0;
    MOE_TRY(moe_session_file_bytes(in, &sum, sizeof sum));
    if (sum != expected || fgetc(in->file) != EOF) {
        return moe_fail(in->err, MOE_ERR_FORMAT, "%s: the checksum does not match; it is damaged",
                        in->path);
    }
    return MOE_OK;
}

/* Skips the computed parts, because the weights or the marks differ, and only checks the file's
 * checksum. All tokens must then be evaluated again. */
static int skip_computed(moe_session_file *in, const moe_session_header *h, const moe_session *s)
{
    MOE_TRY(skip_to_sum(in));
    if (s->engine->log != NULL) {
        const bool known = has_these_weights(h, s->engine);
        char line[700];
        snprintf(line, sizeof line, "%.400s: %s%s: its tokens are evaluated again", in->path,
                 known ? "it was computed " : "the weights have changed since, or may have",
                 known ? computed_how(h, s->engine) : "");
        s->engine->log(line, s->engine->user);
    }
    return MOE_OK;
}

static int get_body(moe_session_file *in, const moe_session_header *h, moe_session *s)
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
        status = is_usable(h, s->engine) ? get_computed(in, h, s) : skip_computed(in, h, s);
    }
    status = status == MOE_OK ? check_sum(in) : status;
    memcpy(s->sampler.random.state, h->random_state, sizeof s->sampler.random.state);
    const uint64_t *drawn = h->draft_random_state;
    if (s->draft != NULL && (drawn[0] | drawn[1] | drawn[2] | drawn[3]) != 0) {
        memcpy(s->draft->random.state, drawn, sizeof s->draft->random.state);
    } else if (s->draft != NULL) {
        moe_session_draft_seed(s->draft, &s->sampler.random);
    }
    return status;
}

static int load_from(moe_session_file *in, moe_session **out, moe_engine *engine)
{
    moe_session_header header;
    int status = moe_session_file_bytes(in, &header, sizeof header);
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

static int open_file(moe_session_file *in, const char *path, moe_error *err)
{
    *in = (moe_session_file){.path = path, .err = err};
    int status = moe_session_file_begin(in, err);
    if (status != MOE_OK) {
        return status;
    }
    in->file = moe_input_stream(path, 0, &status, err);
    if (in->file == NULL) {
        moe_session_file_end(in);
    }
    return status;
}

static void close_file(moe_session_file *in)
{
    fclose(in->file);
    moe_session_file_end(in);
}

int moe_session_file_tokens(const char *path, const moe_engine *engine, int32_t **tokens, size_t *n,
                            moe_error *err)
{
    moe_session_header header;
    if (path == NULL || engine == NULL || tokens == NULL || n == NULL) {
        return moe_fail_null(err, "moe_session_file_tokens", "path, engine, tokens or n");
    }
    *tokens = NULL;
    *n = 0;
    moe_session_file in;
    MOE_TRY(open_file(&in, path, err));
    int status = moe_session_file_bytes(&in, &header, sizeof header);
    status = status == MOE_OK ? check_header(&header, engine, &in) : status;
    if (status == MOE_OK && !is_usable(&header, (moe_engine *)engine)) { /* under a lock */
        status = fail_usable(&header, (moe_engine *)engine, &in);
    }
    status = status == MOE_OK ? get_tokens(&in, engine, header.n_tokens, tokens) : status;
    if (status == MOE_OK) {
        *n = header.n_tokens;
    } else {
        free(*tokens);
        *tokens = NULL;
    }
    close_file(&in);
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
    MOE_TRY(moe_engine_need_model(engine, "a session", err));
    moe_session_file in;
    int status = open_file(&in, path, err);
    if (status == MOE_OK) {
        status = load_from(&in, out, engine);
        close_file(&in);
    }
    return status;
}

int moe_verify_session(const char *path, bool *by_checksums, moe_error *err)
{
    if (path == NULL) {
        return moe_fail_null(err, "moe_verify_session", "path");
    }
    moe_session_header header;
    moe_session_file in;
    MOE_TRY(open_file(&in, path, err));
    int status = moe_session_file_bytes(&in, &header, sizeof header);
    status = status == MOE_OK ? check_version(&header, &in) : status;
    status = status == MOE_OK ? skip_to_sum(&in) : status;
    status = status == MOE_OK ? check_sum(&in) : status;
    if (status == MOE_OK && by_checksums != NULL) {
        *by_checksums = header.weights_whole != 0;
    }
    close_file(&in);
    return status;
}
