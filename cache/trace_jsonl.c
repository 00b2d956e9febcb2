/* SPDX-License-Identifier: MIT */
/* Reads traces of JSON lines (the format: README.md). A line is parsed on its own and its size is
 * bounded, so a hostile file costs little more memory than its rows take. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/files.h>

#include "cache/trace_formats.h"
#include "cache/trace_rows.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define FIRST_LINE_BYTES 4096u
#define MAX_LINE_BYTES   (4u << 20)
#define MAX_DEPTH        5 /* nesting: object, layers, list, number, and one spare */

typedef struct jsonl_reader {
    const moe_trace_open_options *options;
    FILE *file;
    struct json_tokener *tokener;
    char *line; /* [capacity] */
    size_t capacity;
    uint64_t line_number;
    uint32_t stated_layers; /* from the options or the header; 0: neither says it */
    uint32_t stated_experts;
    moe_trace *trace; /* NULL before the first row */
    bool has_passes;  /* set by the first row */
    uint64_t pass;    /* of the last row, as the file gives it */
    uint16_t *ids;    /* [MOE_TRACE_MAX_EXPERTS] */
    float *gates;     /* likewise */
    moe_error *err;
} jsonl_reader;

__attribute__((format(printf, 2, 3))) static int fail_line(jsonl_reader *reader, const char *format,
                                                           ...)
{
    char what[320];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return moe_fail(reader->err, MOE_ERR_FORMAT, "%.150s, line %" PRIu64 ": %s",
                    reader->options->path, reader->line_number, what);
}

static int fail_memory(jsonl_reader *reader)
{
    return moe_fail(reader->err, MOE_ERR_MEMORY, "out of memory for trace %.200s",
                    reader->options->path);
}

/* Reads an optional member that must be a whole number from 0 to `limit`. */
static int read_number(jsonl_reader *reader, struct json_object *row, const char *name,
                       uint64_t limit, bool *present, uint64_t *value)
{
    struct json_object *member = NULL;
    *present = json_object_object_get_ex(row, name, &member);
    if (!*present) {
        return MOE_OK;
    }
    int64_t number = json_object_get_int64(member);
    if (!json_object_is_type(member, json_type_int) || number < 0 || (uint64_t)number > limit) {
        return fail_line(reader, "\"%s\" is not a whole number from 0 to %" PRIu64, name, limit);
    }
    *value = (uint64_t)number;
    return MOE_OK;
}

/* ---- The header ---- */

static int read_stated(jsonl_reader *reader, struct json_object *header, const char *name,
                       uint32_t limit, uint32_t *stated)
{
    bool present;
    uint64_t value = 0;
    MOE_TRY(read_number(reader, header, name, limit, &present, &value));
    if (present && *stated != 0 && *stated != value) {
        return fail_line(reader, "\"%s\" is %" PRIu64 ", but %u was asked for", name, value,
                         *stated);
    }
    if (present) {
        *stated = (uint32_t)value;
    }
    return MOE_OK;
}

static int read_header(jsonl_reader *reader, struct json_object *header)
{
    bool present;
    uint64_t version = 0;
    int status = read_number(reader, header, "moe_trace", UINT32_MAX, &present, &version);
    if (status == MOE_OK && version != 1) {
        status = fail_line(reader, "version %" PRIu64 " of the format is not known", version);
    }
    if (status == MOE_OK) {
        status =
            read_stated(reader, header, "n_layer", MOE_TRACE_MAX_LAYERS, &reader->stated_layers);
    }
    if (status == MOE_OK) {
        status =
            read_stated(reader, header, "n_expert", MOE_TRACE_MAX_EXPERTS, &reader->stated_experts);
    }
    return status;
}

/* ---- Rows ---- */

static int read_ids(jsonl_reader *reader, struct json_object *list, size_t layer, size_t n)
{
    uint32_t limit = reader->trace->n_expert > 0 ? reader->trace->n_expert : MOE_TRACE_MAX_EXPERTS;
    for (size_t i = 0; i < n; i++) {
        struct json_object *element = json_object_array_get_idx(list, i);
        int64_t id = json_object_get_int64(element);
        if (!json_object_is_type(element, json_type_int) || id < 0 || id >= limit) {
            return fail_line(reader, "layer %zu, expert %zu: not a whole number from 0 to %u",
                             layer, i, limit - 1);
        }
        reader->ids[i] = (uint16_t)id;
    }
    return MOE_OK;
}

