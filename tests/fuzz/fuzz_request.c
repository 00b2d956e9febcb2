/* SPDX-License-Identifier: MIT */
/* Bodies of requests, and calls of tools in texts. The first byte is the endpoint, and the rest the
 * body; with the highest bit set the rest are up to four texts that 0 bytes end: three renderings
 * that a format of calls is learned from, and a text in that format. Whatever comes, a refusal has
 * a status and a message, and a call a name and arguments that are a JSON object. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/server/server_memory.h"
#include "runtime/server/server_request.h"
#include "runtime/server/server_tool_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void read_request(uint8_t endpoint, const char *body, size_t size)
{
    static const server_options options = {.model = "m", .parallel = 2};
    static const char earlier_items[] = "{\"role\":\"user\",\"content\":\"a\"}";
    server_memory_account memory;
    server_kept kept;
    server_queue queue;
    server_error error;
    server_request request;
    memset(&request, 0, sizeof request);
    memset(&memory, 0, sizeof memory);
    server_memory_open(&memory, options.parallel, 0);
    request.allowance = (moe_allowance){.bytes = memory.most_work, .steps = SERVER_MOST_STEPS};
    memset(&error, 0, sizeof error);
    server_queue_init(&queue, 4, &memory);
    server_kept_open(&kept, &memory);
    server_kept_answer *earlier =
        server_kept_begin(&kept, 0, NULL, earlier_items, sizeof earlier_items - 1);
    check(earlier != NULL && server_kept_finish(&kept, earlier, "resp_1", "", 0));
    server_kept_release(&kept, &earlier);
    request.kept = &kept;
    request.keeps = true;
    request.endpoint = (server_endpoint)(1u << endpoint);
    bool read = server_request_read(&request, &options, body, size, &error);
    if (read && (request.endpoint & (SERVER_MESSAGES | SERVER_COUNT)) != 0) {
        read = server_convert_blocks(&request, &error);
    } else if (read && request.endpoint == SERVER_RESPONSES) {
        read = server_convert_items(&request, &error);
    }
    check(read == (error.status == 0));
    check(read || (error.status >= 400 && error.message[0] != '\0'));
    server_request_free(&request, &queue);
    server_queue_free(&queue);
    check(kept.newest != NULL && kept.newest->references == 1);
    server_kept_free(&kept);
    check(atomic_load(&memory.taken) == 0);
}

static void check_calls(const server_tool_reader *reader)
{
    for (uint32_t i = 0; i < reader->n_calls; i++) {
        const server_tool_call *call = &reader->calls[i];
        struct json_object *arguments =
            json_tokener_parse(call->arguments.data == NULL ? "" : call->arguments.data);
        check(call->id[0] != '\0' && call->name.size > 0);
        check(json_object_is_type(arguments, json_type_object));
        json_object_put(arguments);
    }
}

static void read_calls(const char *text, size_t size, size_t piece)
{
    server_span texts[4] = {{"", 0}, {"", 0}, {NULL, 0}, {"", 0}};
    server_tool_format format;
    cli_buffer content = {NULL, 0, 0};
    for (size_t i = 0; i < 4 && size > 0; i++) {
        const char *end = memchr(text, 0, size);
        size_t length = end != NULL ? (size_t)(end - text) : size;
        texts[i] = (server_span){text, length};
        length += end != NULL;
        text += length;
        size -= length;
    }
    check(server_tool_learn(&format, texts[0], texts[1], texts[2]));
    server_tool_reader reader = {.source = {.format = &format}};
    if (format.kind != SERVER_TOOLS_UNKNOWN) {
        for (size_t at = 0; at < texts[3].size; at += piece) {
            size_t n = texts[3].size - at < piece ? texts[3].size - at : piece;
            check(server_tool_read(&reader, texts[3].data + at, n, false, &content));
        }
        check(server_tool_read(&reader, "", 0, true, &content));
        check(content.size <= texts[3].size &&
              (reader.n_calls > 0 || content.size > 0 || texts[3].size == 0));
        check_calls(&reader);
    }
    server_tool_reader_free(&reader);
    server_tool_format_free(&format);
    cli_buffer_free(&content);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 16) {
        return 0;
    }
    char *rest = malloc(size); /* ends where the input does, for the sanitizers */
    check(rest != NULL);
    memcpy(rest, data + 1, size - 1);
    rest[size - 1] = '\0'; /* bodies are terminated */
    if ((data[0] & 0x80) != 0) {
        read_calls(rest, size - 1, 1 + (data[0] & 7));
    } else {
        read_request((data[0] & 15) % 11, rest, size - 1);
    }
    free(rest);
    return 0;
}
