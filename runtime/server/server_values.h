/* SPDX-License-Identifier: MIT */
/* Checks the values of a request's fields. The functions that read a field name it in their
 * errors. */
#ifndef SERVER_VALUES_H
#define SERVER_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>

#include "server_request.h"

/* The state while one field is read. */
typedef struct server_reading {
    server_request *request;
    const server_options *options;
    const char *name;
    server_error *error;
} server_reading;

/* The functions below either set *out, or return false and set an error that names the field. */
bool server_wrong(server_reading *reading, const char *what);
bool server_unsupported(server_reading *reading, struct json_object *value);
bool server_get_number(server_reading *reading, struct json_object *value, double least,
                       double most, const char *what, double *out);
bool server_get_count(server_reading *reading, struct json_object *value, int64_t least,
                      int64_t most, const char *what, int64_t *out);
bool server_get_flag(server_reading *reading, struct json_object *value, bool *out);

bool server_is_text(struct json_object *value, const char *text);
/* Whether the value asks for nothing: false, 0, "", [] or {}. */
bool server_is_nothing(struct json_object *value);

/* Fields of sampling (server_sampling_fields.c). */
bool server_read_temperature(server_reading *reading, struct json_object *value);
bool server_read_top_p(server_reading *reading, struct json_object *value);
bool server_read_min_p(server_reading *reading, struct json_object *value);
bool server_read_top_k(server_reading *reading, struct json_object *value);
bool server_read_repeat_penalty(server_reading *reading, struct json_object *value);
bool server_read_presence_penalty(server_reading *reading, struct json_object *value);
bool server_read_frequency_penalty(server_reading *reading, struct json_object *value);
bool server_read_logit_bias(server_reading *reading, struct json_object *value);
bool server_read_effort(server_reading *r, struct json_object *value);
bool server_read_verbosity(server_reading *r, struct json_object *value);
bool server_read_stop_ids(server_reading *reading, struct json_object *value);
bool server_read_seed(server_reading *reading, struct json_object *value);
bool server_read_stop(server_reading *reading, struct json_object *value);
bool server_read_choices(server_reading *reading, struct json_object *value);
bool server_read_chat_logprobs(server_reading *reading, struct json_object *value);
bool server_read_top_logprobs(server_reading *reading, struct json_object *value);
bool server_read_text_logprobs(server_reading *reading, struct json_object *value);

/* Fields of texts with a gap (server_infill.c). */
bool server_read_suffix(server_reading *reading, struct json_object *value);
bool server_read_gap_prefix(server_reading *reading, struct json_object *value);
bool server_read_gap_begun(server_reading *reading, struct json_object *value);
bool server_read_gap_files(server_reading *reading, struct json_object *value);
bool server_read_n_predict(server_reading *reading, struct json_object *value);

/* Fields of Ollama's interface (server_ollama.c). */
bool server_read_ollama_messages(server_reading *reading, struct json_object *value);
bool server_read_ollama_options(server_reading *reading, struct json_object *value);
bool server_read_ollama_format(server_reading *reading, struct json_object *value);
bool server_read_think(server_reading *reading, struct json_object *value);
bool server_read_raw(server_reading *reading, struct json_object *value);

/* Fields that prescribe the form of an answer (server_grammar_fields.c). */
bool server_read_grammar(server_reading *reading, struct json_object *value);
bool server_read_json_schema(server_reading *reading, struct json_object *value);
bool server_read_response_format(server_reading *reading, struct json_object *value);

/* Fields of embeddings (server_embedding.c). */
bool server_read_texts(server_reading *reading, struct json_object *value);
bool server_read_encoding(server_reading *reading, struct json_object *value);
bool server_read_dimensions(server_reading *reading, struct json_object *value);
bool server_read_truncate(server_reading *reading, struct json_object *value);

/* Fields of tools (server_tool_fields.c). */
bool server_read_tools(server_reading *reading, struct json_object *value);
bool server_read_tool_choice(server_reading *reading, struct json_object *value);
bool server_read_parallel_calls(server_reading *reading, struct json_object *value);

/* Fields of /v1/responses (server_response_items.c). */
bool server_read_input(server_reading *reading, struct json_object *value);
bool server_read_instructions(server_reading *reading, struct json_object *value);
bool server_read_text_format(server_reading *reading, struct json_object *value);
bool server_read_reasoning(server_reading *reading, struct json_object *value);
bool server_read_include(server_reading *reading, struct json_object *value);
bool server_read_truncation(server_reading *reading, struct json_object *value);
bool server_read_previous(server_reading *reading, struct json_object *value);

#endif
