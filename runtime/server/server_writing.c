/* SPDX-License-Identifier: MIT */
#include "server_writing.h"

#include <math.h>
#include <string.h>

#include <moe/grammar.h>
#include <moe/sampling.h>

enum { TOKENS_AT_ONCE = 128 };

static const moe_error no_memory = {"out of memory for the answer's text"};

void server_finish_job(const server_writer *w, server_job *job, server_finish finish, int status,
                       const moe_error *message, bool keep)
{
    /* As soon as the job is DONE, the connection's thread may release it. */
    moe_text_close(&job->text);
    moe_chat_reply_close(&job->reply);
    moe_session *session = server_queue_finish(w->queue, job, finish, status, message);
    if (session != NULL && keep) {
        server_sessions_keep(w->sessions, session);
    } else {
        moe_session_close(&session);
    }
    server_queue_drop(w->queue, job);
}

static uint64_t hash_token(uint64_t hash, int32_t token)
{
    return (hash ^ (uint32_t)token) * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

/* Counts one generated token. A job that was set back generates again the tokens that its client
 * already has. Returns false if they differ this time, which lossy modes may cause. */
static bool count_token(server_job *job, int32_t token, bool ends)
{
    if (ends) {
        return job->n_repeated >= job->n_written;
    }
    job->n_repeated++;
    job->repeated = hash_token(job->repeated, token);
    if (job->n_repeated > job->n_written) {
        job->written = job->repeated;
    }
    return job->n_repeated != job->n_written || job->repeated == job->written;
}

/* Charges the memory of the text that the client has not taken yet. Its buffers double when they
 * grow; the connection's fixed share is charged already. The caller holds the queue's lock. */
static bool charge(server_queue *q, server_job *job, uint64_t more)
{
    server_error ignored;
    uint64_t size = 3 * (job->content.size + job->reasoning.size + job->reports.size + more);
    return size <= SERVER_ANSWER_BYTES || size <= job->charged ||
           server_memory_set(q->memory, &job->charged, 2 * size, &ignored) ||
           server_memory_set(q->memory, &job->charged, size, &ignored);
}

bool server_publish(const server_writer *w, server_job *job, const cli_buffer *content,
                    const char *reasoning, const moe_token_report *report, uint64_t n_tokens)
{
    server_queue *q = w->queue;
    size_t n_reasoning = strlen(reasoning);
    pthread_mutex_lock(&q->lock);
    bool stored =
        charge(q, job, content->size + n_reasoning + (report == NULL ? 0 : sizeof *report)) &&
        (content->size == 0 || cli_buffer_append(&job->content, content->data, content->size)) &&
        (n_reasoning == 0 || cli_buffer_append(&job->reasoning, reasoning, n_reasoning)) &&
        (report == NULL ||
         cli_buffer_append(&job->reports, report, server_report_size(job->n_top)));
    job->n_written += n_tokens;
    q->counts.written_tokens += n_tokens;
    server_queue_charge(q, job, n_tokens);
    pthread_cond_broadcast(&server_job_first(job)->changed);
    pthread_mutex_unlock(&q->lock);
    return stored;
}

/* Writes the text of one token. MOE_TOKEN_NONE: writes the text that was held back, at the end of
 * the answer. */
static server_stops_result write_text(const server_writer *w, server_job *job, int32_t token,
                                      const moe_token_report *report)
{
    bool is_known = job->n_repeated <= job->n_written; /* its client has it already */
    const char *reasoning = "";
    const char *text;
    size_t size;
    cli_buffer content = {NULL, 0, 0};
    bool ends = token == MOE_TOKEN_NONE;
    if (job->reply != NULL) {
        (ends ? (void)moe_chat_reply_finish(job->reply, &reasoning, &text)
              : (void)moe_chat_reply_push(job->reply, token, &reasoning, &text));
        size = strlen(text);
    } else {
        text = ends ? moe_text_finish(job->text, &size) : moe_text_push(job->text, token, &size);
    }
    server_stops_result result = SERVER_STOPS_GO_ON;
    if (size > 0) {
        result = server_stops_push(&job->stops, text, size, &content);
    }
    if ((ends || !is_known) && !server_publish(w, job, &content, reasoning, report, ends ? 0 : 1)) {
        result = SERVER_STOPS_NO_MEMORY;
    }
    cli_buffer_free(&content);
    return result;
}

static void fail_memory(const server_writer *w, server_job *job)
{
    server_finish_job(w, job, SERVER_FINISH_FAILED, MOE_ERR_MEMORY, &no_memory, false);
}

/* Writes the text that was held back, and finishes the job. If the answer is cut off within a
 * character, the character's bytes are not written. */
static void end_text(const server_writer *w, server_job *job, server_finish finish)
{
    if (finish == SERVER_FINISH_LENGTH && job->reply != NULL) {
        moe_chat_reply_cut_off(job->reply);
    } else if (finish == SERVER_FINISH_LENGTH) {
        size_t size;
        (void)moe_text_finish(job->text, &size);
    }
    server_stops_result result = write_text(w, job, MOE_TOKEN_NONE, NULL);
    cli_buffer rest = {NULL, 0, 0};
    bool stored = result != SERVER_STOPS_NO_MEMORY && server_stops_finish(&job->stops, &rest) &&
                  server_publish(w, job, &rest, "", NULL, 0);
    cli_buffer_free(&rest);
    if (!stored) {
        fail_memory(w, job);
    } else {
        server_finish_job(w, job, result == SERVER_STOPS_FOUND ? SERVER_FINISH_STRING : finish,
                          MOE_OK, NULL, true);
    }
}

/* Whether the token is one at which the client wants the text to end. */
static bool is_stop(const server_job *job, int32_t token)
{
    size_t i = 0;
    while (i < job->n_stop_ids && job->stop_ids[i] != token) {
        i++;
    }
    return i < job->n_stop_ids;
}

/* Takes one generated token. Returns true when the job is finished. */
static bool take_token(const server_writer *w, server_job *job, int32_t token,
                       const moe_token_report *report)
{
    static const moe_error left = {
        "The grammar cannot be followed any further: it is too ambiguous."};
    static const moe_error differs = {
        "Memory was short and the answer was begun again, but became another one, as modes that "
        "are not lossless allow. Try again, or start the server with a larger --host-memory."};
    if (job->max_tokens == 0) {
        end_text(w, job, SERVER_FINISH_LENGTH);
        return true;
    }
    bool is_end = moe_token_is_end(w->engine, token);
    bool ends = is_stop(job, token) || (is_end && (!job->ignore_eos || job->grammar != NULL));
    if (!count_token(job, token, ends)) {
        server_finish_job(w, job, SERVER_FINISH_FAILED, MOE_ERR_MEMORY, &differs, false);
        return true;
    }
    if (is_end && job->grammar != NULL && moe_session_grammar_failed(job->session)) {
        server_finish_job(w, job, SERVER_FINISH_FAILED, MOE_ERR_UNSUPPORTED, &left, false);
        return true;
    }
    if (ends) {
        end_text(w, job, SERVER_FINISH_STOP);
        return true;
    }
    server_stops_result result = write_text(w, job, token, report);
    if (result == SERVER_STOPS_FOUND) {
        server_finish_job(w, job, SERVER_FINISH_STRING, MOE_OK, NULL, true);
        return true;
    }
    if (result == SERVER_STOPS_NO_MEMORY) {
        fail_memory(w, job);
        return true;
    }
    if (job->n_written >= job->max_tokens) {
        end_text(w, job, SERVER_FINISH_LENGTH);
        return true;
    }
    return false;
}

/* ---- Reports on the prompt's tokens (echo with logprobs) ---- */

static bool tell_prompt(const server_writer *w, server_job *job, const moe_token_report *report)
{
    static const cli_buffer nothing = {NULL, 0, 0};
    job->n_told++;
    return server_publish(w, job, &nothing, "", report, 0);
}

/* Called within a step for each position of the prompt: the logits here give the probability of
 * the next token. Skips positions that were reported before, when the job was set back or a step
 * failed. */
static void report_next(size_t position, const float *hidden, const float *logits, void *user)
{
    server_job *job = user;
    moe_token_report report;
    moe_engine_info info = {.struct_size = sizeof info};
    (void)hidden;
    if (position + 1 != job->n_told || job->n_told == job->n_tokens || job->lost) {
        return;
    }
    moe_engine_get_info(job->writer->engine, &info);
    job->lost = moe_token_report_make(&report, logits, info.n_vocab, job->tokens[position + 1],
                                      job->n_top, NULL) != MOE_OK ||
                !tell_prompt(job->writer, job, &report);
}

int server_watch_prompt(const server_writer *w, server_job *job, moe_session *session,
                        moe_error *err)
{
    /* The first token has no probability, because nothing comes before it. */
    const moe_token_report first = {.chosen = {job->tokens[0], NAN}};
    job->writer = w;
    job->lost = job->n_told == 0 && !tell_prompt(w, job, &first);
    return moe_session_watch(session, report_next, job, err);
}

bool server_take_tokens(const server_writer *w, server_job *job)
{
    int32_t tokens[TOKENS_AT_ONCE];
    moe_token_report reports[TOKENS_AT_ONCE];
    size_t n;
    size_t n_all = 0;
    if (job->lost) {
        fail_memory(w, job);
        return true;
    }
    while ((n = moe_session_take(job->session, tokens, TOKENS_AT_ONCE)) > 0) {
        size_t n_reports = job->n_top < 0 ? 0 : moe_session_take_reports(job->session, reports, n);
        n_all += n;
        for (size_t i = 0; i < n; i++) {
            if (take_token(w, job, tokens[i], i < n_reports ? &reports[i] : NULL)) {
                return true;
            }
        }
    }
    if (n_all > 0 && moe_session_is_full(job->session)) {
        end_text(w, job, SERVER_FINISH_LENGTH);
        return true;
    }
    return false;
}
