/* SPDX-License-Identifier: MIT */
#include "server_embedding.h"

#include <stdlib.h>
#include <string.h>

#include "server.h"
#include "server_values.h"

/* ---- Fields ---- */

/* Reads the field that holds the texts: a string or an array of token ids is one text, and an array
 * of such values is several texts. */
bool server_read_texts(server_reading *r, struct json_object *value)
{
    r->request->texts = value;
    return json_object_is_type(value, json_type_string) ||
           (json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0) ||
           server_wrong(r, "a string, an array of strings, or token ids");
}

bool server_read_encoding(server_reading *r, struct json_object *value)
{
    r->request->is_base64 = server_is_text(value, "base64");
    return r->request->is_base64 || server_is_text(value, "float") ||
           server_wrong(r, "'float' or 'base64'");
}

bool server_read_dimensions(server_reading *r, struct json_object *value)
{
    return server_get_count(r, value, 1, INT32_MAX, "a whole number of at least 1",
                            &r->request->dimensions);
}

bool server_read_truncate(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->cuts_texts);
}

/* ---- Texts as tokens ---- */

typedef struct text_reader {
    server_request *request;
    const moe_engine *engine;
    uint32_t n_vocab, context;
    const char *field;
    cli_buffer tokens, ends; /* int32_t, size_t */
    server_error *error;
} text_reader;

static bool append_ids(text_reader *t, const int32_t *ids, size_t n)
{
    return n == 0 ||
           (server_work_take(&t->request->allowance, 2 * n * sizeof *ids, t->error) &&
            (cli_buffer_append(&t->tokens, ids, n * sizeof *ids) ||
             server_fail(t->error, 503, "overloaded", NULL, "out of memory for the texts")));
}

static bool append_string(text_reader *t, struct json_object *value)
{
    int32_t *ids;
    size_t n;
    moe_error err = {""};
    const uint64_t before = t->request->allowance.bytes_now;
    /* Special tokens are not recognized in the text, so a client cannot inject control tokens. */
    int status = moe_tokenize_within(
        t->engine, json_object_get_string(value), (size_t)json_object_get_string_len(value),
        MOE_TOKENIZE_ADD_SPECIAL, &ids, &n, &t->request->allowance, &err);
    if (status != MOE_OK) {
        return server_work_fail(t->error, status, t->field, &err);
    }
    const uint64_t bytes = t->request->allowance.bytes_now - before;
    bool appended = append_ids(t, ids, n);
    moe_free(ids);
    t->request->allowance.bytes_now -= bytes;
    return appended;
}

static bool append_array(text_reader *t, struct json_object *value)
{
    bool appended = true;
    for (size_t i = 0; i < json_object_array_length(value) && appended; i++) {
        struct json_object *id = json_object_array_get_idx(value, i);
        const int64_t number = json_object_get_int64(id);
        const int32_t token = (int32_t)number;
        if (!json_object_is_type(id, json_type_int) || number < 0 || number >= t->n_vocab) {
            return server_fail(t->error, 400, "invalid_value", t->field,
                               "'%s' must have strings, or token ids below %u.", t->field,
                               t->n_vocab);
        }
        appended = append_ids(t, &token, 1);
    }
    return appended;
}

static bool add_text(text_reader *t, struct json_object *value)
{
    const size_t before = t->tokens.size / sizeof(int32_t);
    bool is_string = json_object_is_type(value, json_type_string);
    if (!is_string && !json_object_is_type(value, json_type_array)) {
        return server_fail(t->error, 400, "invalid_value", t->field,
                           "'%s' must have strings, or arrays of token ids.", t->field);
    }
    if (!(is_string ? append_string(t, value) : append_array(t, value))) {
        return false;
    }
    size_t n = t->tokens.size / sizeof(int32_t) - before;
    if (n == 0) {
        return server_fail(t->error, 400, "invalid_value", t->field,
                           "A text of '%s' is empty: an embedding needs a token.", t->field);
    }
    if (n > t->context && t->request->cuts_texts) {
        n = t->context;
        t->tokens.size = (before + n) * sizeof(int32_t);
    }
    const size_t end = before + n;
    return (n <= t->context ||
            server_fail(t->error, 400, "context_length_exceeded", t->field,
                        "A text has %zu tokens, and the context holds %u: shorten it, or start the "
                        "server with a larger -c.",
                        n, t->context)) &&
           (cli_buffer_append(&t->ends, &end, sizeof end) ||
            server_fail(t->error, 503, "overloaded", NULL, "out of memory for the texts"));
}

static bool add_texts(text_reader *t)
{
    struct json_object *texts = t->request->texts;
    const size_t n =
        json_object_is_type(texts, json_type_array) ? json_object_array_length(texts) : 0;
    if (n == 0 || json_object_is_type(json_object_array_get_idx(texts, 0), json_type_int)) {
        return add_text(t, texts);
    }
    bool added = n <= SERVER_MOST_TEXTS ||
                 server_fail(t->error, 400, "invalid_value", t->field,
                             "'%s' has more than %d texts.", t->field, SERVER_MOST_TEXTS);
    for (size_t i = 0; i < n && added; i++) {
        added = add_text(t, json_object_array_get_idx(texts, i));
    }
    return added;
}

/* ---- Jobs ---- */

/* Distributes the first job's texts among n jobs: job k gets the texts k, k + n, k + 2n and so
 * on. */
