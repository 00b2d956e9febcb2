/* SPDX-License-Identifier: MIT */
/* Writes answers of /v1/responses as items: reasoning, text and calls. A stream opens each item,
 * sends it in pieces and closes it; its last event repeats the whole answer. */
#include <stdio.h>
#include <string.h>

#include "cli_json.h"
#include "server_reply.h"

/* ---- Items ---- */

static uint32_t last_index(const server_reply *reply)
{
    return reply->n_items > 0 ? reply->n_items - 1 : 0;
}

static const struct {
    const char *prefix, *type, *part;
} kinds[] = {
    [SERVER_ITEM_REASONING] = {"rs", "reasoning", "reasoning_text"},
    [SERVER_ITEM_TEXT] = {"msg", "message", "output_text"},
    [SERVER_ITEM_CALL] = {"fc", "function_call", NULL},
};

/* Adds an item's id, which is made from the answer's id and the item's index. */
static void put_item_id(struct json_object *object, const char *key, const server_reply *reply,
                        uint32_t index)
{
    char id[64];
    snprintf(id, sizeof id, "%s_%.32s%u", kinds[reply->items[index].kind].prefix,
             reply->id + strcspn(reply->id, "_") + 1, index);
    server_put_text(object, key, id);
}

static const cli_buffer *text_of(const server_reply *reply, const server_item *item)
{
    const server_choice *answer = &reply->answers[0];
    return item->kind == SERVER_ITEM_REASONING ? &answer->reasoning : &answer->content;
}

static struct json_object *item_text(const server_reply *reply, const server_item *item)
{
    const cli_buffer *text = text_of(reply, item);
    return cli_json_new_text(item->to > item->from ? text->data + item->from : "",
                             item->to - item->from);
}

/* Creates a content part of an item, with this text. */
static struct json_object *new_part(const server_item *item, struct json_object *text)
{
    struct json_object *part = json_object_new_object();
    server_put_text(part, "type", kinds[item->kind].part);
    cli_json_put(part, "text", text);
    if (item->kind == SERVER_ITEM_TEXT) {
        cli_json_put(part, "annotations", json_object_new_array());
        cli_json_put(part, "logprobs", json_object_new_array());
    }
    return part;
}

static struct json_object *new_item(const server_reply *reply, uint32_t index, bool ended)
{
    const server_item *item = &reply->items[index];
    struct json_object *object = json_object_new_object();
    struct json_object *content = json_object_new_array();
    put_item_id(object, "id", reply, index);
    server_put_text(object, "type", kinds[item->kind].type);
    server_put_text(object, "status", ended ? "completed" : "in_progress");
    if (item->kind == SERVER_ITEM_CALL) {
        const server_tool_call *call = &reply->answers[0].tools.calls[item->call];
        cli_json_text(object, "call_id", call->id);
        cli_json_put(object, "name", server_text_from(&call->name, 0));
        cli_json_put(object, "arguments",
                     ended ? server_text_from(&call->arguments, 0) : json_object_new_string(""));
        json_object_put(content);
        return object;
    }
    if (ended) {
        cli_json_append(content, new_part(item, item_text(reply, item)));
    }
    if (item->kind == SERVER_ITEM_TEXT) {
        server_put_text(object, "role", "assistant");
    } else {
        cli_json_put(object, "summary", json_object_new_array());
    }
    cli_json_put(object, "content", content);
    return object;
}

/* ---- The answer ---- */

static struct json_object *new_usage(const server_reply *reply)
{
    struct json_object *usage = json_object_new_object();
    struct json_object *read = json_object_new_object();
    struct json_object *written = json_object_new_object();
    uint64_t n_written = server_reply_written(reply);
    cli_json_u64(read, "cached_tokens", reply->n_cached);
    cli_json_u64(written, "reasoning_tokens", 0);
    cli_json_u64(usage, "input_tokens", reply->n_prompt);
    cli_json_put(usage, "input_tokens_details", read);
    cli_json_u64(usage, "output_tokens", n_written);
    cli_json_put(usage, "output_tokens_details", written);
    cli_json_u64(usage, "total_tokens", reply->n_prompt + n_written);
    return usage;
}

