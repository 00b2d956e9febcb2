/* SPDX-License-Identifier: MIT */
/* From a request's jobs to the client: as one object, or as server-sent events. */
#include <string.h>

#include "server_http.h"
#include "server_socket.h"

/* The client has left, or the server ends. */
static bool is_over(server_exchange *exchange)
{
    return atomic_load(&exchange->srv->giving_up) || server_peer_left(exchange->socket);
}

static bool no_memory(server_exchange *exchange)
{
    return server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
}

/* The error of a job that failed. */
static void fail_job(server_exchange *exchange, int status, const moe_error *message)
{
    if (atomic_load(&exchange->srv->giving_up)) {
        server_fail(&exchange->error, 503, "overloaded", NULL, "The server is shutting down.");
    } else {
        server_fail_status(&exchange->error, status, message);
    }
}

/* ---- News of the jobs ---- */

static bool append(cli_buffer *to, const cli_buffer *from)
{
    return from->size == 0 || cli_buffer_append(to, from->data, from->size);
}

/* Waits for news and adds them to the answer. *index: whose; n_answers: there are none. False: the
 * request has failed, and exchange->error says why. */
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
        bool stored = server_tool_read(&answer->tools, news.content.data, news.content.size, done,
                                       &answer->content) &&
                      append(&answer->reasoning, &news.reasoning) &&
                      append(&answer->reports, &news.reports);
        answer->state = news.state;
        answer->finish = news.finish;
        answer->stop = news.stop;
        answer->n_written = news.n_written;
        if (!done && answer->tools.only_one && answer->tools.n_calls > 0) {
            answer->state = SERVER_DONE; /* its job is cancelled with the exchange */
            answer->finish = SERVER_FINISH_STOP;
        }
        reply->n_cached = at == 0 ? news.n_cached : reply->n_cached;
        server_news_free(&news);
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

static enum MHD_Result answer_whole(server_exchange *exchange)
{
    cli_buffer text = {NULL, 0, 0};
    server_reply *reply = &exchange->reply;
    uint32_t index;
    bool goes_on = true;
    while (goes_on && !all_done(reply)) {
        goes_on = take_news(exchange, &index);
    }
    if (goes_on && !reply->dialect->whole(reply, &text)) {
        goes_on = no_memory(exchange);
    }
    if (!goes_on) {
        cli_buffer_free(&text);
        return server_answer_error(exchange);
    }
    return server_answer(exchange, 200, "application/json", &text);
}

/* ---- A stream ---- */

/* Turns what is new of an answer into events. */
static bool tell(server_exchange *exchange, uint32_t index)
{
    server_reply *reply = &exchange->reply;
    server_choice *answer = &reply->answers[index];
    cli_buffer *out = &exchange->events;
    bool stored = true;
    if (answer->content.size > answer->content_told ||
        answer->reasoning.size > answer->reasoning_told ||
        answer->reports.size > answer->reports_told || answer->tools.n_calls > answer->calls_told) {
        stored = reply->dialect->piece(reply, index, out);
        answer->content_told = answer->content.size;
        answer->reasoning_told = answer->reasoning.size;
        answer->reports_told = answer->reports.size;
        answer->calls_told = answer->tools.n_calls;
    }
    if (answer->state == SERVER_DONE && !answer->has_settings) {
        answer->has_settings = true;
        stored = stored && reply->dialect->finish(reply, index, out);
        if (all_done(reply)) {
            exchange->events_end = true;
            stored = stored && reply->dialect->end(reply, out);
        }
    }
    return stored;
}

/* Waits for news and turns it into events; false: the connection is to be closed. */
static bool more_events(server_exchange *exchange)
{
    uint32_t index;
    const server_reply *reply = &exchange->reply;
    if (!take_news(exchange, &index)) {
        exchange->events_end = true;
        return reply->dialect->broken(&exchange->error, &exchange->events);
    }
    bool stored = index == reply->n_answers || tell(exchange, index);
    uint64_t now = server_now_ns();
    if (exchange->events.size > 0) {
        exchange->last_event_ns = now;
    } else if (now - exchange->last_event_ns > (uint64_t)SERVER_ALIVE_SECONDS * 1000000000) {
        exchange->last_event_ns = now;
        stored = stored && cli_buffer_append(&exchange->events, ": waiting\n\n", 11);
    }
    return stored;
}

/* Called by libmicrohttpd on the connection's own thread whenever the client can take more. */
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

/* The headers go out when a job has a session; until then the request may fail with a status. */
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
    MHD_add_response_header(response, "Content-Type", "text/event-stream");
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
    }
    if (!server_submit(&srv->queue, request->jobs, request->n_jobs)) {
        server_fail(&exchange->error, 503, "overloaded", NULL,
                    "Too many requests wait for a session: try again later.");
        return server_answer_error(exchange);
    }
    return request->stream ? answer_stream(exchange) : answer_whole(exchange);
}
