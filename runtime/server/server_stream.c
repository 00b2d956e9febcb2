/* SPDX-License-Identifier: MIT */
/* Sends the text of a request's jobs to the client, as one JSON object or as server-sent events. */
#include <string.h>

#include "server_http.h"
#include "server_logprobs.h"
#include "server_socket.h"

/* Whether the client has left, or the server is shutting down. */
static bool is_over(server_exchange *exchange)
{
    return atomic_load(&exchange->srv->giving_up) || server_peer_left(exchange->socket);
}

static bool no_memory(server_exchange *exchange)
{
    return server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
}

/* Sets the exchange's error from the status and message of a failed job. */
static void fail_job(server_exchange *exchange, int status, const moe_error *message)
{
    if (atomic_load(&exchange->srv->giving_up)) {
        server_fail(&exchange->error, 503, "overloaded", NULL, "The server is shutting down.");
    } else {
        server_fail_status(&exchange->error, status, message);
    }
}

/* ---- News of the jobs (server_news) ---- */

static bool append(cli_buffer *to, const cli_buffer *from)
{
    return from->size == 0 || cli_buffer_append(to, from->data, from->size);
}

static uint64_t calls_bytes(const server_choice *answer)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < answer->tools.n_calls; i++) {
        bytes += sizeof(server_tool_call) + answer->tools.calls[i].arguments.capacity;
    }
    return bytes;
}

/* Charges the memory by which the answers will grow when the news are added, beyond what is
 * charged already: the connection's fixed share, and the reports on tokens. Buffers double when
 * they grow. */
static bool charge_news(server_exchange *exchange, const server_news *news)
{
    const server_reply *reply = &exchange->reply;
    bool reserved = reply->logprobs && !exchange->request.stream;
    uint64_t bytes =
        2 * (news->content.size + news->reasoning.size) + (reserved ? 0 : 2 * news->reports.size);
    for (uint32_t i = 0; i < reply->n_answers; i++) {
        const server_choice *answer = &reply->answers[i];
        bytes += answer->content.capacity + answer->reasoning.capacity +
                 answer->tools.held.capacity + calls_bytes(answer) +
                 (reserved ? 0 : answer->reports.capacity);
    }
    bytes = bytes > SERVER_ANSWER_BYTES ? bytes : 0;
    if (bytes <= exchange->answer_charged) {
        return true;
    }
    if (!server_memory_charge(&exchange->srv->memory, &exchange->kept,
                              bytes - exchange->answer_charged, &exchange->error)) {
        return false;
    }
    exchange->answer_charged = bytes;
    return true;
}

/* Waits for news of a job and adds them to its answer. Sets *index to the answer, or to n_answers
 * if there are no news. False: the request has failed; exchange->error says why. */
static bool take_news(server_exchange *exchange, uint32_t *index)
{
    server_news news;
    server_reply *reply = &exchange->reply;
    server_job_state states[SERVER_MOST_CHOICES];
    for (uint32_t i = 0; i < reply->n_answers; i++) {
        states[i] = reply->answers[i].state;
    }
    uint32_t at = server_wait(&exchange->srv->queue, exchange->request.jobs, states,
                              reply->n_answers, exchange->next, SERVER_LOOK_MS, &news);
    *index = at;
    if (at < reply->n_answers) {
        server_choice *answer = &reply->answers[at];
        exchange->next = (at + 1) % reply->n_answers;
        bool done = news.state == SERVER_DONE;
        if (!charge_news(exchange, &news)) {
            server_news_free(&exchange->srv->queue, &news);
            return false;
        }
        bool stored = server_tool_read(&answer->tools, news.content.data, news.content.size, done,
                                       &answer->content) &&
                      append(&answer->reasoning, &news.reasoning) &&
                      append(&answer->reports, &news.reports);
        answer->state = news.state;
        answer->finish = news.finish;
        answer->stop = news.stop;
        answer->n_written = news.n_written;
        if (!done && server_tool_reader_full(&answer->tools)) {
            answer->state = SERVER_DONE; /* its job is cancelled when the exchange ends */
            answer->finish = SERVER_FINISH_STOP;
        }
        answer->has_progress = news.has_progress;
        answer->n_read = news.n_read;
        answer->reading_ns = news.reading_ns;
        reply->n_cached = at == 0 ? news.n_cached : reply->n_cached;
        server_news_free(&exchange->srv->queue, &news);
        if (!stored) {
            return no_memory(exchange);
        }
        if (news.state == SERVER_DONE && news.finish == SERVER_FINISH_FAILED) {
            fail_job(exchange, news.status, &news.message);
            return false;
        }
    }
    if (is_over(exchange)) {
        const moe_error left = {"the client has left"};
        fail_job(exchange, MOE_ERR_CANCELLED, &left);
        return false;
    }
    return true;
}

