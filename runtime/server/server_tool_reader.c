/* SPDX-License-Identifier: MIT */
#include "server_tool_reader.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TRIGGERS = 24 };

/* ---- Triggers: the texts by which the beginning of a call is recognized ---- */

/* Adds each tag ("<..>" or "[..]") of the literal as a trigger. A literal without tags is a
 * trigger as a whole, without white space around it. A trigger ends before an id or a number. */
static uint32_t add_triggers(server_span literal, server_span *out, uint32_t n)
{
    literal = server_span_trim(literal);
    size_t at = 0;
    uint32_t before = n;
    for (size_t i = 0; i < literal.size && n + 1 < MOST_TRIGGERS; i++) {
        char c = literal.data[i];
        if (c == '<' || c == '[') {
            at = i;
        }
        bool ends = c == '>' || c == ']' || i + 1 == literal.size;
        if (ends && (literal.data[at] == '<' || literal.data[at] == '[') &&
            i + 1 - at >= SERVER_SHORTEST_TRIGGER) {
            /* The text before the first tag belongs to the call, too, so it becomes part of the
             * trigger, unless it has an id. */
            bool whole = n == before && memchr(literal.data, SERVER_TOOL_ID, i) == NULL &&
                         memchr(literal.data, SERVER_TOOL_NUMBER, i) == NULL;
            if (whole && at > 0) {
                out[n++] = server_span_cut(literal, 0, i + 1);
            }
            out[n++] = server_span_cut(literal, at, i + 1);
            at = i + 1 < literal.size ? i + 1 : i;
        }
    }
    if (n == before && literal.size >= SERVER_SHORTEST_TRIGGER && n < MOST_TRIGGERS) {
        out[n++] = literal;
    }
    return n;
}

static uint32_t get_triggers(const server_tool_format *f, server_span *out)
{
    if (f->kind == SERVER_TOOLS_CHANNELS) {
        out[0] = server_span_of("<|start|>");
        return 1;
    }
    uint32_t n = add_triggers(f->may_open, out, add_triggers(f->section_open, out, 0));
    return add_triggers(f->call_open, out, n);
}

/* Whether a call without a mark may begin here: a JSON object with a name, or a list of calls of
 * known tools. SERVER_TEXT_SHORT: more text is needed to decide. */
static size_t begins_bare(const server_tool_reader *r, server_span held, size_t at)
{
    static const char *const keys[] = {"{\"name\"", "{\"type\"", "{\"function\"", "[{\"name\""};
    const server_tool_source *source = &r->source;
    size_t found = SERVER_TEXT_DIFFERS;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && found != at; i++) {
        size_t end = server_match(held, at, server_span_of(keys[i]), NULL);
        found = end <= held.size ? at : end == SERVER_TEXT_SHORT ? end : found;
    }
    if (found == at || source->format->kind != SERVER_TOOLS_LITERALS || held.data[at] != '[') {
        return found;
    }
    size_t name = server_skip_space(held, at + 1), end = server_name_end(held, name);
    if (end == held.size) {
        return end - name <= SERVER_LONGEST_TOOL_NAME ? SERVER_TEXT_SHORT : found;
    }
    return held.data[end] == '(' &&
                   server_tool_is_known(source->tools, server_span_cut(held, name, end))
               ? at
               : found;
}

/* Returns where a call without a mark may begin. At the beginning of an answer this may be any
 * object. */
static size_t find_bare(const server_tool_reader *r, server_span held, size_t *kept)
{
    size_t begin = server_skip_space(held, 0);
    if (!r->has_text && begin == held.size) {
        *kept = held.size;
    } else if (!r->has_text && held.data[begin] == '{') {
        return begin;
    }
    for (size_t i = begin; i < held.size; i++) {
        size_t at = held.data[i] == '{' || held.data[i] == '[' ? begins_bare(r, held, i)
                                                               : SERVER_TEXT_DIFFERS;
        if (at == SERVER_TEXT_SHORT) {
            *kept = *kept > held.size - i ? *kept : held.size - i;
        }
        if (at != SERVER_TEXT_DIFFERS) {
            return at == SERVER_TEXT_SHORT ? SERVER_TEXT_DIFFERS : i;
        }
    }
    return SERVER_TEXT_DIFFERS;
}

/* Returns where the first trigger begins in the held text; SERVER_TEXT_DIFFERS if there is none.
 * Sets *kept to the number of bytes at the end that may be the beginning of a trigger. */