/* Returns the tools as this interface writes them: name, description and parameters stand beside
 * "type", not within "function". */
static struct json_object *flat_tools(struct json_object *tools)
{
    struct json_object *flat = json_object_new_array();
    for (size_t i = 0; tools != NULL && i < json_object_array_length(tools); i++) {
        struct json_object *function = NULL;
        struct json_object *tool = json_object_new_object();
        json_object_object_get_ex(json_object_array_get_idx(tools, i), "function", &function);
        server_put_text(tool, "type", "function");
        json_object_object_foreach(function, key, value)
        {
            cli_json_put(tool, key, json_object_get(value));
        }
        if (!json_object_object_get_ex(function, "strict", NULL)) {
            cli_json_put(tool, "strict", json_object_new_boolean(false));
        }
        cli_json_append(flat, tool);
    }
    return flat;
}

static void put_settings(struct json_object *object, const server_reply *reply)
{
    static const char *const unset[] = {"error", "instructions", "user"};
    const server_choice *answer = &reply->answers[0];
    struct json_object *text = json_object_new_object();
    struct json_object *format = json_object_new_object();
    for (size_t i = 0; i < sizeof unset / sizeof unset[0]; i++) {
        cli_json_null(object, unset[i]);
    }
    if (reply->previous[0] == '\0') {
        cli_json_null(object, "previous_response_id");
    } else {
        cli_json_text(object, "previous_response_id", reply->previous);
    }
    if (reply->job->max_tokens == UINT64_MAX) {
        cli_json_null(object, "max_output_tokens");
    } else {
        cli_json_u64(object, "max_output_tokens", reply->job->max_tokens);
    }
    cli_json_real(object, "temperature", (double)reply->job->sampling.temperature);
    cli_json_real(object, "top_p", (double)reply->job->sampling.top_p);
    cli_json_put(object, "parallel_tool_calls", json_object_new_boolean(!answer->tools.only_one));
    server_put_text(object, "tool_choice", "auto");
    cli_json_put(object, "tools", flat_tools(answer->tools.source.tools));
    server_put_text(format, "type", "text");
    cli_json_put(text, "format", format);
    cli_json_put(object, "text", text);
    server_put_text(object, "truncation", "disabled");
    cli_json_put(object, "store", json_object_new_boolean(reply->answer != NULL));
    cli_json_put(object, "metadata", json_object_new_object());
}

static struct json_object *new_response(const server_reply *reply, bool ended)
{
    struct json_object *object = json_object_new_object();
    struct json_object *output = json_object_new_array();
    bool is_cut = ended && reply->answers[0].finish == SERVER_FINISH_LENGTH;
    server_put_text(object, "id", reply->id);
    server_put_text(object, "object", "response");
    cli_json_put(object, "created_at", json_object_new_int64(reply->created));
    server_put_text(object, "status", is_cut ? "incomplete" : ended ? "completed" : "in_progress");
    server_put_text(object, "model", reply->model);
    for (uint32_t i = 0; i < reply->n_items && ended; i++) {
        cli_json_append(output, new_item(reply, i, true));
    }
    cli_json_put(object, "output", output);
    if (is_cut) {
        struct json_object *details = json_object_new_object();
        server_put_text(details, "reason", "max_output_tokens");
        cli_json_put(object, "incomplete_details", details);
    } else {
        cli_json_null(object, "incomplete_details");
    }
    put_settings(object, reply);
    if (ended) {
        cli_json_put(object, "usage", new_usage(reply));
    } else {
        cli_json_null(object, "usage");
    }
    return object;
}

static void add_item(server_reply *reply, server_item_kind kind, size_t from, size_t to,
                     uint32_t call)
{
    if (reply->n_items < SERVER_MOST_ITEMS) {
        reply->items[reply->n_items++] = (server_item){kind, from, to, call};
    }
}

/* Keeps the answer, so that later requests can refer to it. If there is no room, it is not kept,
 * and its member "store" says so. */