static int read_gates(jsonl_reader *reader, struct json_object *gates, size_t layer, size_t n)
{
    struct json_object *list = json_object_array_get_idx(gates, layer);
    if (!json_object_is_type(list, json_type_array) || json_object_array_length(list) != n) {
        return fail_line(reader, "\"gates\" of layer %zu: not a list of %zu numbers", layer, n);
    }
    for (size_t i = 0; i < n; i++) {
        struct json_object *element = json_object_array_get_idx(list, i);
        double gate = json_object_get_double(element);
        if ((!json_object_is_type(element, json_type_double) &&
             !json_object_is_type(element, json_type_int)) ||
            !(gate >= 0 && gate <= 1e6)) {
            return fail_line(reader, "\"gates\" of layer %zu: number %zu is not in [0, 1e6]", layer,
                             i);
        }
        reader->gates[i] = (float)gate;
    }
    return MOE_OK;
}

static int read_list(jsonl_reader *reader, struct json_object *layers, struct json_object *gates,
                     size_t layer)
{
    struct json_object *list = json_object_array_get_idx(layers, layer);
    if (!json_object_is_type(list, json_type_array)) {
        return fail_line(reader, "layer %zu: not a list of experts", layer);
    }
    size_t n = json_object_array_length(list);
    if (n > MOE_TRACE_MAX_EXPERTS) {
        return fail_line(reader, "layer %zu: a list of %zu experts", layer, n);
    }
    int status = read_ids(reader, list, layer, n);
    if (status == MOE_OK && gates != NULL) {
        status = read_gates(reader, gates, layer, n);
    }
    if (status == MOE_OK) {
        status = moe_trace_add_list(reader->trace, reader->ids, reader->gates, (uint32_t)n);
        if (status == MOE_ERR_FORMAT) {
            return fail_line(reader, "layer %zu: an expert stands there twice", layer);
        }
        if (status != MOE_OK) {
            return fail_memory(reader);
        }
    }
    return status;
}

/* Creates the trace when the first row is known, because that row determines the number of layers
 * and whether there are passes and gates. */
static int begin_trace(jsonl_reader *reader, size_t n_layer, bool has_passes, bool has_gates)
{
    if (n_layer == 0 || n_layer > MOE_TRACE_MAX_LAYERS) {
        return fail_line(reader, "%zu layers: 1 to %u are possible", n_layer, MOE_TRACE_MAX_LAYERS);
    }
    if (reader->stated_layers != 0 && reader->stated_layers != n_layer) {
        return fail_line(reader, "%zu layers instead of %u", n_layer, reader->stated_layers);
    }
    reader->has_passes = has_passes;
    reader->trace = moe_trace_new((uint32_t)n_layer, reader->stated_experts, has_gates);
    return reader->trace == NULL ? fail_memory(reader) : MOE_OK;
}

static int check_shape(jsonl_reader *reader, struct json_object *layers, struct json_object *gates,
                       bool has_pass, uint64_t pass)
{
    if (!json_object_is_type(layers, json_type_array) ||
        (gates != NULL && !json_object_is_type(gates, json_type_array))) {
        return fail_line(reader, "\"layers\" (and \"gates\") must be lists of lists");
    }
    size_t n_layer = json_object_array_length(layers);
    if (reader->trace == NULL) {
        MOE_TRY(begin_trace(reader, n_layer, has_pass, gates != NULL));
    }
    if (n_layer != reader->trace->n_layer) {
        return fail_line(reader, "%zu layers, but rows before it have %u", n_layer,
                         reader->trace->n_layer);
    }
    if (gates != NULL && json_object_array_length(gates) != n_layer) {
        return fail_line(reader, "\"gates\" of %zu layers, \"layers\" of %zu",
                         json_object_array_length(gates), n_layer);
    }
    if (has_pass != reader->has_passes || (gates != NULL) != reader->trace->has_gates) {
        return fail_line(reader, "\"pass\" and \"gates\" must be in every row or in none");
    }
    if (has_pass && reader->trace->n_rows > 0 && pass < reader->pass) {
        return fail_line(reader, "pass %" PRIu64 " after pass %" PRIu64, pass, reader->pass);
    }
    return MOE_OK;
}

