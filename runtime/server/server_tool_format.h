/* SPDX-License-Identifier: MIT */
/* How a model writes tool calls. The server does not know this from a list of models, but learns
 * it: it renders a conversation with made-up calls by the chat template, and reads off the text
 * around the names, the arguments and the calls.
 *
 *   section_open  call_open NAME .. ARGUMENTS call_close  between  call_open ..  section_close
 *
 *   JSON      an object holds both: {"name": "NAME", "arguments": {..}}     (Hermes, Qwen, Llama)
 *   NAMED     a name, then an object: NAME after_name {..}                  (DeepSeek, Kimi,
 *             Mistral, Apertus)
 *   TAGGED    a name, then after_name, and for each argument key_open KEY value_open VALUE
 *             value_close                        (Qwen3-Coder, GLM, MiniMax, DSML, Kimi-K3)
 *   CHANNELS  a message to the tool: to=functions.NAME .. <|message|>{..}   (gpt-oss)
 *   LITERALS  a name, then arguments that are no JSON: NAME(key="text", n=3) or
 *             NAME{key:<|"|>text<|"|>,n:3}                          (LFM2, Llama-4, Gemma-4)
 *
 * Formats that cannot be read off are built in (server_tool_named.c). */
#ifndef SERVER_TOOL_FORMAT_H
#define SERVER_TOOL_FORMAT_H

#include "server_tool_text.h"

typedef enum server_tool_kind {
    SERVER_TOOLS_UNKNOWN,
    SERVER_TOOLS_JSON,
    SERVER_TOOLS_NAMED,
    SERVER_TOOLS_TAGGED,
    SERVER_TOOLS_CHANNELS,
    SERVER_TOOLS_LITERALS
} server_tool_kind;

typedef struct server_tool_format {
    server_tool_kind kind;
    bool several;    /* the template writes more than one call in a turn */
    bool has_name;   /* of NAMED: the name is part of an id, functions.NAME:0 */
    bool is_hidden;  /* the template does not write the calls of earlier turns */
    bool no_content; /* beside calls the template wants a content of null, not "" */
    /* Parts of `text` below, or of constants; they may contain SERVER_TOOL_ID and the like. */
    server_span section_open, call_open, call_close, between, section_close;
    server_span answer_close; /* what ends an answer, also an empty one, before calls: the reader
                               * does not see it */
    server_span after_name;   /* of JSON: from the name to the arguments */
    server_span key_open, value_open, value_close;
    server_span block_open, block_close; /* of TAGGED: around arguments that are one object */
    server_span name_key, arguments_key; /* of JSON */
    server_span object_open, object_close;
    server_span name_prefix;         /* of NAMED: an optional prefix of the name, "functions." */
    server_span quote;               /* of LITERALS: quotes of texts; empty: Python's quotes */
    server_span may_open, may_close; /* optional literals around calls, which are dropped */
    const char *reader;              /* name of the built-in format; NULL: it was learned */
    char *text, *block_text;         /* free(): what the spans point into */
} server_tool_format;

/* The strings of the conversations that are rendered to learn the format. They are unusual, so
 * that they can be found in the rendered text. */
#define SERVER_PROBE_CONTENT "~moecontent"
#define SERVER_PROBE_NAME_A  "moeprobea"
#define SERVER_PROBE_NAME_B  "moeprobeb"
#define SERVER_PROBE_KEY_A   "moekeya"
#define SERVER_PROBE_KEY_B   "moekeyb"
#define SERVER_PROBE_VALUE_A "moevaluea"
#define SERVER_PROBE_VALUE_B "moevalueb"
#define SERVER_PROBE_ID      "moecall01"
#define SERVER_PROBE_NUMBER  ":77"
#define SERVER_PROBE_WHOLE   "moewhole" /* arguments that are no object, and written as they are */

/* Looks the template up in the table of built-in formats, by its rendered prompt with tools and
 * its rendered conversation with a call. False: the table has no row for it. */
bool server_tool_named(server_tool_format *format, server_span prompt, server_span call);
/* Adds literals that models are known to write around calls of this format although their
 * templates do not. */
void server_tool_add_known(server_tool_format *format, server_span prompt);

/* Learns the format from three renderings: of an answer SERVER_PROBE_CONTENT, of one call, and of
 * two calls (two.data NULL: the template accepts only one call). Sets `kind` to UNKNOWN if the
 * format cannot be recognized. False: memory is short. */
bool server_tool_learn(server_tool_format *format, server_span content, server_span one,
                       server_span two);
/* Learns how arguments are written as one object, from the rendering of a call whose arguments are
 * SERVER_PROBE_WHOLE. False: memory is short. */
bool server_tool_learn_block(server_tool_format *format, server_span one);
void server_tool_format_free(server_tool_format *format);

#endif
