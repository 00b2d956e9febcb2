/* SPDX-License-Identifier: MIT */
/* What all addresses (paths) of the server have in common: sending an answer, and freeing a
 * request's body. */
#include <stdlib.h>
#include <string.h>

#include "server_http.h"
#include "server_page.h"

void server_add_headers(server_exchange *exchange, struct MHD_Response *response, unsigned status,
                        const char *type)
{
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (exchange->request.dropped[0] != '\0') {
        MHD_add_response_header(response, "X-Schema-Dropped", exchange->request.dropped);
    }
    if (strncmp(type, "text/html", 9) == 0) {
        /* The policy lets the page load nothing from elsewhere, connect only to its own server, and
         * not be embedded in other pages. */
        MHD_add_response_header(response, "Content-Security-Policy", server_page_policy);
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
}

/* Charges the text to the request's memory, unless it fits into the connection's own share. False:
 * there is no memory for it. */
static bool charge_text(server_exchange *exchange, cli_buffer *text)
{
    char *fitting = text->data == NULL ? NULL : realloc(text->data, text->size + 1);
    if (fitting != NULL) {
        text->data = fitting;
        text->capacity = text->size + 1;
    }
    return text->capacity <= SERVER_ANSWER_BYTES ||
           server_memory_charge(&exchange->srv->memory, &exchange->kept, text->capacity,
                                &exchange->error);
}

enum MHD_Result server_answer(server_exchange *exchange, unsigned status, const char *type,
                              cli_buffer *text)
{
    if (!charge_text(exchange, text)) {
        cli_buffer_free(text);
        return server_answer_error(exchange);
    }
    struct MHD_Response *response =
        text->size == 0 ? MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT)
                        : MHD_create_response_from_buffer(text->size, (void *)text->data,
                                                          MHD_RESPMEM_MUST_FREE);
    if (response == NULL || text->size == 0) {
        cli_buffer_free(text);
    }
    *text = (cli_buffer){NULL, 0, 0};
    if (response == NULL) {
        return MHD_NO;
    }
    server_add_headers(exchange, response, status, type);
    exchange->status = status;
    enum MHD_Result result = MHD_queue_response(exchange->connection, status, response);
    MHD_destroy_response(response);
    return result;
}

bool server_in_workshop(server_exchange *exchange, server_work work)
{
    server *srv = exchange->srv;
    server_task task = {.work = work,
                        .exchange = exchange,
                        .allowance = &exchange->request.allowance,
                        .client = exchange->client,
                        .socket = exchange->socket,
                        .giving_up = &srv->giving_up};
    return server_workshop_do(&srv->workshop, &task) ||
           (exchange->error.status == 0 &&
            server_fail(&exchange->error, 503, "overloaded", NULL, "%s",
                        atomic_load(&srv->giving_up) ? "The server is shutting down."
                                                     : "the client has left"));
}

enum MHD_Result server_answer_error(server_exchange *exchange)
{
    cli_buffer text = {NULL, 0, 0};
    bool is_messages = exchange->path != NULL && strncmp(exchange->path, "/v1/messages", 12) == 0;
    bool is_ollama = exchange->path != NULL && strncmp(exchange->path, "/api/", 5) == 0;
    bool stored = is_ollama     ? server_append_json(server_ollama_error(&exchange->error), &text)
                  : is_messages ? server_append_json(server_messages_error(&exchange->error), &text)
                                : server_reply_error(&exchange->error, &text);
    if (!stored) {
        cli_buffer_free(&text);
        return MHD_NO;
    }
    cli_buffer_free(&exchange->events);
    return server_answer(exchange, exchange->error.status, "application/json", &text);
}

void server_forget_body(server_exchange *exchange)
{
    server_request *request = &exchange->request;
    json_object_put(request->body);
    json_object_put(request->converted);
    request->converted = request->tool_name = request->allowed = request->form = NULL;
    request->body = request->messages = request->template_arguments = NULL;
    request->system = request->input = NULL;
    request->texts = request->suffix = request->begun = request->extra = NULL;
    request->prompt = request->content = request->tokens = NULL;
    cli_buffer_free(&exchange->body);
    server_memory_release(&exchange->srv->memory, &exchange->charged, exchange->charged);
}