/* Reads a forecast: an array [passes ahead, layer, expert, chance]. */
static int read_forecast(jsonl_reader *reader, struct json_object *entry, size_t index)
{
    static const int64_t limits[] = {MOE_TRACE_MOST_AHEAD, MOE_TRACE_MAX_LAYERS - 1,
                                     MOE_TRACE_MAX_EXPERTS - 1};
    int64_t numbers[3] = {0, 0, 0};
    double chance = -1;
    if (json_object_is_type(entry, json_type_array) && json_object_array_length(entry) == 4) {
        struct json_object *last = json_object_array_get_idx(entry, 3);
        chance =
            json_object_is_type(last, json_type_double) || json_object_is_type(last, json_type_int)
                ? json_object_get_double(last)
                : -1;
        for (size_t i = 0; i < 3; i++) {
            struct json_object *element = json_object_array_get_idx(entry, i);
            numbers[i] = json_object_get_int64(element);
            if (!json_object_is_type(element, json_type_int) || numbers[i] < 0 ||
                numbers[i] > limits[i]) {
                chance = -1;
            }
        }
    }
    if (!(chance > 0 && chance <= 1)) {
        return fail_line(reader,
                         "\"ahead\", entry %zu: not [passes (0 to %u), layer, expert, chance in "
                         "(0, 1]]",
                         index, MOE_TRACE_MOST_AHEAD);
    }
    moe_trace_forecast forecast = {(uint32_t)numbers[0], (uint16_t)numbers[1], (uint16_t)numbers[2],
                                   (float)chance};
    int status = moe_trace_add_forecast(reader->trace, &forecast);
    if (status == MOE_ERR_FORMAT) {
        return fail_line(reader, "\"ahead\", entry %zu: no such layer or expert", index);
    }
    return status == MOE_OK ? MOE_OK : fail_memory(reader);
}

static int read_forecasts(jsonl_reader *reader, struct json_object *row)
{
    struct json_object *ahead = NULL;
    if (!json_object_object_get_ex(row, "ahead", &ahead)) {
        return MOE_OK;
    }
    if (!json_object_is_type(ahead, json_type_array)) {
        return fail_line(reader, "\"ahead\" is not a list");
    }
    for (size_t i = 0; i < json_object_array_length(ahead); i++) {
        MOE_TRY(read_forecast(reader, json_object_array_get_idx(ahead, i), i));
    }
    return MOE_OK;
}

static int read_row(jsonl_reader *reader, struct json_object *row)
{
    struct json_object *layers = NULL;
    struct json_object *gates = NULL;
    bool has_pass = false;
    bool present;
    uint64_t pass = 0;
    uint64_t token = 0;
    uint64_t sequence = 0;
    if (!json_object_object_get_ex(row, "layers", &layers)) {
        return fail_line(reader, "no \"layers\"");
    }
    json_object_object_get_ex(row, "gates", &gates);
    MOE_TRY(read_number(reader, row, "pass", INT64_MAX, &has_pass, &pass));
    MOE_TRY(read_number(reader, row, "tok", INT64_MAX, &present, &token));
    MOE_TRY(read_number(reader, row, "seq", UINT32_MAX, &present, &sequence));
    MOE_TRY(check_shape(reader, layers, gates, has_pass, pass));
    bool new_pass = !has_pass || pass != reader->pass;
    reader->pass = pass;
    if (moe_trace_add_row(reader->trace, new_pass, token, (uint32_t)sequence) != MOE_OK) {
        return fail_memory(reader);
    }
    for (size_t layer = 0; layer < reader->trace->n_layer; layer++) {
        MOE_TRY(read_list(reader, layers, gates, layer));
    }
    return read_forecasts(reader, row);
}

/* ---- Lines ---- */

