/* SPDX-License-Identifier: MIT */
/* What a request asks for: its JSON, checked field by field. A field that would change the answer
 * and cannot be honoured is an error that names it. */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include <stdbool.h>

#include <json-c/json.h>
#include <moe/allowance.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "server.h"
#include "server_error.h"
#include "server_kept.h"
#include "server_queue.h"
#include "server_tool_probe.h"

typedef enum server_endpoint {
    SERVER_CHAT = 1 << 0,              /* /v1/chat/completions */
    SERVER_COMPLETION = 1 << 1,        /* /v1/completions */
    SERVER_TOKENIZE = 1 << 2,          /* /tokenize */
    SERVER_DETOKENIZE = 1 << 3,        /* /detokenize */
    SERVER_TEMPLATE = 1 << 4,          /* /apply-template */
    SERVER_MESSAGES = 1 << 5,          /* /v1/messages */
    SERVER_COUNT = 1 << 6,             /* /v1/messages/count_tokens */
    SERVER_RESPONSES = 1 << 7,         /* /v1/responses */
    SERVER_INFILL = 1 << 8,            /* /infill */
    SERVER_OLLAMA_CHAT = 1 << 9,       /* /api/chat */
    SERVER_OLLAMA_GENERATE = 1 << 10,  /* /api/generate */
    SERVER_EMBEDDINGS = 1 << 11,       /* /v1/embeddings */
    SERVER_EMBEDDING = 1 << 12,        /* /embedding */
    SERVER_OLLAMA_EMBED = 1 << 13,     /* /api/embed */
    SERVER_OLLAMA_EMBEDDINGS = 1 << 14 /* /api/embeddings */
} server_endpoint;

enum { SERVER_MOST_CHOICES = 16 };

typedef enum server_tool_choice {
    SERVER_TOOL_AUTO,
    SERVER_TOOL_NONE,    /* the prompt does not name the tools */
    SERVER_TOOL_REQUIRED /* the answer must be calls */
} server_tool_choice;

typedef struct server_request {
    moe_allowance allowance; /* limits of the workshop while it prepares the request */
    uint64_t json_bytes;     /* part of the allowance: the body's JSON and its copies */
    server_endpoint endpoint;
    server_job *job;                       /* jobs[0], while the fields are read */
    server_job *jobs[SERVER_MOST_CHOICES]; /* one for each answer; released by
                                            * server_request_free() */
    uint32_t n_jobs;
    struct json_object *body; /* owned; the fields below point into it */
    struct json_object *messages;
    struct json_object *converted; /* owned; NULL: messages are those of the body */
    struct json_object *tools;     /* owned, in the form of /v1/chat/completions; NULL: none */
    struct json_object *allowed;   /* functions that may be called; NULL: all */
    struct json_object *tool_name; /* the tool that must be called; NULL: any */
    server_tool_choice tool_choice;
    const server_tool_format *tool_format; /* NULL: calls are not recognized in the text */
    bool tells_tools;                      /* the template does not describe the tools: a message
                                            * does */
    bool one_call;                         /* at most one call in an answer */
    bool has_form;                         /* response_format or json_schema was given */
    struct json_object *form;              /* the schema of the form; NULL: any object */
    struct json_object *system;            /* of SERVER_MESSAGES: a string, or blocks of text */
    struct json_object *input;             /* of SERVER_RESPONSES: a string, or items */
    struct json_object *template_arguments;
    struct json_object *effort; /* of reasoning: a word for the template; NULL: its own default */
    struct json_object *verbosity; /* likewise */
    moe_switch thinks;             /* whether the model reasons */
    struct json_object *prompt;    /* a string, or an array of ids */
    struct json_object *suffix;    /* the text after the gap; NULL: no gap */
    struct json_object *begun;     /* of SERVER_INFILL: how the text in the gap begins */
    struct json_object *extra;     /* of SERVER_INFILL: further files */
    bool is_raw;                   /* of SERVER_OLLAMA_GENERATE: the prompt is not made into a
                                    * message */
    bool echoes;
    size_t echo_offset; /* offset of the first token in the prompt's text; < 0: before the text */
    cli_buffer echoed;  /* the prompt's text, which the answers begin with */
    struct json_object *texts;          /* of embeddings: a string or ids, or an array of these */
    bool is_base64, cuts_texts;         /* of embeddings: vectors as base64; cuts texts to the
                                         * context */
    int64_t dimensions;                 /* of embeddings: 0: not given */
    struct json_object *content;        /* of tokenize */
    struct json_object *tokens;         /* of detokenize */
    char unknown[48];                   /* an unknown field that was ignored; "": none */
    char dropped[SERVER_DROPPED_BYTES]; /* keywords of schemas that are not enforced */
    server_kept *kept;          /* of SERVER_RESPONSES: answers that a later request can name */
    uint64_t client;            /* the client that sent the request */
    bool keeps;                 /* the answer shall be kept */
    char previous[48];          /* the id of the conversation's earlier answer; "": none */
    server_kept_answer *answer; /* the answer to keep; holds a reference; NULL: none */
    bool stream;
    bool include_usage;
    bool add_special;
    bool plain_text; /* tokenize: control tokens are not recognized */
    bool has_sampling_seed;
    bool has_max_tokens;
    bool logprobs;
    int top_logprobs; /* -1: not given */
} server_request;

/* Returns the given model name as it stands in the options; NULL if it is none of this server's
 * names. */
const char *server_find_name(const server_options *options, const char *name);
/* Reads the body's fields into the request. */
bool server_request_read(server_request *request, const server_options *options, const char *body,
                         size_t size, server_error *error);
/* Renders the messages or tokenizes the prompt, so that the request's jobs can be submitted. */
bool server_request_prepare(server_request *request, server_tools *tools, const moe_engine *engine,
                            const server_options *options, server_error *error);
/* (server_tool_fields.c) Checks that `tool_choice` fits `tools`. */
bool server_check_tools(server_request *request, server_error *error);
/* (server_tool_prepare.c) The first function finds out how the template writes tools and calls. */
bool server_request_find_tools(server_request *request, server_tools *tools,
                               const moe_engine *engine, const server_options *options,
                               server_error *error);
/* Changes the content of messages that contain tool calls to the form that the template wants. */
bool server_request_adapt_calls(server_request *request, server_tools *tools,
                                const moe_engine *engine, const server_options *options,
                                server_error *error);
/* Returns the text of a system message that describes the tools, for templates that do not; NULL:
 * memory is short. */
struct json_object *server_describe_tools(const server_request *request);
bool server_request_hold_to_tools(server_request *request, const moe_engine *engine,
                                  server_error *error);
/* (server_message_blocks.c) Converts the messages of Anthropic's interface to the messages that
 * templates know. */
bool server_convert_blocks(server_request *request, server_error *error);
/* (server_response_items.c) Does the same with the input items of /v1/responses. */
bool server_convert_items(server_request *request, server_error *error);
/* Renders the messages with the chat template. Release *out with moe_chat_prompt_close(). */
bool server_render(moe_chat_prompt **out, server_request *request, server_tools *tools,
                   const moe_engine *engine, const server_options *options, server_error *error);
/* (server_ollama.c) Turns the prompt into a message. */
bool server_convert_prompt(server_request *request, server_error *error);
/* (server_infill.c) Makes the tokens of a prompt with a gap. */
bool server_take_gap(server_request *request, const moe_engine *engine, server_error *error);
void server_request_free(server_request *request, server_queue *queue);

/* (server_fields.c) Reads one field into the request. */
bool server_read_field(server_request *request, const server_options *options, const char *name,
                       struct json_object *value, server_error *error);

#endif