static bool all_done(const server_reply *reply)
{
    uint32_t n = 0;
    while (n < reply->n_answers && reply->answers[n].state == SERVER_DONE) {
        n++;
    }
    return n == reply->n_answers;
}

/* ---- Whole ---- */

/* Writes the JSON of a whole answer. Called by the workshop's thread. */
static bool make_whole(server_exchange *exchange)
{
    server_reply *reply = &exchange->reply;
    uint64_t size = 0;
    for (uint32_t i = 0; i < reply->n_answers; i++) {
        server_choice *answer = &reply->answers[i];
        answer->reports_now = SIZE_MAX;
        size += answer->content.size + answer->reasoning.size;
        for (uint32_t k = 0; k < answer->tools.n_calls; k++) {
            size += answer->tools.calls[k].name.size + answer->tools.calls[k].arguments.size;
        }
    }
    return server_work_take(&exchange->request.allowance, size * SERVER_ANSWER_COPIES,
                            &exchange->error) &&
           (reply->dialect->whole(reply, &exchange->events) || no_memory(exchange));
}

/* Finds the first mark for reports (server_logprobs.h) in the text that has not been sent. */
static void find_mark(server_exchange *exchange)
{
    server_reports *r = &exchange->reports;
    size_t end = 0;
    size_t left = exchange->events.size - exchange->n_sent;
    size_t n =
        server_logprobs_find(exchange->events.data + exchange->n_sent, left, &r->index, &end);
    r->mark = exchange->n_sent + n;
    r->mark_end = exchange->n_sent + end;
    r->inside = false;
}

static ssize_t send_some(const cli_buffer *from, size_t *sent, size_t end, char *out, size_t most)
{
    size_t n = end - *sent < most ? end - *sent : most;
    memcpy(out, from->data + *sent, n);
    *sent += n;
    return (ssize_t)n;
}

/* libmicrohttpd calls this on the connection's thread to get the next bytes of the answer. Where
 * the JSON has a mark, writes reports instead, one token at a time. */
