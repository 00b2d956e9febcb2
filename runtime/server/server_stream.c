/* SPDX-License-Identifier: MIT */
/* From a job's text to the client: as one object, or as server-sent events. */
#include <string.h>

#include "server_http.h"
#include "server_socket.h"

/* The client has left, or the server ends. */
static bool is_over(server_exchange *exchange)
{
    return atomic_load(&exchange->srv->giving_up) || server_peer_left(exchange->socket);
}

/* The error of a job that failed. */
static void fail_job(server_exchange *exchange, const server_news *news)
{
    if (atomic_load(&exchange->srv->giving_up)) {
        server_fail(&exchange->error, 503, "overloaded", NULL, "The server is shutting down.");
    } else {
        server_fail_status(&exchange->error, news->status, &news->message);
    }
}

static void take_counts(server_exchange *exchange, const server_news *news)
{
    exchange->state = news->state;
    exchange->reply.n_cached = news->n_cached;
    exchange->reply.n_written = news->n_written;
}

/* ---- Whole ---- */

static enum MHD_Result answer_whole(server_exchange *exchange)
{
    cli_buffer content = {NULL, 0, 0};
    cli_buffer reasoning = {NULL, 0, 0};
    cli_buffer text = {NULL, 0, 0};
    server_news news;
    bool stored = true;
    do {
        server_wait(exchange->srv->scheduler, exchange->request.job, exchange->state,
                    SERVER_LOOK_MS, &news);
        take_counts(exchange, &news);
        stored = (news.content.size == 0 ||
                  cli_buffer_append(&content, news.content.data, news.content.size)) &&
                 (news.reasoning.size == 0 ||
                  cli_buffer_append(&reasoning, news.reasoning.data, news.reasoning.size));
        server_news_free(&news);
    } while (news.state != SERVER_DONE && stored && !is_over(exchange));
    if (!stored) {
        server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
    } else if (news.state != SERVER_DONE || news.finish == SERVER_FINISH_FAILED) {
        fail_job(exchange, &news);
    } else if (!server_reply_whole(&exchange->reply, &content, &reasoning, news.finish, &text)) {
        server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
    }
    cli_buffer_free(&content);
    cli_buffer_free(&reasoning);
    if (exchange->error.status != 0) {
        cli_buffer_free(&text);
        return server_answer_error(exchange);
    }
    return server_answer(exchange, 200, "application/json", &text);
}

/* ---- A stream ---- */

/* Waits for news and turns it into events; false: the connection is to be closed. */
static bool more_events(server_exchange *exchange)
{
    server_news news;
    server_wait(exchange->srv->scheduler, exchange->request.job, exchange->state, SERVER_LOOK_MS,
                &news);
    take_counts(exchange, &news);
    bool stored =
        server_reply_piece(&exchange->reply, &news.content, &news.reasoning, &exchange->events);
    server_news_free(&news);
    bool over = news.state != SERVER_DONE && is_over(exchange);
    if (over || (news.state == SERVER_DONE && news.finish == SERVER_FINISH_FAILED)) {
        fail_job(exchange, &news);
        exchange->events_end = true;
        return stored && server_reply_broken(&exchange->error, &exchange->events);
    }
    if (news.state == SERVER_DONE) {
        exchange->events_end = true;
        return stored && server_reply_end(&exchange->reply, news.finish, &exchange->events);
    }
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

/* The headers go out when the job has a session; until then it may fail with a status. */
static enum MHD_Result answer_stream(server_exchange *exchange)
{
    server_news news;
    do {
        server_wait(exchange->srv->scheduler, exchange->request.job, SERVER_WAITING, SERVER_LOOK_MS,
                    &news);
        take_counts(exchange, &news);
        if (news.state == SERVER_WAITING) {
            server_news_free(&news);
        }
    } while (news.state == SERVER_WAITING && !is_over(exchange));
    bool begun = news.state == SERVER_RUNNING ||
                 (news.state == SERVER_DONE && news.finish != SERVER_FINISH_FAILED);
    exchange->last_event_ns = server_now_ns();
    bool stored =
        begun && server_reply_role(&exchange->reply, &exchange->events) &&
        server_reply_piece(&exchange->reply, &news.content, &news.reasoning, &exchange->events);
    if (stored && news.state == SERVER_DONE) {
        exchange->events_end = true;
        stored = server_reply_end(&exchange->reply, news.finish, &exchange->events);
    }
    server_news_free(&news);
    struct MHD_Response *response = NULL;
    if (stored) {
        response =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_events, exchange, NULL);
    }
    if (response == NULL) {
        if (!begun) {
            fail_job(exchange, &news);
        } else {
            server_fail(&exchange->error, 503, "overloaded", NULL, "out of memory for the answer");
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

enum MHD_Result server_generate(server_exchange *exchange)
{
    server *srv = exchange->srv;
    server_reply_begin(&exchange->reply, &exchange->request, srv->options->model,
                       srv->info.fingerprint);
    if (!server_submit(srv->scheduler, exchange->request.job)) {
        server_fail(&exchange->error, 503, "overloaded", NULL,
                    "Too many requests wait for a session: try again later.");
        return server_answer_error(exchange);
    }
    exchange->state = SERVER_WAITING;
    return exchange->request.stream ? answer_stream(exchange) : answer_whole(exchange);
}
