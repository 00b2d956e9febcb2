/* SPDX-License-Identifier: MIT */
#include "server_memory.h"

#include "server.h"

enum {
    LEAST_BYTES = 4 << 20, /* of all requests */
    MOST_BYTES = 16 << 20,
    PART_OF_BUDGET = 16,
    /* Of json-c 0.16 to 0.18: an object with its table, an array, any value with its place. */
    OBJECT_BYTES = 832,
    ARRAY_BYTES = 224,
    VALUE_BYTES = 112,
};

static uint32_t most_connections(uint32_t parallel)
{
    return 3 * parallel + 64; /* those that are served, that wait, and that only stay open */
}

static uint64_t connections_bytes(uint32_t parallel)
{
    return (uint64_t)(most_connections(parallel) + SERVER_REFUSED_CONNECTIONS) *
           SERVER_CONNECTION_BYTES;
}

uint64_t server_memory(uint32_t parallel, uint64_t budget)
{
    uint64_t requests = budget == 0 ? MOST_BYTES : budget / PART_OF_BUDGET;
    requests = requests < LEAST_BYTES ? LEAST_BYTES : requests;
    requests = requests > MOST_BYTES ? MOST_BYTES : requests;
    return connections_bytes(parallel) + requests;
}

void server_memory_open(server_memory_account *account, uint32_t parallel, uint64_t planned)
{
    uint64_t connections = connections_bytes(parallel);
    account->most = planned > connections ? planned - connections : MOST_BYTES;
    account->most_body = (size_t)(account->most / SERVER_BODY_COPIES);
    account->most_connections = most_connections(parallel);
    atomic_init(&account->taken, 0);
    atomic_init(&account->connections, 0);
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
    if (atomic_fetch_add(&account->taken, bytes) + bytes > account->most) {
        atomic_fetch_sub(&account->taken, bytes);
        return server_fail(error, 503, "overloaded", NULL,
                           "Too many large requests at a time: try again later.");
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
