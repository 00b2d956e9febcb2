/* SPDX-License-Identifier: MIT */
#include "runtime/model/chat_marks.h"

#include <string.h>

static const moe_chat_marks pairs[] = {
    {"<|channel|>analysis<|message|>", "<|end|>", true},  /* gpt-oss */
    {"<seed:think>", "</seed:think>", false},             /* Seed-OSS */
    {"[THINK]", "[/THINK]", false},                       /* Magistral */
    {"<|START_THINKING|>", "<|END_THINKING|>", false},    /* Command A, Command R7B */
    {"<|channel>thought\n", "<channel|>", false},         /* Gemma 4 */
    {"<|inner_prefix|>", "<|inner_suffix|>", false},      /* Apertus */
    {"◁think▷", "◁/think▷", false},                       /* Kimi-VL */
    {"<mm:think>", "</mm:think>", false},                 /* MiniMax-M3 */
    {"<think:opensource>", "</think:opensource>", false}, /* Hy3, whose template joins the mark from
                                                           * pieces */
    {"<think>", "</think>", false},
    {"<thinking>", "</thinking>", false},
    {"<thought>", "</thought>", false},
    {"<reasoning>", "</reasoning>", false},
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

const moe_chat_marks *moe_chat_marks_in(moe_string_view source)
{
    for (size_t i = 0; i < N_PAIRS; i++) {
        if (pairs[i].has_channels ? holds(source, "<|channel|>") && holds(source, "<|message|>")
                                  : holds(source, pairs[i].close)) {
            return &pairs[i];
        }
    }
    return NULL;
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

bool moe_chat_is_mark(moe_string_view piece)
{
    static const char *const tools[] = {"<tool_call>", "</tool_call>", "<tool_response>",
                                        "</tool_response>"};
    for (size_t i = 0; i < N_PAIRS + sizeof tools / sizeof tools[0]; i++) {
        const char *open = i < N_PAIRS ? pairs[i].open : tools[i - N_PAIRS];
        const char *close = i < N_PAIRS ? pairs[i].close : open;
        if ((strlen(open) == piece.size && memcmp(open, piece.data, piece.size) == 0) ||
            (strlen(close) == piece.size && memcmp(close, piece.data, piece.size) == 0)) {
            return true;
        }
    }
    return false;
}