static size_t find_trigger(const server_tool_reader *r, size_t *kept)
{
    server_span triggers[MOST_TRIGGERS];
    server_span held = {r->held.data, r->held.size};
    uint32_t n = get_triggers(r->source.format, triggers);
    size_t first = SERVER_TEXT_DIFFERS;
    *kept = 0;
    if (server_tool_is_bare(r->source.format)) {
        first = find_bare(r, held, kept);
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *found = memmem(held.data, held.size, triggers[i].data, triggers[i].size);
        size_t at = found == NULL ? SERVER_TEXT_DIFFERS : (size_t)(found - held.data);
        first = at < first ? at : first;
        size_t most = triggers[i].size - 1 < held.size ? triggers[i].size - 1 : held.size;
        for (size_t size = most; size > *kept; size--) {
            if (memcmp(held.data + held.size - size, triggers[i].data, size) == 0) {
                *kept = size;
            }
        }
    }
    return first;
}

/* ---- The text that is held back ---- */

static void drop(server_tool_reader *r, size_t size)
{
    r->held.size -= size;
    memmove(r->held.data, r->held.data + size, r->held.size);
}

/* Moves the first `size` bytes of the held text to the content. */
static bool let_go(server_tool_reader *r, size_t size, cli_buffer *content)
{
    server_span text = {r->held.data, size};
    if (size == 0) {
        return true;
    }
    if (!cli_buffer_append(content, text.data, text.size)) {
        return false;
    }
    r->has_text |= !server_is_blank(text);
    drop(r, size);
    return true;
}

/* Returns `size` without the white space at the end of those bytes. */
static size_t without_space(const server_tool_reader *r, size_t size)
{
    server_span text = {r->held.data, size};
    while (text.size > 0 && server_is_blank(server_span_cut(text, text.size - 1, text.size))) {
        text.size--;
    }
    return text.size;
}

/* Reads text outside of calls. Sets *found if a call may begin at the start of the held text
 * now. */
static bool read_text(server_tool_reader *r, bool ends, cli_buffer *content, bool *found)
{
    size_t kept;
    size_t at = find_trigger(r, &kept);
    *found = at != SERVER_TEXT_DIFFERS;
    if (*found) {
        /* If this is a call, the white space before it does not belong to the content. */
        if (!let_go(r, without_space(r, at), content)) {
            return false;
        }
        r->in_calls = true;
        r->has_section = false;
        r->next_look = 0;
        return true;
    }
    return let_go(r, ends ? r->held.size : without_space(r, r->held.size - kept), content);
}

