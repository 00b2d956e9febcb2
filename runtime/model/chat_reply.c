/* SPDX-License-Identifier: MIT */
/* A mark may be one token, possibly a control token, or a text that comes in pieces. Text is
 * therefore held back while it may be the beginning of the awaited mark.
 *
 *    token -> text -> held --mark found--> the other part
 *                       |--- no mark ----> out
 *
 * gpt-oss writes messages with headers: <|channel|>analysis<|message|>text<|end|>. Kimi-K3 also
 * writes marks around its answer, which are dropped. */
#include "runtime/model/chat_reply.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static void append(moe_reply_reader *r, moe_reply_text *text, const char *data, size_t size)
{
    if (text->size + size + 1 > text->capacity) {
        size_t capacity = (text->size + size + 1) * 2;
        char *grown = realloc(text->data, capacity);
        if (grown == NULL) {
            r->no_memory = true;
            return;
        }
        text->data = grown;
        text->capacity = capacity;
    }
    memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = '\0';
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void emit(moe_reply_reader *r, const char *data, size_t size)
{
    moe_reply_text *out = &r->out[r->part];
    while (size > 0 && r->skips_space && is_space(*data)) {
        data++;
        size--;
    }
    if (size == 0) {
        return;
    }
    r->skips_space = false;
    if (r->part != MOE_REPLY_REASONING) {
        append(r, out, data, size);
        return;
    }
    size_t kept = size;
    while (kept > 0 && is_space(data[kept - 1])) {
        kept--;
    }
    if (kept > 0) {
        append(r, out, r->spaces.size > 0 ? r->spaces.data : "", r->spaces.size);
        append(r, out, data, kept);
        r->spaces.size = 0;
    }
    append(r, &r->spaces, data + kept, size - kept);
}

static void enter(moe_reply_reader *r, moe_reply_part part)
{
    r->skips_space = part == MOE_REPLY_REASONING || r->part == MOE_REPLY_REASONING ||
                     (r->skips_space && part != MOE_REPLY_CONTENT);
    r->spaces.size = 0;
    r->part = part;
}

/* How many bytes at the end of the text may be the beginning of the mark. */
static size_t begun(const moe_reply_text *text, const char *mark)
{
    size_t length = strlen(mark);
    size_t n = text->size < length - 1 ? text->size : length - 1;
    while (n > 0 && memcmp(text->data + text->size - n, mark, n) != 0) {
        n--;
    }
    return n;
}

static void drop(moe_reply_text *text, size_t n)
{
    memmove(text->data, text->data + n, text->size - n + 1);
    text->size -= n;
}

/* Lists the marks that are awaited, the one that changes the part first. Returns their number. */
static size_t await(const moe_reply_reader *r, const char *out[4])
{
    const char *const marks[] = {r->part == MOE_REPLY_REASONING ? r->marks.close : r->marks.open,
                                 r->marks.answer_open, r->marks.answer_close,
                                 r->marks.message_close};
    size_t n = 0;
    for (size_t i = 0; i < (r->part == MOE_REPLY_REASONING ? 1 : 4); i++) {
        if (marks[i][0] != '\0') {
            out[n++] = marks[i];
        }
    }
    return n;
}

static void scan(moe_reply_reader *r)
{
    while (r->held.size > 0) {
        const char *marks[4], *first = NULL, *mark = NULL;
        size_t kept = 0;
        const size_t n = await(r, marks);
        for (size_t i = 0; i < n; i++) {
            const char *found = memmem(r->held.data, r->held.size, marks[i], strlen(marks[i]));
            if (found != NULL && (first == NULL || found < first)) {
                first = found;
                mark = marks[i];
            }
            const size_t may_begin = begun(&r->held, marks[i]);
            kept = may_begin > kept ? may_begin : kept;
        }
        if (first == NULL) {
            emit(r, r->held.data, r->held.size - kept);
            drop(&r->held, r->held.size - kept);
            return;
        }
        const size_t at = (size_t)(first - r->held.data);
        emit(r, r->held.data, at);
        drop(&r->held, at + strlen(mark));
        if (mark == marks[0]) {
            enter(r, r->part == MOE_REPLY_REASONING ? MOE_REPLY_CONTENT : MOE_REPLY_REASONING);
        }
    }
}

/* Whether the text goes on with the piece as an awaited mark begins. */
static bool begins_mark(const moe_reply_reader *r, moe_string_view text, moe_string_view piece)
{
    const char *marks[4];
    bool begins = false;
    const size_t n = await(r, marks);
    for (size_t i = 0; i < n; i++) {
        begins |= text.size + piece.size <= strlen(marks[i]) &&
                  memcmp(marks[i], text.data, text.size) == 0 &&
                  memcmp(marks[i] + text.size, piece.data, piece.size) == 0;
    }
    return begins;
}

/* A control token counts if it is an awaited mark or a part of one. Otherwise it is dropped, or
 * written as text if markup is kept. */
static void push_control(moe_reply_reader *r, moe_string_view piece, bool ends)
{
    const moe_string_view nothing = {"", 0};
    const size_t at = r->held.size; /* the held text is the beginning of a mark */
    const bool goes_on =
        begins_mark(r, at > 0 ? (moe_string_view){r->held.data, at} : nothing, piece);
    if (!goes_on && !begins_mark(r, nothing, piece)) {
        if (r->keeps_markup && !ends) {
            emit(r, r->held.data, at);
            r->held.size = 0;
            emit(r, piece.data, piece.size);
        }
        return;
    }
    if (!goes_on) {
        emit(r, r->held.data, r->held.size);
        r->held.size = 0;
    }
    append(r, &r->held, piece.data, piece.size);
    scan(r);
}

static bool is_text(moe_string_view piece, const char *text)
{
    return piece.size == strlen(text) && memcmp(piece.data, text, piece.size) == 0;
}

static void emit_text(moe_reply_reader *r, const char *text)
{
    emit(r, text, strlen(text));
}

/* Begins a message after its header. */
static void begin_message(moe_reply_reader *r)
{
    const char *header = r->header.size > 0 ? r->header.data : "";
    bool to_tool = strstr(header, "to=") != NULL;
    bool is_answer = strstr(header, "analysis") == NULL && !to_tool;
    r->to_tool = to_tool && r->keeps_markup;
    enter(r, is_answer || r->to_tool ? MOE_REPLY_CONTENT : MOE_REPLY_REASONING);
    r->skips_space = true;
    if (r->to_tool) {
        emit_text(r, "<|start|>");
        emit_text(r, header);
        emit_text(r, "<|message|>");
    }
}

static void end_message(moe_reply_reader *r)
{
    if (r->to_tool) {
        emit_text(r, "<|call|>");
        r->to_tool = false;
    }
}

/* Handles a token of a message's frame. False: the token belongs to no frame. */
static bool push_frame(moe_reply_reader *r, moe_string_view piece)
{
    if (is_text(piece, "<|message|>")) {
        begin_message(r);
    } else if (is_text(piece, "<|start|>") || is_text(piece, "<|channel|>") ||
               is_text(piece, "<|end|>") || is_text(piece, "<|call|>") ||
               is_text(piece, "<|return|>")) {
        bool goes_on = is_text(piece, "<|channel|>") && r->part == MOE_REPLY_HEADER;
        end_message(r);
        enter(r, MOE_REPLY_HEADER);
        r->header.size = goes_on ? r->header.size : 0;
        if (goes_on && r->header.size > 0) {
            append(r, &r->header, " ", 1);
        }
    } else {
        return false;
    }
    return true;
}

/* Text without a frame, with markup kept: if it begins with " to=", it continues the header that
 * the prompt began; otherwise it is the answer. */
static void check_bare(moe_reply_reader *r, bool ends)
{
    static const char target[] = " to=";
    size_t size = r->header.size < sizeof target - 1 ? r->header.size : sizeof target - 1;
    bool may_be = memcmp(r->header.data, target, size) == 0 && !ends;
    if (!may_be) {
        enter(r, MOE_REPLY_CONTENT);
        emit(r, r->header.data, r->header.size);
        r->header.size = 0;
        r->is_bare = false;
    }
}

static void push_text(moe_reply_reader *r, const char *text, size_t size)
{
    if (r->part == MOE_REPLY_HEADER) {
        append(r, &r->header, text, size);
        if (r->is_bare && r->header.size > 0) {
            check_bare(r, false);
        }
    } else if (r->marks.has_channels || r->marks.open[0] == '\0') {
        emit(r, text, size);
    } else {
        append(r, &r->held, text, size);
        scan(r);
    }
}

static void clear_out(moe_reply_reader *r)
{
    for (size_t i = 0; i < 2; i++) {
        r->out[i].size = 0;
        append(r, &r->out[i], "", 0);
    }
}

void moe_reply_push(moe_reply_reader *r, int32_t token)
{
    clear_out(r);
    moe_string_view piece = moe_tokenizer_piece(r->tokenizer, token, true);
    bool starts = r->starts;
    r->starts = false;
    if (r->marks.has_channels && push_frame(r, piece)) {
        r->is_bare = false;
        return;
    }
    if (starts && r->part == MOE_REPLY_HEADER) {
        r->is_bare = r->keeps_markup;
        r->part = r->is_bare ? MOE_REPLY_HEADER : MOE_REPLY_CONTENT; /* the model wrote no header */
    }
    if (!moe_tokenizer_is_control(r->tokenizer, token)) {
        size_t size = moe_text_stream_push(&r->stream, r->tokenizer, token, r->streamed);
        push_text(r, r->streamed, size);
    } else if (!r->marks.has_channels && piece.size > 0) {
        push_control(r, piece, moe_tokenizer_is_end(r->tokenizer, token));
    }
}

void moe_reply_cut_off(moe_reply_reader *r)
{
    (void)moe_text_stream_finish(&r->stream, r->streamed);
    r->stream = (moe_text_stream){0};
}

void moe_reply_finish(moe_reply_reader *r)
{
    clear_out(r);
    push_text(r, r->streamed, moe_text_stream_finish(&r->stream, r->streamed));
    if (r->is_bare && r->part == MOE_REPLY_HEADER && r->header.size > 0) {
        check_bare(r, true);
    }
    if (r->held.size > 0) {
        emit(r, r->held.data, r->held.size);
        r->held.size = 0;
    }
}

int moe_reply_open(moe_reply_reader *r, const moe_tokenizer *tokenizer, const moe_chat_marks *marks,
                   bool in_reasoning, moe_error *err)
{
    *r = (moe_reply_reader){.tokenizer = tokenizer, .marks = *marks, .starts = true};
    r->part = in_reasoning          ? MOE_REPLY_REASONING
              : marks->has_channels ? MOE_REPLY_HEADER
                                    : MOE_REPLY_CONTENT;
    r->skips_space = in_reasoning;
    size_t longest = moe_text_stream_max(tokenizer);
    r->streamed = malloc((longest < 4 ? 4 : longest) + 1);
    if (r->streamed != NULL) {
        clear_out(r);
    }
    if (r->streamed == NULL || r->no_memory) {
        moe_reply_close(r);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a reply");
    }
    return MOE_OK;
}

void moe_reply_close(moe_reply_reader *r)
{
    free(r->streamed);
    free(r->header.data);
    free(r->held.data);
    free(r->spaces.data);
    free(r->out[0].data);
    free(r->out[1].data);
    *r = (moe_reply_reader){0};
}