static void keep(server_reply *reply)
{
    cli_buffer text = {NULL, 0, 0};
    if (reply->answer == NULL) {
        return;
    }
    struct json_object *output = json_object_new_array();
    for (uint32_t i = 0; i < reply->n_items; i++) {
        cli_json_append(output, new_item(reply, i, true));
    }
    bool kept = server_append_json(output, &text) &&
                server_kept_finish(reply->kept, reply->answer, reply->id, text.data + 1,
                                   text.size - 2); /* without the array's brackets */
    reply->answer = kept ? reply->answer : NULL;
    cli_buffer_free(&text);
}

static bool whole(const server_reply *reply, cli_buffer *out)
{
    server_reply *own = (server_reply *)reply; /* its list of items is filled in here */
    const server_choice *answer = &reply->answers[0];
    if (answer->reasoning.size > 0) {
        add_item(own, SERVER_ITEM_REASONING, 0, answer->reasoning.size, 0);
    }
    if (answer->content.size > 0 || (answer->tools.n_calls == 0 && answer->reasoning.size == 0)) {
        add_item(own, SERVER_ITEM_TEXT, 0, answer->content.size, 0);
    }
    for (uint32_t i = 0; i < answer->tools.n_calls; i++) {
        add_item(own, SERVER_ITEM_CALL, 0, 0, i);
    }
    keep(own);
    return server_append_json(new_response(reply, true), out);
}

/* ---- Streams ---- */

static struct json_object *new_event(server_reply *reply, const char *type)
{
    struct json_object *event = json_object_new_object();
    server_put_text(event, "type", type);
    cli_json_u64(event, "sequence_number", reply->n_events++);
    return event;
}

static bool append_response(server_reply *reply, const char *type, bool ended, cli_buffer *out)
{
    struct json_object *event = new_event(reply, type);
    cli_json_put(event, "response", new_response(reply, ended));
    return server_append_event(type, event, out);
}

/* Appends an event of this type about the last item. `value` becomes its member `key`; for the
 * key "item" it is the item itself. */
static bool append_about(server_reply *reply, const char *type, const char *key,
                         struct json_object *value, cli_buffer *out)
{
    uint32_t index = last_index(reply);
    bool is_item = strcmp(key, "item") == 0;
    struct json_object *event = new_event(reply, type);
    cli_json_u64(event, "output_index", index);
    if (!is_item) {
        put_item_id(event, "item_id", reply, index);
        if (reply->items[index].kind != SERVER_ITEM_CALL) {
            cli_json_u64(event, "content_index", 0);
        }
        if (reply->items[index].kind == SERVER_ITEM_TEXT && strcmp(key, "part") != 0) {
            cli_json_put(event, "logprobs", json_object_new_array());
        }
    }
    cli_json_put(event, key, value);
    return server_append_event(type, event, out);
}

static bool begin(server_reply *reply, cli_buffer *out)
{
    return append_response(reply, "response.created", false, out) &&
           append_response(reply, "response.in_progress", false, out);
}

static bool close_item(server_reply *reply, cli_buffer *out)
{
    char done[48];
    if (!reply->item_open) {
        return true;
    }
    const server_item *item = &reply->items[last_index(reply)];
    reply->item_open = false;
    if (item->kind == SERVER_ITEM_CALL) {
        const server_tool_call *call = &reply->answers[0].tools.calls[item->call];
        return append_about(reply, "response.function_call_arguments.done", "arguments",
                            server_text_from(&call->arguments, 0), out) &&
               append_about(reply, "response.output_item.done", "item",
                            new_item(reply, last_index(reply), true), out);
    }
    snprintf(done, sizeof done, "response.%s.done", kinds[item->kind].part);
    return append_about(reply, done, "text", item_text(reply, item), out) &&
           append_about(reply, "response.content_part.done", "part",
                        new_part(item, item_text(reply, item)), out) &&
           append_about(reply, "response.output_item.done", "item",
                        new_item(reply, last_index(reply), true), out);
}