static int read_line_object(jsonl_reader *reader, size_t size)
{
    json_tokener_reset(reader->tokener);
    struct json_object *object = json_tokener_parse_ex(reader->tokener, reader->line, (int)size);
    enum json_tokener_error error = json_tokener_get_error(reader->tokener);
    int status;
    if (object == NULL || error != json_tokener_success ||
        json_tokener_get_parse_end(reader->tokener) != size) {
        status = fail_line(reader, "not one JSON value (%s)",
                           error == json_tokener_success ? "something follows it"
                                                         : json_tokener_error_desc(error));
    } else if (!json_object_is_type(object, json_type_object)) {
        status = fail_line(reader, "not a JSON object");
    } else if (reader->trace == NULL && json_object_object_get_ex(object, "moe_trace", NULL)) {
        status = read_header(reader, object);
    } else {
        status = read_row(reader, object);
    }
    json_object_put(object);
    return status;
}

/* Reads one line, which at the end of the file may lack its newline. Sets *size to 0 at the end
 * of the file. The buffer grows with the longest line, up to a limit. */
static int next_line(jsonl_reader *reader, size_t *size)
{
    *size = 0;
    while (fgets(reader->line + *size, (int)(reader->capacity - *size), reader->file) != NULL) {
        *size += strlen(reader->line + *size);
        if ((*size > 0 && reader->line[*size - 1] == '\n') || feof(reader->file)) {
            break;
        }
        if (*size < reader->capacity - 1) {
            reader->line_number++;
            return fail_line(reader, "holds a zero byte");
        }
        if (*size > MAX_LINE_BYTES) {
            reader->line_number++;
            return fail_line(reader, "longer than %u bytes", MAX_LINE_BYTES);
        }
        size_t capacity = 2 * reader->capacity;
        capacity = capacity < MAX_LINE_BYTES + 2 ? capacity : MAX_LINE_BYTES + 2;
        char *line = moe_realloc_array(reader->line, capacity, 1);
        if (line == NULL) {
            return fail_memory(reader);
        }
        reader->line = line;
        reader->capacity = capacity;
    }
    return MOE_OK;
}

static int read_lines(jsonl_reader *reader)
{
    size_t size = 0;
    int line_status = next_line(reader, &size);
    for (; line_status == MOE_OK && size > 0; line_status = next_line(reader, &size)) {
        reader->line_number++;
        while (size > 0 && strchr(" \t\r\n", reader->line[size - 1]) != NULL) {
            size--;
        }
        MOE_TRY(size == 0 ? MOE_OK : read_line_object(reader, size));
    }
    if (line_status != MOE_OK) {
        return line_status;
    }
    if (ferror(reader->file)) {
        return moe_fail(reader->err, MOE_ERR_IO, "%.200s: %s", reader->options->path,
                        strerror(errno));
    }
    if (reader->trace == NULL) {
        return moe_fail(reader->err, MOE_ERR_FORMAT, "%.200s: no row of a routing trace",
                        reader->options->path);
    }
    return moe_trace_finish(reader->trace, reader->err);
}

int moe_trace_read_jsonl(moe_trace **out, const moe_trace_open_options *options, moe_error *err)
{
    jsonl_reader reader = {.options = options,
                           .stated_layers = options->n_layer,
                           .stated_experts = options->n_expert,
                           .err = err};
    int status;
    reader.file = moe_input_stream(options->path, MOE_INPUT_PIPES, &status, err);
    if (reader.file == NULL) {
        return status;
    }
    reader.tokener = json_tokener_new_ex(MAX_DEPTH);
    reader.capacity = FIRST_LINE_BYTES;
    reader.line = moe_calloc(reader.capacity, 1);
    reader.ids = moe_calloc(MOE_TRACE_MAX_EXPERTS, sizeof *reader.ids);
    reader.gates = moe_calloc(MOE_TRACE_MAX_EXPERTS, sizeof *reader.gates);
    if (reader.tokener == NULL || reader.line == NULL || reader.ids == NULL ||
        reader.gates == NULL) {
        status = fail_memory(&reader);
    } else {
        json_tokener_set_flags(reader.tokener, JSON_TOKENER_STRICT);
        status = read_lines(&reader);
    }
    if (status == MOE_OK) {
        *out = reader.trace;
    } else {
        moe_trace_close(&reader.trace);
    }
    if (reader.tokener != NULL) {
        json_tokener_free(reader.tokener);
    }
    free(reader.line);
    free(reader.ids);
    free(reader.gates);
    fclose(reader.file);
    return status;
}
