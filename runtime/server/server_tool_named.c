/* SPDX-License-Identifier: MIT */
/* Built-in formats of tool calls that cannot be learned from the template, because it does not
 * write the calls of earlier turns, or because the models write calls in another form. A row of
 * the table is used if one of its marks occurs in the rendered prompt. */
#include "server_tool_format.h"

#include <string.h>

typedef struct named_row {
    const char *reader;
    const char *marks[2]; /* in the prompt with tools, or in a conversation with a call */
    server_tool_kind kind;
    const char *section_open, *call_open, *object_open, *after_name, *object_close, *call_close,
        *between, *section_close;
    const char *quote, *may_open, *may_close;
} named_row;

#define NAME_KEY      "name"
#define ARGUMENTS_KEY "arguments"

static const named_row rows[] = {
    {.reader = "lfm2",
     .marks = {"<|tool_list_start|>", "<|tool_call_start|>["},
     .kind = SERVER_TOOLS_LITERALS,
     .section_open = "<|tool_call_start|>[",
     .after_name = "(",
     .object_close = ")",
     .between = ", ",
     .section_close = "]<|tool_call_end|>"},
    {.reader = "llama4",
     .marks = {"<|header_start|>", NULL},
     .kind = SERVER_TOOLS_LITERALS,
     .section_open = "[",
     .after_name = "(",
     .object_close = ")",
     .between = ", ",
     .section_close = "]",
     .may_open = "<|python_start|>",
     .may_close = "<|python_end|>"},
    {.reader = "gemma4",
     .marks = {"<|tool>declaration:", "<|tool_call>call:"},
     .kind = SERVER_TOOLS_LITERALS,
     .call_open = "<|tool_call>call:",
     .after_name = "{",
     .object_close = "}",
     .call_close = "<tool_call|>",
     .quote = "<|\"|>",
     .may_close = "<|tool_response>"},
    {.reader = "granite3",
     .marks = {"<|tool_call|> followed by a JSON list", NULL},
     .kind = SERVER_TOOLS_JSON,
     .section_open = "<|tool_call|>[",
     .object_open = "{\"" NAME_KEY "\": \"",
     .after_name = "\", \"" ARGUMENTS_KEY "\": ",
     .object_close = "}",
     .between = ", ",
     .section_close = "]",
     .may_open = "<tool_call>"},
};

static bool has_mark(const named_row *row, server_span text)
{
    for (size_t i = 0; i < 2; i++) {
        if (row->marks[i] != NULL &&
            server_span_find(text, 0, row->marks[i]) != SERVER_TEXT_DIFFERS) {
            return true;
        }
    }
    return false;
}

bool server_tool_named(server_tool_format *f, server_span prompt, server_span call)
{
    const size_t n = sizeof rows / sizeof rows[0];
    const named_row *row = rows;
    while (row < rows + n && !has_mark(row, prompt) && !has_mark(row, call)) {
        row++;
    }
    if (row == rows + n) {
        return false;
    }
    server_tool_format_free(f);
    *f = (server_tool_format){
        .kind = row->kind,
        .several = true,
        .reader = row->reader,
        .is_hidden = server_span_find(call, 0, SERVER_PROBE_NAME_A) == SERVER_TEXT_DIFFERS,
        .section_open = server_span_of(row->section_open),
        .call_open = server_span_of(row->call_open),
        .call_close = server_span_of(row->call_close),
        .between = server_span_of(row->between),
        .section_close = server_span_of(row->section_close),
        .answer_close = server_span_of(""),
        .after_name = server_span_of(row->after_name),
        .key_open = server_span_of(""),
        .value_open =
            server_span_of(row->kind == SERVER_TOOLS_LITERALS && row->quote == NULL ? "=" : ":"),
        .value_close = server_span_of(""),
        .block_open = server_span_of(""),
        .block_close = server_span_of(""),
        .object_open = server_span_of(row->object_open),
        .object_close = server_span_of(row->object_close),
        .name_key = server_span_of(NAME_KEY),
        .arguments_key = server_span_of(ARGUMENTS_KEY),
        .name_prefix = server_span_of(""),
        .quote = server_span_of(row->quote),
        .may_open = server_span_of(row->may_open),
        .may_close = server_span_of(row->may_close),
    };
    return true;
}

void server_tool_add_known(server_tool_format *f, server_span prompt)
{
    bool is_bare = f->kind == SERVER_TOOLS_JSON && server_is_blank(f->section_open) &&
                   server_is_blank(f->call_open);
    if (is_bare && server_span_find(prompt, 0, "<|start_header_id|>") != SERVER_TEXT_DIFFERS) {
        f->may_open = server_span_of("<|python_tag|>");
        f->reader = "llama3";
    }
}
