/* SPDX-License-Identifier: MIT */
#include "runtime/model/chat_marks.h"

#include <string.h>

#define XTML_OPEN(tag)  "<|open|>" tag "<|sep|>"
#define XTML_CLOSE(tag) "<|close|>" tag "<|sep|>"

static const moe_chat_marks pairs[] = {
    /* gpt-oss */
    {.open = "<|channel|>analysis<|message|>", .close = "<|end|>", .has_channels = true},
    /* Kimi-K3 */
    {.open = XTML_OPEN("think"),
     .close = XTML_CLOSE("think"),
     .answer_open = XTML_OPEN("response"),
     .answer_close = XTML_CLOSE("response"),
     .message_close = XTML_CLOSE("message")},
    {.open = "<seed:think>", .close = "</seed:think>"}, /* Seed-OSS */
    {.open = "[THINK]", .close = "[/THINK]"},           /* Magistral */
    /* Command A, Command R7B */
    {.open = "<|START_THINKING|>", .close = "<|END_THINKING|>"},
    {.open = "<|channel>thought\n", .close = "<channel|>"},    /* Gemma 4 */
    {.open = "<|inner_prefix|>", .close = "<|inner_suffix|>"}, /* Apertus */
    {.open = "◁think▷", .close = "◁/think▷"},                  /* Kimi-VL */
    {.open = "<mm:think>", .close = "</mm:think>"},            /* MiniMax-M3 */
    {.open = "<think>", .close = "</think>"},
    {.open = "<thinking>", .close = "</thinking>"},
    {.open = "<thought>", .close = "</thought>"},
    {.open = "<reasoning>", .close = "</reasoning>"},
};

#define N_PAIRS (sizeof pairs / sizeof pairs[0])

static size_t find_last(const char *text, size_t size, const char *word)
{
    size_t length = strlen(word);
    for (size_t at = size; at >= length; at--) {
        if (memcmp(text + at - length, word, length) == 0) {
            return at;
        }
    }
    return 0;
}

static bool holds(moe_string_view source, const char *word)
{
    return memmem(source.data, source.size, word, strlen(word)) != NULL;
}

const moe_chat_marks *moe_chat_known_marks(size_t *n)
{
    *n = N_PAIRS;
    return pairs;
}

static bool is_of_suffix(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

bool moe_chat_marks_with_suffix(moe_string_view text, moe_chat_marks *out)
{
    static const char begin[] = MOE_CHAT_SUFFIXED_MARK;
    const size_t first = sizeof begin - 1;
    if (text.size <= first || memcmp(text.data, begin, first) != 0) {
        return false;
    }
    size_t end = first;
    while (end < text.size && end < sizeof out->close - 2 && is_of_suffix(text.data[end])) {
        end++;
    }
    if (end == first || end == text.size || text.data[end] != '>') {
        return false;
    }
    *out = (moe_chat_marks){.open = "<"};
    memcpy(out->close, text.data, end + 1);
    memcpy(out->open + 1, text.data + 2, end - 1);
    return true;
}

/* Templates for gpt-oss and Kimi-K3 join their marks from pieces. */
static bool writes(moe_string_view source, const moe_chat_marks *pair)
{
    return pair->has_channels ? holds(source, "<|channel|>") && holds(source, "<|message|>")
           : pair->answer_open[0] != '\0'
               ? holds(source, "<|open|>") && holds(source, "<|close|>") &&
                     holds(source, "<|sep|>") && holds(source, "think")
               : holds(source, pair->close);
}

bool moe_chat_marks_in(moe_string_view source, moe_chat_marks *out)
{
    for (size_t i = 0; i < N_PAIRS; i++) {
        if (writes(source, &pairs[i])) {
            *out = pairs[i];
            return true;
        }
    }
    static const char begin[] = MOE_CHAT_SUFFIXED_MARK;
    const char *end = source.data + source.size, *at = source.data;
    while ((at = memmem(at, (size_t)(end - at), begin, sizeof begin - 1)) != NULL) {
        if (moe_chat_marks_with_suffix((moe_string_view){at, (size_t)(end - at)}, out)) {
            return true;
        }
        at++;
    }
    return false;
}

static bool is_blank(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (text[i] != ' ' && text[i] != '\n' && text[i] != '\t' && text[i] != '\r') {
            return false;
        }
    }
    return true;
}

bool moe_chat_is_reasoning(const moe_chat_marks *marks, const char *text, size_t size,
                           bool continued)
{
    if (marks->open[0] == '\0') {
        return false;
    }
    size_t opened = find_last(text, size, marks->open);
    return opened > 0 && opened > find_last(text, size, marks->close) &&
           (continued || is_blank(text + opened, size - opened));
}

/* Whether the piece is this mark; for <mark>, also <mark:SUFFIX>. */
static bool is_mark(moe_string_view piece, const char *mark)
{
    const size_t size = strlen(mark), name = size - 1;
    const bool begins = piece.size >= size && memcmp(piece.data, mark, name) == 0;
    return begins &&
           ((piece.size == size && piece.data[name] == mark[name]) ||
            (mark[name] == '>' && piece.data[name] == ':' && piece.data[piece.size - 1] == '>'));
}

bool moe_chat_is_mark(moe_string_view piece)
{
    static const char *const tools[] = {
        "<tool_call>",       "</tool_call>",  "<tool_response>", "</tool_response>",
        "<tool_calls>",      "</tool_calls>", "<tool_sep>",      "<tool_responses>",
        "</tool_responses>", "<arg_key>",     "</arg_key>",      "<arg_value>",
        "</arg_value>",      "<|open|>",      "<|close|>",       "<|sep|>"};
    for (size_t i = 0; i < N_PAIRS; i++) {
        if (is_mark(piece, pairs[i].open) || is_mark(piece, pairs[i].close)) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++) {
        if (is_mark(piece, tools[i])) {
            return true;
        }
    }
    return false;
}