static bool share_out(server_request *request, const server_options *options, uint32_t n_embd,
                      server_error *error)
{
    server_job *first = request->job;
    uint32_t n = options->parallel < SERVER_MOST_CHOICES ? options->parallel : SERVER_MOST_CHOICES;
    n = first->n_texts < n ? (uint32_t)first->n_texts : n;
    for (request->n_jobs = 1; request->n_jobs < n; request->n_jobs++) {
        request->jobs[request->n_jobs] = server_job_follow(first);
        if (request->jobs[request->n_jobs] == NULL) {
            return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        server_job *job = request->jobs[i];
        job->text_ends = first->text_ends;
        job->n_texts = first->n_texts;
        job->at_text = i;
        job->text_step = n;
        job->pooling = options->pooling;
        job->normalizes = request->endpoint != SERVER_OLLAMA_EMBEDDINGS;
        job->pool = (moe_pool){
            calloc(n_embd, sizeof(double)), n_embd,
            options->pooling == SERVER_POOLING_LAST ? MOE_POOLING_LAST : MOE_POOLING_MEAN, 0};
        if (job->pool.sums == NULL) {
            return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
        }
        job->max_tokens = 0;
        job->n_tokens = 0;
        for (size_t t = i; t < job->n_texts; t += n) {
            job->n_tokens += job->text_ends[t] - (t == 0 ? 0 : job->text_ends[t - 1]);
        }
    }
    return true;
}

bool server_take_texts(server_request *request, const moe_engine *engine,
                       const server_options *options, server_error *error)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    text_reader t = {.request = request,
                     .engine = engine,
                     .n_vocab = info.n_vocab,
                     .context = info.context,
                     .field = request->endpoint == SERVER_OLLAMA_EMBEDDINGS ? "prompt"
                              : request->endpoint == SERVER_EMBEDDING       ? "content"
                                                                            : "input",
                     .error = error};
    if (request->dimensions > 0 && request->dimensions != info.n_embd) {
        return server_fail(error, 400, "unsupported_value", "dimensions",
                           "'dimensions' must be %u: this model's vectors cannot be cut.",
                           info.n_embd);
    }
    if (options->pooling == SERVER_POOLING_NONE && request->endpoint != SERVER_EMBEDDING) {
        return server_fail(error, 400, "unsupported_value", NULL,
                           "The server was started with --pooling none: only /embedding gives a "
                           "vector for each token.");
    }
    bool added = add_texts(&t);
    request->job->tokens = (int32_t *)(void *)t.tokens.data;
    request->job->text_ends = (size_t *)(void *)t.ends.data;
    request->job->n_texts = t.ends.size / sizeof(size_t);
    return added && share_out(request, options, info.n_embd, error);
}

uint64_t server_embedding_bytes(const server_request *request)
{
    const server_job *job = request->job;
    const uint64_t n_vectors =
        job->pooling == SERVER_POOLING_NONE ? job->text_ends[job->n_texts - 1] : job->n_texts;
    return request->n_jobs * job->pool.n_embd * sizeof(double) + job->n_texts * sizeof(size_t) +
           2 * n_vectors * job->pool.n_embd * sizeof(float);
}

/* ---- Called by the engine's thread ---- */

static const moe_error no_memory = {"out of memory for the answer's vectors"};

static bool hand_out(const server_writer *w, server_job *job, const float *vector)
{
    const cli_buffer bytes = {(char *)(uintptr_t)vector, job->pool.n_embd * sizeof *vector, 0};
    return server_publish(w, job, &bytes, "", NULL, 0);
}

/* Called within a step for each position; adds its hidden state to the text's vector. */
static void pool_position(size_t position, const float *hidden, const float *logits, void *user)
{
    server_job *job = user;
    (void)logits;
    if (job->pooling == SERVER_POOLING_NONE && position == job->pool.n) {
        job->lost = job->lost || !hand_out(job->writer, job, hidden);
    }
    moe_pool_add(&job->pool, position, hidden);
}

static int feed_text(server_job *job, moe_session *session, moe_error *err)
{
    const size_t begin = job->at_text == 0 ? 0 : job->text_ends[job->at_text - 1];
    return moe_session_feed(session, job->tokens + begin, job->text_ends[job->at_text] - begin,
                            err);
}

int server_embedding_begin(const server_writer *w, server_job *job, moe_session *session,
                           moe_error *err)
{
    job->writer = w;
    if (job->pooling != SERVER_POOLING_NONE) {
        job->pool.n = 0; /* NONE keeps n, so that no vector is handed out twice */
    }
    int status = moe_session_watch(session, pool_position, job, err);
    return status == MOE_OK ? feed_text(job, session, err) : status;
}

/* All tokens of a text are evaluated: computes its vector, hands it out, and moves on to the job's
 * next text. False: memory is short. */
static bool end_of_text(const server_writer *w, server_job *job)
{
    bool stored = !job->lost;
    if (job->pooling != SERVER_POOLING_NONE) {
        float *vector = calloc(job->pool.n_embd, sizeof *vector);
        if (vector != NULL) {
            moe_pool_finish(&job->pool, job->normalizes, vector);
        }
        stored = stored && vector != NULL && hand_out(w, job, vector);
        free(vector);
    }
    job->pool.n = 0;
    job->at_text += job->text_step;
    return stored;
}

bool server_take_embedding(const server_writer *w, server_job *job)
{
    moe_error err = {""};
    int status = MOE_OK;
    if (moe_session_n_pending(job->session) > 0) {
        return false;
    }
    if (!end_of_text(w, job)) {
        server_finish_job(w, job, SERVER_FINISH_FAILED, MOE_ERR_MEMORY, &no_memory, false);
        return true;
    }
    if (job->at_text >= job->n_texts) {
        server_finish_job(w, job, SERVER_FINISH_STOP, MOE_OK, NULL, false);
        return true;
    }
    status = moe_session_truncate(job->session, 0, &err);
    status = status == MOE_OK ? feed_text(job, job->session, &err) : status;
    if (status != MOE_OK) {
        server_finish_job(w, job, SERVER_FINISH_FAILED, status, &err, false);
    }
    return status != MOE_OK;
}
