/* SPDX-License-Identifier: MIT */
/* Writes traces as JSON lines. A line contains first all layers, then all gates, then all
 * forecasts of a row, but the caller gives them layer by layer. So each of the three is collected
 * in a text of its own until the row ends. */
#include "cache/trace_writer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/files.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

typedef struct text_buffer {
    char *data;
    size_t size;
    size_t capacity;
} text_buffer;

struct moe_trace_writer {
    FILE *file;
    moe_atomic_file *whole; /* the file that `file` writes to; NULL: it is written in place */
    char *path;
    uint32_t n_layer;
    bool has_gates;
    bool in_row;
    bool out_of_memory;
    uint64_t pass, token;
    uint32_t sequence;
    uint32_t n_lists; /* lists of the row so far */
    text_buffer layers;
    text_buffer gates;
    text_buffer forecasts;
};

/* ---- Text ---- */

__attribute__((format(printf, 3, 4))) static void append(moe_trace_writer *writer,
                                                         text_buffer *text, const char *format, ...)
{
    char piece[64];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    if (text->size + (size_t)size + 1 > text->capacity) {
        size_t capacity = text->capacity == 0 ? 4096 : text->capacity * 2;
        char *data = moe_realloc_array(text->data, capacity, 1);
        if (data == NULL) {
            writer->out_of_memory = true;
            return;
        }
        text->data = data;
        text->capacity = capacity;
    }
    memcpy(text->data + text->size, piece, (size_t)size + 1);
    text->size += (size_t)size;
}

/* Appends a number with nine digits, which are enough to restore a float exactly. Some locales have
 * another decimal point than JSON; it is replaced. */
static void append_real(moe_trace_writer *writer, text_buffer *text, const char *separator,
                        float gate)
{
    char number[32];
    char clean[32];
    size_t n = 0;
    snprintf(number, sizeof number, "%.9g", isfinite(gate) ? (double)gate : 0.0);
    for (const char *c = number; *c != '\0'; c++) {
        if (strchr("0123456789e+-", *c) != NULL) {
            clean[n++] = *c;
        } else if (n == 0 || clean[n - 1] != '.') {
            clean[n++] = '.';
        }
    }
    clean[n] = '\0';
    append(writer, text, "%s%s", separator, clean);
}

/* ---- Rows ---- */

int moe_trace_writer_open(moe_trace_writer **out, const char *path, uint32_t n_layer,
                          uint32_t n_expert, bool has_gates, bool whole, moe_error *err)
{
    *out = NULL;
    moe_trace_writer *writer = moe_calloc(1, sizeof *writer);
    char *copy = moe_strdup(path);
    if (writer == NULL || copy == NULL) {
        free(writer);
        free(copy);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for writing a trace");
    }
    writer->path = copy;
    writer->n_layer = n_layer;
    writer->has_gates = has_gates;
    int status =
        whole ? moe_atomic_file_open(&writer->whole, path, MOE_FILE_OR_DEVICE, err) : MOE_OK;
    writer->file = whole ? moe_atomic_file_stream(writer->whole) : fopen(path, "wbe");
    if (!whole && writer->file == NULL) {
        status = moe_fail(err, MOE_ERR_IO, "trace %.300s: %s", path, strerror(errno));
    }
    if (status != MOE_OK) {
        moe_trace_writer_close(&writer, NULL);
        return status;
    }
    fprintf(writer->file,
            "{\"moe_trace\": 1, \"n_layer\": %" PRIu32 ", \"n_expert\": %" PRIu32 "}\n", n_layer,
            n_expert);
    *out = writer;
    return MOE_OK;
}

static void write_row(moe_trace_writer *writer)
{
    if (!writer->in_row || writer->out_of_memory) {
        return;
    }
    fprintf(writer->file,
            "{\"tok\": %" PRIu64 ", \"pass\": %" PRIu64 ", \"seq\": %" PRIu32 ", \"layers\": [%s]",
            writer->token, writer->pass, writer->sequence, writer->layers.data);
    if (writer->has_gates) {
        fprintf(writer->file, ", \"gates\": [%s]", writer->gates.data);
    }
    if (writer->forecasts.size > 0) {
        fprintf(writer->file, ", \"ahead\": [%s]", writer->forecasts.data);
    }
    fputs("}\n", writer->file);
    writer->in_row = false;
}

static int state_of(const moe_trace_writer *writer, moe_error *err)
{
    if (writer->out_of_memory) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for writing trace %.300s",
                        writer->path);
    }
    if (writer->file != NULL && ferror(writer->file)) {
        return moe_fail(err, MOE_ERR_IO, "trace %.300s could not be written (is the disk full?)",
                        writer->path);
    }
    return MOE_OK;
}

int moe_trace_writer_begin_row(moe_trace_writer *writer, uint64_t pass, uint64_t token,
                               uint32_t sequence, moe_error *err)
{
    write_row(writer);
    writer->pass = pass;
    writer->token = token;
    writer->sequence = sequence;
    writer->n_lists = 0;
    writer->layers.size = writer->gates.size = writer->forecasts.size = 0;
    append(writer, &writer->layers, "%s", "");
    append(writer, &writer->gates, "%s", "");
    writer->in_row = true;
    return state_of(writer, err);
}

void moe_trace_writer_add_list(moe_trace_writer *writer, const uint16_t *ids, const float *gates,
                               uint32_t n)
{
    const char *separator = writer->n_lists++ == 0 ? "[" : ", [";
    append(writer, &writer->layers, "%s", separator);
    append(writer, &writer->gates, "%s", separator);
    for (uint32_t i = 0; i < n; i++) {
        append(writer, &writer->layers, "%s%" PRIu16, i == 0 ? "" : ", ", ids[i]);
        if (writer->has_gates) {
            append_real(writer, &writer->gates, i == 0 ? "" : ", ", gates[i]);
        }
    }
    append(writer, &writer->layers, "]");
    append(writer, &writer->gates, "]");
}

void moe_trace_writer_add_forecast(moe_trace_writer *writer, uint32_t passes_ahead, uint32_t layer,
                                   uint32_t expert, float chance)
{
    append(writer, &writer->forecasts, "%s[%" PRIu32 ", %" PRIu32 ", %" PRIu32,
           writer->forecasts.size == 0 ? "" : ", ", passes_ahead, layer, expert);
    append_real(writer, &writer->forecasts, ", ", chance);
    append(writer, &writer->forecasts, "]");
}

int moe_trace_writer_flush(moe_trace_writer *writer, moe_error *err)
{
    write_row(writer);
    (void)fflush(writer->file); /* ferror() reports a failure */
    return state_of(writer, err);
}

int moe_trace_writer_close(moe_trace_writer **writer_ptr, moe_error *err)
{
    moe_trace_writer *writer = *writer_ptr;
    if (writer == NULL) {
        return MOE_OK;
    }
    if (writer->file != NULL) {
        write_row(writer);
    }
    int status = state_of(writer, err);
    if (writer->whole != NULL) {
        status = status == MOE_OK ? moe_atomic_file_commit(&writer->whole, err) : status;
        moe_atomic_file_abandon(&writer->whole);
    } else if (writer->file != NULL && fclose(writer->file) != 0 && status == MOE_OK) {
        status = moe_fail(err, MOE_ERR_IO, "trace %.300s: %s", writer->path, strerror(errno));
    }
    free(writer->path);
    free(writer->layers.data);
    free(writer->gates.data);
    free(writer->forecasts.data);
    free(writer);
    *writer_ptr = NULL;
    return status;
}
