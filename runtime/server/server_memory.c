/* SPDX-License-Identifier: MIT */
#include "server_memory.h"

#include "server.h"

enum {
    /* Limits of the memory for requests and the workshop together, in bytes. */
    LEAST_BYTES = 12 << 20,
    MOST_BYTES = 48 << 20,
    PART_OF_BUDGET = 16, /* requests and workshop get three such parts together */
    /* What json-c 0.16 to 0.18 allocates, in bytes: an object with its table, an array, and any
     * value together with its entry in its parent. */
    OBJECT_BYTES = 832,
    ARRAY_BYTES = 224,
    VALUE_BYTES = 112,
};

static uint32_t most_connections(uint32_t parallel)
{
    return 3 * parallel + 64; /* connections that are served, that wait, and that are idle */
}

static uint64_t connections_bytes(uint32_t parallel)
{
    return (uint64_t)(most_connections(parallel) + SERVER_REFUSED_CONNECTIONS) *
           SERVER_CONNECTION_BYTES;
}

uint64_t server_memory(uint32_t parallel, uint64_t budget)
{
    uint64_t bytes = budget == 0 ? MOST_BYTES : budget / PART_OF_BUDGET * 3;
    bytes = bytes < LEAST_BYTES ? LEAST_BYTES : bytes;
    bytes = bytes > MOST_BYTES ? MOST_BYTES : bytes;
    return connections_bytes(parallel) + bytes;
}

void server_memory_open(server_memory_account *account, uint32_t parallel, uint64_t planned)
{
    uint64_t connections = connections_bytes(parallel);
    uint64_t bytes = planned > connections ? planned - connections : MOST_BYTES;
    account->most = bytes / 3;
    account->most_body = (size_t)(account->most / 4);
    account->most_work = bytes - account->most;
    account->most_connections = most_connections(parallel);
    atomic_init(&account->taken, 0);
    atomic_init(&account->peak, 0);
}

bool server_memory_charge(server_memory_account *account, uint64_t *charged, uint64_t bytes,
                          server_error *error)
{
    if (*charged + bytes > account->most) {
        return server_fail(error, 413, "request_too_large", NULL,
                           "The request needs more memory than the %llu MiB that all requests may "
                           "take: send a smaller one, or start the server with a larger "
                           "--host-memory.",
                           (unsigned long long)(account->most >> 20));
    }
    uint64_t taken = atomic_fetch_add(&account->taken, bytes) + bytes;
    while (taken > account->most) {
        atomic_fetch_sub(&account->taken, bytes);
        if (account->give_back != NULL && account->give_back(account->giver)) {
            taken = atomic_fetch_add(&account->taken, bytes) + bytes;
            continue;
        }
        return server_fail(error, 503, "overloaded", NULL,
                           "Too many large requests at a time: try again later.");
    }
    uint64_t peak = atomic_load(&account->peak);
    while (taken > peak && !atomic_compare_exchange_weak(&account->peak, &peak, taken)) {
    }
    *charged += bytes;
    return true;
}

void server_memory_release(server_memory_account *account, uint64_t *charged, uint64_t bytes)
{
    bytes = bytes < *charged ? bytes : *charged;
    atomic_fetch_sub(&account->taken, bytes);
    *charged -= bytes;
}

bool server_memory_set(server_memory_account *account, uint64_t *charged, uint64_t bytes,
                       server_error *error)
{
    if (bytes > *charged) {
        return server_memory_charge(account, charged, bytes - *charged, error);
    }
    server_memory_release(account, charged, *charged - bytes);
    return true;
}

bool server_memory_append(server_memory_account *account, uint64_t *charged, cli_buffer *buffer,
                          const void *bytes, size_t size, size_t most, server_error *error)
{
    size_t needed = buffer->size + size + 1;
    if (needed > buffer->capacity) {
        size_t capacity = needed < most / 2 ? 2 * needed : most + 1;
        capacity = capacity < needed ? needed : capacity;
        if (!server_memory_charge(account, charged, capacity - buffer->capacity, error)) {
            return false;
        }
        if (!cli_buffer_reserve(buffer, capacity)) {
            server_memory_release(account, charged, capacity - buffer->capacity);
            return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
        }
    }
    return cli_buffer_append(buffer, bytes, size);
}

/* ---- In the workshop ---- */

bool server_work_take(moe_allowance *allowance, uint64_t bytes, server_error *error)
{
    if (bytes > allowance->bytes || allowance->bytes_now > allowance->bytes - bytes) {
        return server_fail(error, 413, "request_too_large", NULL,
                           "The request needs more memory to be taken apart than the %llu MiB that "
                           "there are for it: send a smaller one, or start the server with a "
                           "larger --host-memory.",
                           (unsigned long long)(allowance->bytes >> 20));
    }
    allowance->bytes_now += bytes;
    allowance->bytes_peak =
        allowance->bytes_now > allowance->bytes_peak ? allowance->bytes_now : allowance->bytes_peak;
    return true;
}

bool server_work_step(moe_allowance *allowance, uint64_t n, server_error *error)
{
    allowance->steps_taken += n;
    return allowance->steps_taken <= allowance->steps ||
           server_fail(error, 413, "request_too_large", NULL,
                       "The request takes more than %llu steps to be taken apart: make it simpler.",
                       (unsigned long long)allowance->steps);
}

bool server_work_fail(server_error *error, int status, const char *field, const moe_error *err)
{
    const char *message = err->message[0] != '\0' ? err->message : moe_status_name(status);
    switch (status) {
    case MOE_ERR_BUDGET:
        return server_fail(error, 413, "request_too_large", field,
                           "'%s': %s: send less, or start the server with a larger --host-memory.",
                           field, message);
    case MOE_ERR_CANCELLED:
    case MOE_ERR_MEMORY:
        return server_fail(error, 503, "overloaded", field, "'%s': %s", field, message);
    default:
        return server_fail(error, 400,
                           status == MOE_ERR_UNSUPPORTED ? "unsupported_value" : "invalid_value",
                           field, "'%s': %s", field, message);
    }
}

uint64_t server_json_bytes(const char *text, size_t size)
{
    uint64_t bytes = VALUE_BYTES;
    bool quoted = false;
    int depth = 0;
    for (size_t i = 0; i < size && depth <= SERVER_DEEPEST_JSON; i++) {
        if (quoted) {
            i += text[i] == '\\';
            quoted = i >= size || text[i] != '"';
            continue;
        }
        char c = text[i];
        quoted = c == '"';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        bytes += c == '{'               ? OBJECT_BYTES
                 : c == '['             ? ARRAY_BYTES
                 : c == ',' || c == ':' ? VALUE_BYTES
                                        : 0;
    }
    return bytes;
}