/* Opens a new item of this kind, unless the last item is of this kind and still open. */
static bool open_item(server_reply *reply, server_item_kind kind, size_t from, cli_buffer *out)
{
    if (reply->item_open && reply->items[last_index(reply)].kind == kind) {
        return true;
    }
    if (!close_item(reply, out) || reply->n_items == SERVER_MOST_ITEMS) {
        return false;
    }
    add_item(reply, kind, from, from, 0);
    reply->item_open = true;
    const server_item *item = &reply->items[last_index(reply)];
    return append_about(reply, "response.output_item.added", "item",
                        new_item(reply, last_index(reply), false), out) &&
           append_about(reply, "response.content_part.added", "part",
                        new_part(item, json_object_new_string("")), out);
}

static bool append_text(server_reply *reply, server_item_kind kind, const cli_buffer *text,
                        size_t told, cli_buffer *out)
{
    char delta[48];
    if (text->size <= told) {
        return true;
    }
    if (!open_item(reply, kind, told, out)) {
        return false;
    }
    reply->items[last_index(reply)].to = text->size;
    snprintf(delta, sizeof delta, "response.%s.delta", kinds[kind].part);
    return append_about(reply, delta, "delta", server_text_from(text, told), out);
}

/* Appends the events of a call: the item's beginning if it is new, the part of its arguments that
 * has not been sent, and the item's end if the call is complete. */
static bool append_call(server_reply *reply, uint32_t index, bool is_new, size_t told, bool ends,
                        cli_buffer *out)
{
    const server_tool_call *call = &reply->answers[0].tools.calls[index];
    if (is_new) {
        if (!close_item(reply, out) || reply->n_items == SERVER_MOST_ITEMS) {
            return false;
        }
        add_item(reply, SERVER_ITEM_CALL, 0, 0, index);
        reply->item_open = true;
        if (!append_about(reply, "response.output_item.added", "item",
                          new_item(reply, last_index(reply), false), out)) {
            return false;
        }
    }
    return (call->arguments.size <= told ||
            append_about(reply, "response.function_call_arguments.delta", "delta",
                         server_text_from(&call->arguments, told), out)) &&
           (!ends || close_item(reply, out));
}

static bool piece(server_reply *reply, uint32_t index, cli_buffer *out)
{
    const server_choice *answer = &reply->answers[index];
    bool stored = append_text(reply, SERVER_ITEM_REASONING, &answer->reasoning,
                              answer->reasoning_told, out) &&
                  append_text(reply, SERVER_ITEM_TEXT, &answer->content, answer->content_told, out);
    size_t told;
    for (uint32_t i = server_next_call(answer, &told); i < answer->tools.n_calls && stored; i++) {
        bool is_new = i >= answer->calls_told;
        bool ends = i + 1 < answer->tools.n_calls || !answer->tools.is_open;
        stored = append_call(reply, i, is_new, is_new ? 0 : told, ends, out);
    }
    return stored;
}

static bool finish(server_reply *reply, uint32_t index, cli_buffer *out)
{
    bool empty = reply->n_items == 0;
    (void)index;
    return (!empty || open_item(reply, SERVER_ITEM_TEXT, 0, out)) && close_item(reply, out);
}

static bool end(server_reply *reply, cli_buffer *out)
{
    bool is_cut = reply->answers[0].finish == SERVER_FINISH_LENGTH;
    keep(reply);
    return append_response(reply, is_cut ? "response.incomplete" : "response.completed", true, out);
}

static bool broken(const server_error *error, cli_buffer *out)
{
    struct json_object *event = json_object_new_object();
    server_put_text(event, "type", "error");
    if (error->code != NULL) {
        server_put_text(event, "code", error->code);
    } else {
        cli_json_null(event, "code");
    }
    cli_json_text(event, "message", error->message);
    cli_json_null(event, "param");
    cli_json_u64(event, "sequence_number", 0);
    return server_append_event("error", event, out);
}

const server_dialect server_responses = {
    .whole = whole,
    .begin = begin,
    .piece = piece,
    .finish = finish,
    .end = end,
    .broken = broken,
};