static bool add_call(server_tool_reader *r, const server_tool_call *call)
{
    server_tool_call *grown = realloc(r->calls, (r->n_calls + 1) * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    r->calls = grown;
    r->calls[r->n_calls++] = *call;
    return true;
}

/* The held text turned out not to be a call. Behind an earlier call, all of it becomes content.
 * Otherwise its first character does, and another call may begin behind that. */
static bool give_up(server_tool_reader *r, cli_buffer *content)
{
    size_t size = server_skip_space((server_span){r->held.data, r->held.size}, 0) + 1;
    r->in_calls = false;
    if (r->has_section) {
        return true;
    }
    size = size < r->held.size ? size : r->held.size;
    while (size < r->held.size && ((unsigned char)r->held.data[size] & 0xC0) == 0x80) {
        size++;
    }
    return let_go(r, size, content);
}

/* ---- A call that has not ended ---- */

/* Reports the part of a call that has arrived, because streams send arguments as they arrive. */
static bool begin_call(server_tool_reader *r, server_tool_call *call)
{
    server_span name = {call->name.data, call->name.size};
    if (!r->streams || call->arguments.size == 0 || !server_tool_is_known(r->source.tools, name)) {
        return true;
    }
    if (!r->is_open) {
        server_tool_make_id(call);
        r->is_open = add_call(r, call);
        *call = (server_tool_call){{0}, {NULL, 0, 0}, {NULL, 0, 0}};
        return r->is_open;
    }
    cli_buffer *told = &r->calls[r->n_calls - 1].arguments;
    if (call->arguments.size > told->size &&
        memcmp(call->arguments.data, told->data, told->size) == 0) {
        return cli_buffer_append(told, call->arguments.data + told->size,
                                 call->arguments.size - told->size);
    }
    return true;
}

/* Reports a complete call. */
static bool end_call(server_tool_reader *r, server_tool_call *call)
{
    if (!r->is_open) {
        bool added = add_call(r, call);
        *call = (server_tool_call){{0}, {NULL, 0, 0}, {NULL, 0, 0}};
        return added;
    }
    bool stored = begin_call(r, call);
    r->is_open = false;
    return stored;
}

/* ---- Calls ---- */

/* Matches the literal that closes the section of calls, and returns the position behind it. Sets
 * *last if nothing may follow in this section. */
static size_t match_closing(const server_tool_reader *r, server_span held, bool *last)
{
    const server_tool_format *f = r->source.format;
    const server_span closings[] = {f->may_close, server_span_trim(f->section_close),
                                    server_span_of(server_tool_is_bare(f) ? "]" : "")};
    size_t closed = SERVER_TEXT_DIFFERS;
    *last = f->may_close.size == 0;
    for (size_t i = 0; i < 3 && r->has_section && closed > held.size; i++) {
        size_t end =
            closings[i].size > 0 ? server_match(held, 0, closings[i], NULL) : SERVER_TEXT_DIFFERS;
        closed = end == SERVER_TEXT_DIFFERS ? closed : end;
        *last |= i == 0 && end <= held.size;
    }
    return closed;
}

/* Parses the call at the start of the held text. Returns the position behind it, or a result as
 * server_tool_parse() does. */
static size_t look(server_tool_reader *r, server_span held, bool ends, bool *stored)
{
    server_tool_call call = {{0}, {NULL, 0, 0}, {NULL, 0, 0}};
    size_t at = r->n_calls - r->is_open == SERVER_MOST_TOOL_CALLS
                    ? SERVER_TEXT_DIFFERS
                    : server_tool_parse(&r->source, held, 0, !r->has_section, ends, &call);
    if (at <= held.size) {
        *stored = end_call(r, &call);
    } else if (at == SERVER_TEXT_SHORT) {
        *stored = begin_call(r, &call);
    }
    server_tool_call_free(&call);
    return at;
}

/* Reads text within a section of calls. Sets *found if the held text should be examined again. */
static bool read_call(server_tool_reader *r, bool ends, cli_buffer *content, bool *found)
{
    server_span held = {r->held.data, r->held.size};
    bool stored = true;
    *found = ends || held.size >= r->next_look;
    if (!*found) {
        return true;
    }
    bool last;
    size_t closed = match_closing(r, held, &last);
    if (closed <= held.size || (ends && r->has_section && server_is_blank(held))) {
        drop(r, closed <= held.size ? closed : held.size);
        r->in_calls = !last;
        return true;
    }
    size_t at = look(r, held, ends, &stored);
    if (!stored) {
        return false;
    }
    if (at <= held.size) {
        drop(r, at);
        r->has_section = true;
        r->next_look = 0;
        return true;
    }
    if (!ends && (at == SERVER_TEXT_SHORT || closed == SERVER_TEXT_SHORT)) {
        r->next_look = held.size + 1 + held.size / 16;
        *found = false;
        return true;
    }
    if (r->is_open) { /* a part of the call was reported already, and stays */
        r->is_open = r->in_calls = false;
        r->is_broken = true;
        return true;
    }
    if (closed == SERVER_TEXT_SHORT) {
        drop(r, held.size); /* the section's end was cut off */
    }
    return give_up(r, content);
}

/* After a call became invalid although a part of it had been reported: drops the text up to the
 * literal that closes calls. */
static void skip_broken(server_tool_reader *r, bool ends, bool *found)
{
    const server_tool_format *f = r->source.format;
    const server_span closings[] = {
        server_span_trim(f->section_close), server_span_trim(f->call_close),
        server_span_of(f->kind == SERVER_TOOLS_CHANNELS ? "<|call|>" : "")};
    server_span held = {r->held.data, r->held.size}, closing = {"", 0};
    for (size_t i = 0; i < 3 && closing.size == 0; i++) {
        closing = closings[i];
    }
    const char *at = closing.size == 0 ? held.data + held.size
                                       : memmem(held.data, held.size, closing.data, closing.size);
    *found = at != NULL;
    r->is_broken = at == NULL && !ends;
    drop(r, at != NULL ? (size_t)(at - held.data) + closing.size
            : ends     ? held.size
                       : held.size - server_begun(held, closing));
}

bool server_tool_reader_full(const server_tool_reader *r)
{
    return r->only_one && r->n_calls > r->is_open;
}

bool server_tool_read(server_tool_reader *r, const char *text, size_t size, bool ends,
                      cli_buffer *content)
{
    if (r->source.format == NULL) {
        return size == 0 || cli_buffer_append(content, text, size);
    }
    if (size > 0 && !cli_buffer_append(&r->held, text, size)) {
        return false;
    }
    bool found = true;
    bool stored = true;
    while (found && stored && r->held.size > 0 && !server_tool_reader_full(r)) {
        if (r->is_broken) {
            skip_broken(r, ends, &found);
            continue;
        }
        stored =
            r->in_calls ? read_call(r, ends, content, &found) : read_text(r, ends, content, &found);
    }
    if (server_tool_reader_full(r)) {
        r->held.size = 0;
    }
    return stored;
}

void server_tool_reader_free(server_tool_reader *r)
{
    for (uint32_t i = 0; i < r->n_calls; i++) {
        server_tool_call_free(&r->calls[i]);
    }
    free(r->calls);
    cli_buffer_free(&r->held);
    r->calls = NULL;
    r->n_calls = 0;
}
