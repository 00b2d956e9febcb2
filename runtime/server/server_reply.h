/* SPDX-License-Identifier: MIT */
/* Writes answers as JSON: as one object, or as server-sent events. A server_dialect has the
 * functions that differ between the interfaces of OpenAI, Anthropic and others. Functions that
 * append to a buffer return false if memory is short. */
#ifndef SERVER_REPLY_H
#define SERVER_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_request.h"
#include "server_tool_reader.h"

/* The state of one answer of a request: what has arrived from its job, and how much of that a
 * stream has sent. */
typedef struct server_choice {
    cli_buffer content;
    cli_buffer reasoning;
    cli_buffer reports; /* reports that were not sent, each of server_report_size() bytes */
    size_t reports_now; /* how many of them are sent next */
    size_t text_offset; /* of the first one's token in the text of all tokens */
    server_job_state state;
    server_finish finish;
    size_t stop; /* which stop string, with SERVER_FINISH_STRING */
    uint64_t n_written;
    bool has_progress; /* its prompt's progress changed and was not sent */
    size_t n_read;
    uint64_t reading_ns;
    bool has_settings; /* its end was written to the stream */
    server_tool_reader tools;
    uint32_t calls_told;
    bool call_open;        /* the call that was sent last is not complete */
    size_t arguments_told; /* of it */
    /* How many bytes of each text the stream has sent. */
    size_t content_told, reasoning_told;
} server_choice;

/* Kinds of output items in an answer of /v1/responses: a stretch of reasoning, a stretch of text,
 * or a tool call. */
typedef enum server_item_kind {
    SERVER_ITEM_REASONING,
    SERVER_ITEM_TEXT,
    SERVER_ITEM_CALL
} server_item_kind;

typedef struct server_item {
    server_item_kind kind;
    size_t from, to;
    uint32_t call;
} server_item;

enum { SERVER_MOST_ITEMS = SERVER_MOST_TOOL_CALLS + 32 };

typedef struct server_reply server_reply;

typedef struct server_dialect {
    /* Writes all answers, once they are DONE, as one object. */
    bool (*whole)(const server_reply *reply, cli_buffer *out);
    /* Write the events of a stream: its beginning, progress of a prompt, a new piece of an
     * answer, the end of an answer, the end of the stream, and an error. */
    bool (*begin)(server_reply *reply, cli_buffer *out);
    bool (*progress)(server_reply *reply, uint32_t index, cli_buffer *out); /* NULL: none */
    bool (*piece)(server_reply *reply, uint32_t index, cli_buffer *out);
    bool (*finish)(server_reply *reply, uint32_t index, cli_buffer *out);
    bool (*end)(server_reply *reply, cli_buffer *out);
    bool (*broken)(const server_error *error, cli_buffer *out);
    bool lines; /* sends lines of JSON with whole calls instead of events */
} server_dialect;

struct server_reply {
    const server_dialect *dialect;
    const moe_engine *engine;
    const server_job *job; /* of the first answer */
    server_endpoint endpoint;
    bool include_usage;
    bool logprobs;
    bool is_base64; /* of embeddings */
    char id[48];
    char fingerprint[32];
    const char *model;
    int64_t created;
    uint64_t began_ns;
    size_t n_prompt;
    size_t n_cached;   /* tokens of the first answer's prompt that were reused */
    const char *block; /* stream of /v1/messages: type of the open block, or NULL */
    uint32_t n_blocks;
    server_item items[SERVER_MOST_ITEMS]; /* of /v1/responses */
    uint32_t n_items;
    bool item_open; /* in a stream: the last item is open */
    uint64_t n_events;
    server_kept *kept;          /* of /v1/responses: where the answer is kept when it is complete */
    server_kept_answer *answer; /* the answer to keep; NULL: it is not kept */
    char previous[48];          /* the id of the conversation's earlier answer; "": none */
    uint32_t n_answers;
    server_choice answers[SERVER_MOST_CHOICES];
};

/* prefix: the beginning of the answer's id. */
void server_reply_begin(server_reply *reply, const server_dialect *dialect, const char *prefix,
                        const server_request *request, const moe_engine *engine, const char *model,
                        uint64_t fingerprint);
void server_reply_free(server_reply *reply);
/* Returns the number of tokens generated in all answers of the request. */
uint64_t server_reply_written(const server_reply *reply);

/* {"error": {...}} */
bool server_reply_error(const server_error *error, cli_buffer *out);

/* ---- Helpers for dialects ---- */

/* Appends the object as JSON text, and releases the object. */
bool server_append_json(struct json_object *object, cli_buffer *out);
/* Appends the event "data: {...}", with a line "event: NAME" before it if name is not NULL.
 * Releases the object. */
bool server_append_event(const char *name, struct json_object *object, cli_buffer *out);
void server_put_text(struct json_object *object, const char *key, const char *text);
/* Returns the first call of which the stream has not sent everything, and sets *arguments to how
 * many bytes of its arguments have been sent. */
uint32_t server_next_call(const server_choice *answer, size_t *arguments);
/* Returns the text from this byte offset on, as a JSON string. */
struct json_object *server_text_from(const cli_buffer *buffer, size_t from);
struct json_object *server_error_object(const server_error *error);
/* "PREFIX_" and 24 random hexadecimal digits. */
void server_random_id(char *out, size_t size, const char *prefix);

extern const server_dialect server_openai;         /* of /v1/chat/completions and /v1/completions */
extern const server_dialect server_messages;       /* of /v1/messages */
extern const server_dialect server_responses;      /* of /v1/responses */
extern const server_dialect server_infill;         /* of /infill */
extern const server_dialect server_ollama;         /* of /api/chat and /api/generate */
extern const server_dialect server_openai_vectors; /* of /v1/embeddings */
extern const server_dialect server_native_vectors; /* of /embedding */
extern const server_dialect server_ollama_vectors; /* of /api/embed and /api/embeddings */
/* Converts the error to the object that Ollama's clients expect. */
struct json_object *server_ollama_error(const server_error *error);
/* Converts the error to the object that Anthropic's clients expect. */
struct json_object *server_messages_error(const server_error *error);

#endif
