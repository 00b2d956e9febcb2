/* SPDX-License-Identifier: MIT */
#include "server_tool_reader.h"

#include <stdlib.h>
#include <string.h>

enum { SHORTEST_TRIGGER = 4, MOST_TRIGGERS = 8 };

/* ---- What calls begin with ---- */

/* Finds each tag of the literal, "<..>" or "[..]". Without tags: its text without the white space
 * around. Ids and numbers end one. */
static uint32_t add_triggers(server_span literal, server_span *out, uint32_t n)
{
    literal = server_span_trim(literal);
    size_t at = 0;
    uint32_t before = n;
    for (size_t i = 0; i < literal.size && n < MOST_TRIGGERS; i++) {
        char c = literal.data[i];
        if (c == '<' || c == '[') {
            at = i;
        }
        bool ends = c == '>' || c == ']' || i + 1 == literal.size;
        if (ends && (literal.data[at] == '<' || literal.data[at] == '[') &&
            i + 1 - at >= SHORTEST_TRIGGER) {
            out[n++] = server_span_cut(literal, at, i + 1);
            at = i + 1 < literal.size ? i + 1 : i;
        }
    }
    if (n == before && literal.size >= SHORTEST_TRIGGER && n < MOST_TRIGGERS) {
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
    return add_triggers(f->call_open, out, add_triggers(f->section_open, out, 0));
}

/* A call begins with a bare object: it can only be told at the beginning of an answer. */
static bool is_bare(const server_tool_format *f)
{
    server_span triggers[MOST_TRIGGERS];
    return f->kind == SERVER_TOOLS_JSON && get_triggers(f, triggers) == 0;
}

/* Where the first trigger begins in the held text; SERVER_TEXT_DIFFERS: nowhere. *kept: how many
 * bytes at the end may begin one. */
static size_t find_trigger(const server_tool_reader *r, size_t *kept)
{
    server_span triggers[MOST_TRIGGERS];
    server_span held = {r->held.data, r->held.size};
    uint32_t n = get_triggers(r->source.format, triggers);
    size_t first = SERVER_TEXT_DIFFERS;
    *kept = 0;
    if (is_bare(r->source.format)) {
        size_t at = server_skip_space(held, 0);
        bool begins =
            !r->has_text && at < held.size && (held.data[at] == '{' || held.data[at] == '[');
        *kept = !r->has_text && at == held.size ? held.size : 0;
        return begins ? at : SERVER_TEXT_DIFFERS;
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

/* ---- The held text ---- */

static void drop(server_tool_reader *r, size_t size)
{
    r->held.size -= size;
    memmove(r->held.data, r->held.data + size, r->held.size);
}

/* Lets the first bytes of the held text go as text. */
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

/* The size without the white space at its end. */
static size_t without_space(const server_tool_reader *r, size_t size)
{
    server_span text = {r->held.data, size};
    while (text.size > 0 && server_is_blank(server_span_cut(text, text.size - 1, text.size))) {
        text.size--;
    }
    return text.size;
}

/* Outside of calls. True in *found: a call may begin with the held text now. */
static bool read_text(server_tool_reader *r, bool ends, cli_buffer *content, bool *found)
{
    size_t kept;
    size_t at = find_trigger(r, &kept);
    *found = at != SERVER_TEXT_DIFFERS;
    if (*found) {
        /* White space before a call is no text, if it is one. */
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

/* What is held is no call. Behind one it is text again; else its first character is text, and a
 * call may begin behind it. */
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

/* Within calls. True in *found: the held text is worth another look. */
static bool read_call(server_tool_reader *r, bool ends, cli_buffer *content, bool *found)
{
    server_span held = {r->held.data, r->held.size};
    server_span closing = server_span_trim(r->source.format->section_close);
    server_tool_call call = {{0}, {NULL, 0, 0}, {NULL, 0, 0}};
    size_t closed = r->has_section && closing.size > 0 ? server_match(held, 0, closing, NULL)
                                                       : SERVER_TEXT_DIFFERS;
    *found = ends || held.size >= r->next_look;
    if (!*found) {
        return true;
    }
    if (closed <= held.size || (ends && r->has_section && server_is_blank(held))) {
        drop(r, closed <= held.size ? closed : held.size);
        r->in_calls = false;
        return true;
    }
    size_t at = r->n_calls == SERVER_MOST_TOOL_CALLS
                    ? SERVER_TEXT_DIFFERS
                    : server_tool_parse(&r->source, held, 0, !r->has_section, ends, &call);
    if (at <= held.size) {
        if (!add_call(r, &call)) {
            server_tool_call_free(&call);
            return false;
        }
        drop(r, at);
        r->has_section = true;
        r->next_look = 0;
        return true;
    }
    server_tool_call_free(&call);
    if (!ends && (at == SERVER_TEXT_SHORT || closed == SERVER_TEXT_SHORT)) {
        r->next_look = held.size + 1 + held.size / 16;
        *found = false;
        return true;
    }
    if (closed == SERVER_TEXT_SHORT) {
        drop(r, held.size); /* the section's end was cut off */
    }
    return give_up(r, content);
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
    while (found && stored && r->held.size > 0 && !(r->only_one && r->n_calls > 0)) {
        stored =
            r->in_calls ? read_call(r, ends, content, &found) : read_text(r, ends, content, &found);
    }
    if (r->only_one && r->n_calls > 0) {
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