static ssize_t read_reports(void *user, uint64_t position, char *out, size_t most)
{
    server_exchange *exchange = user;
    server_reports *r = &exchange->reports;
    (void)position;
    for (;;) {
        if (!r->inside && exchange->n_sent < r->mark) {
            return send_some(&exchange->events, &exchange->n_sent, r->mark, out, most);
        }
        if (!r->inside && r->mark == exchange->events.size) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (!r->inside) {
            r->inside = true;
            r->done = false;
            r->cursor = (server_logprobs_cursor){0, 0, 0};
        }
        if (r->sent < r->piece.size) {
            return send_some(&r->piece, &r->sent, r->piece.size, out, most);
        }
        r->piece.size = r->sent = 0;
        if (r->done) {
            exchange->n_sent = r->mark_end;
            find_mark(exchange);
        } else if (!server_logprobs_piece(&exchange->reply, r->index, &r->cursor, &r->piece,
                                          &r->done)) {
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
    }
}

/* Sends a whole answer while its reports are being written, because as JSON text they take ten
 * times as much memory as in the engine's form. */
static enum MHD_Result answer_reports(server_exchange *exchange)
{
    find_mark(exchange);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_reports, exchange, NULL);
    if (response == NULL) {
        no_memory(exchange);
        return server_answer_error(exchange);
    }
    server_add_headers(exchange, response, 200, "application/json");
    exchange->status = 200;
    enum MHD_Result result = MHD_queue_response(exchange->connection, 200, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_whole(server_exchange *exchange)
{
    server_reply *reply = &exchange->reply;
    uint32_t index;
    bool goes_on = true;
    while (goes_on && !all_done(reply)) {
        goes_on = take_news(exchange, &index);
    }
    if (!goes_on || !server_in_workshop(exchange, make_whole)) {
        return server_answer_error(exchange);
    }
    return reply->logprobs ? answer_reports(exchange)
                           : server_answer(exchange, 200, "application/json", &exchange->events);
}

/* ---- A stream ---- */

/* Whether the stream has not sent everything of the answer's tool calls. */
static bool has_calls(const server_choice *answer)
{
    size_t told;
    uint32_t next = server_next_call(answer, &told);
    return answer->tools.n_calls > answer->calls_told ||
           (answer->call_open &&
            (answer->tools.calls[next].arguments.size > told || !answer->tools.is_open));
}

/* Writes events for the new part of an answer. */
static bool tell(server_exchange *exchange, uint32_t index)
{
    server_reply *reply = &exchange->reply;
    server_choice *answer = &reply->answers[index];
    cli_buffer *out = &exchange->events;
    bool stored = true;
    if (answer->has_progress && reply->dialect->progress != NULL) {
        answer->has_progress = false;
        stored = reply->dialect->progress(reply, index, out);
    }
    answer->reports_now = answer->reports.size == 0 ? 0 : SERVER_REPORTS_AT_ONCE;
    if (answer->content.size > answer->content_told ||
        answer->reasoning.size > answer->reasoning_told || answer->reports_now > 0 ||
        has_calls(answer)) {
        stored = stored && reply->dialect->piece(reply, index, out);
        answer->content_told = answer->content.size;
        answer->reasoning_told = answer->reasoning.size;
        server_logprobs_told(reply, answer);
        answer->calls_told = answer->tools.n_calls;
        answer->call_open = answer->tools.is_open;
        answer->arguments_told =
            answer->call_open ? answer->tools.calls[answer->calls_told - 1].arguments.size : 0;
    }
    if (answer->state == SERVER_DONE && !answer->has_settings && answer->reports.size == 0) {
        answer->has_settings = true;
        stored = stored && reply->dialect->finish(reply, index, out);
        if (all_done(reply)) {
            exchange->events_end = true;
            stored = stored && reply->dialect->end(reply, out);
        }
    }
    return stored;
}

/* Waits for news and writes events. False: close the connection. */
static bool more_events(server_exchange *exchange)
{
    uint32_t index = 0;
    const server_reply *reply = &exchange->reply;
    while (index < reply->n_answers && reply->answers[index].reports.size == 0) {
        index++;
    }
    /* While reports of an answer are left to send, do not wait for news. */
    if (index == reply->n_answers && !take_news(exchange, &index)) {
        exchange->events_end = true;
        return reply->dialect->broken(&exchange->error, &exchange->events);
    }
    bool stored = index == reply->n_answers || tell(exchange, index);
    uint64_t now = server_now_ns();
    if (exchange->events.size > 0) {
        exchange->last_event_ns = now;
    } else if (!reply->dialect->lines &&
               now - exchange->last_event_ns > (uint64_t)SERVER_ALIVE_SECONDS * 1000000000) {
        exchange->last_event_ns = now;
        stored = stored && cli_buffer_append(&exchange->events, ": waiting\n\n", 11);
    }
    return stored;
}

/* libmicrohttpd calls this on the connection's thread whenever the client can take more of the
 * stream. */
static ssize_t read_events(void *user, uint64_t position, char *out, size_t most)
{
    server_exchange *exchange = user;
    (void)position;
    while (exchange->n_sent == exchange->events.size) {
        exchange->n_sent = 0;
        exchange->events.size = 0;
        if (exchange->events_end) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (!more_events(exchange)) {
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
    }
    size_t n = exchange->events.size - exchange->n_sent;
    n = n < most ? n : most;
    memcpy(out, exchange->events.data + exchange->n_sent, n);
    exchange->n_sent += n;
    return (ssize_t)n;
}

/* Starts a stream. The headers are sent only when a job has a session, because until then the
 * request may still fail with another status. */
static enum MHD_Result answer_stream(server_exchange *exchange)
{
    server_reply *reply = &exchange->reply;
    uint32_t index = reply->n_answers;
    bool goes_on = true;
    while (goes_on && index == reply->n_answers) {
        goes_on = take_news(exchange, &index);
    }
    exchange->last_event_ns = server_now_ns();
    if (goes_on && !(reply->dialect->begin(reply, &exchange->events) && tell(exchange, index))) {
        goes_on = no_memory(exchange);
    }
    struct MHD_Response *response = NULL;
    if (goes_on) {
        response =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_events, exchange, NULL);
    }
    if (response == NULL) {
        if (goes_on) {
            no_memory(exchange);
        }
        return server_answer_error(exchange);
    }
    server_add_headers(exchange, response, 200,
                       reply->dialect->lines ? "application/x-ndjson" : "text/event-stream");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    exchange->status = 200;
    enum MHD_Result result = MHD_queue_response(exchange->connection, 200, response);
    MHD_destroy_response(response);
    return result;
}

static const struct {
    server_endpoint endpoint;
    const server_dialect *dialect;
    const char *prefix;
} dialects[] = {
    {SERVER_CHAT, &server_openai, "chatcmpl-"},
    {SERVER_COMPLETION, &server_openai, "cmpl-"},
    {SERVER_MESSAGES, &server_messages, "msg_"},
    {SERVER_RESPONSES, &server_responses, "resp_"},
    {SERVER_INFILL, &server_infill, "infill-"},
    {SERVER_EMBEDDINGS, &server_openai_vectors, "embd-"},
    {SERVER_EMBEDDING, &server_native_vectors, "embd-"},
    {SERVER_OLLAMA_EMBED, &server_ollama_vectors, "embd-"},
    {SERVER_OLLAMA_EMBEDDINGS, &server_ollama_vectors, "embd-"},
    {SERVER_OLLAMA_CHAT, &server_ollama, "ollama-"},
    {SERVER_OLLAMA_GENERATE, &server_ollama, "ollama-"},
};

enum MHD_Result server_generate(server_exchange *exchange)
{
    server *srv = exchange->srv;
    server_request *request = &exchange->request;
    size_t row = 0;
    while (dialects[row].endpoint != request->endpoint) {
        row++;
    }
    server_reply_begin(&exchange->reply, dialects[row].dialect, dialects[row].prefix, request,
                       srv->engine, srv->options->model, srv->info.fingerprint);
    for (uint32_t i = 0; i < request->n_jobs; i++) {
        request->jobs[i]->client = exchange->client;
        if (!append(&exchange->reply.answers[i].content, &request->echoed)) {
            no_memory(exchange);
            return server_answer_error(exchange);
        }
        exchange->reply.answers[i].text_offset = request->echo_offset;
    }
    if (!server_submit(&srv->queue, request->jobs, request->n_jobs)) {
        server_fail(&exchange->error, 503, "overloaded", NULL,
                    "Too many requests wait for a session: try again later.");
        return server_answer_error(exchange);
    }
    return request->stream ? answer_stream(exchange) : answer_whole(exchange);
}
