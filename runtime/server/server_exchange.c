/* SPDX-License-Identifier: MIT */
/* What the addresses do alike: answering, and letting go of a body. */
#include <string.h>
#include <time.h>

#include "server_http.h"

uint64_t server_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

enum MHD_Result server_answer(server_exchange *exchange, unsigned status, const char *type,
                              cli_buffer *text)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        text->size, text->size == 0 ? (void *)"" : (void *)text->data, MHD_RESPMEM_MUST_COPY);
    cli_buffer_free(text);
    if (response == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (strncmp(type, "text/html", 9) == 0) {
        /* The page is one file, talks to its own server alone, and is shown in no other page. */
        MHD_add_response_header(response, "Content-Security-Policy",
                                "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                "'unsafe-inline'; connect-src 'self'; img-src data:; form-action "
                                "'none'; base-uri 'none'; frame-ancestors 'none'");
        MHD_add_response_header(response, "Cache-Control", "no-cache");
    }
    if (status == 503) {
        MHD_add_response_header(response, "Retry-After", "1");
    }
    if (status == 401) {
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    }
    if (exchange->closes || atomic_load(&exchange->srv->draining)) {
        MHD_add_response_header(response, "Connection", "close");
    }
    exchange->status = status;
    enum MHD_Result result = MHD_queue_response(exchange->connection, status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result server_answer_error(server_exchange *exchange)
{
    cli_buffer text = {NULL, 0, 0};
    bool is_messages = exchange->path != NULL && strncmp(exchange->path, "/v1/messages", 12) == 0;
    bool stored = is_messages ? server_append_json(server_messages_error(&exchange->error), &text)
                              : server_reply_error(&exchange->error, &text);
    if (!stored) {
        cli_buffer_free(&text);
        return MHD_NO;
    }
    return server_answer(exchange, exchange->error.status, "application/json", &text);
}

void server_forget_body(server_exchange *exchange)
{
    server_request *request = &exchange->request;
    json_object_put(request->body);
    json_object_put(request->converted);
    request->converted = request->tool_name = NULL;
    request->body = request->messages = request->template_arguments = NULL;
    request->system = request->input = NULL;
    request->prompt = request->content = request->tokens = NULL;
    uint64_t kept = exchange->body.size * (SERVER_BODY_COPIES / 2); /* the prompt and its tokens */
    if (exchange->body.data != NULL && kept < exchange->charged) {
        server_memory_release(&exchange->srv->memory, &exchange->charged, exchange->charged - kept);
    }
    cli_buffer_free(&exchange->body);
}
