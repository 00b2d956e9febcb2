/* SPDX-License-Identifier: MIT */
#include "server_kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_OF_REQUESTS = 4 };

/* ---- The caller holds the lock ---- */

static void unlist(server_kept *kept, server_kept_answer *answer)
{
    *(answer->older == NULL ? &kept->oldest : &answer->older->newer) = answer->newer;
    *(answer->newer == NULL ? &kept->newest : &answer->newer->older) = answer->older;
    answer->older = answer->newer = NULL;
}

static void list(server_kept *kept, server_kept_answer *answer)
{
    answer->older = kept->newest;
    *(kept->newest == NULL ? &kept->oldest : &kept->newest->newer) = answer;
    kept->newest = answer;
}

/* Drops a reference. If it was the last one, frees the answer, and drops its reference to the
 * answer before it, and so on. */
static void drop(server_kept *kept, server_kept_answer *answer)
{
    while (answer != NULL && --answer->references == 0) {
        server_kept_answer *before = answer->before;
        kept->bytes -= answer->charged;
        server_memory_release(kept->memory, &answer->charged, answer->charged);
        free(answer->text);
        free(answer);
        answer = before;
    }
}

static void leave(server_kept *kept, server_kept_answer *answer)
{
    unlist(kept, answer);
    drop(kept, answer);
}

/* ---- Room ---- */

/* Called (by server_memory.h) when memory for a request is short. Frees the answer that was used
 * longest ago. Returns whether memory was freed. */
static bool give_back(void *user)
{
    server_kept *kept = user;
    pthread_mutex_lock(&kept->lock);
    const uint64_t before = kept->bytes;
    while (kept->oldest != NULL && kept->bytes == before) {
        leave(kept, kept->oldest);
    }
    bool gave = kept->bytes < before;
    pthread_mutex_unlock(&kept->lock);
    return gave;
}

static bool charge(server_kept *kept, server_kept_answer *answer, uint64_t bytes)
{
    server_error ignored;
    uint64_t charged = 0;
    if (answer->charged + bytes > kept->most ||
        !server_memory_charge(kept->memory, &charged, bytes, &ignored)) {
        return false;
    }
    pthread_mutex_lock(&kept->lock);
    answer->charged += bytes;
    kept->bytes += bytes;
    while (kept->bytes > kept->most && kept->oldest != NULL) {
        leave(kept, kept->oldest);
    }
    bool fits = kept->bytes <= kept->most;
    pthread_mutex_unlock(&kept->lock);
    return fits;
}

/* ---- Answers ---- */

void server_kept_open(server_kept *kept, server_memory_account *memory)
{
    *kept = (server_kept){.memory = memory, .most = memory->most / PART_OF_REQUESTS};
    pthread_mutex_init(&kept->lock, NULL);
    memory->give_back = give_back;
    memory->giver = kept;
}

void server_kept_free(server_kept *kept)
{
    while (kept->oldest != NULL) {
        leave(kept, kept->oldest);
    }
    kept->memory->give_back = NULL;
    pthread_mutex_destroy(&kept->lock);
}

/* Appends JSON items to the answer. False: memory is short. */
static bool append(server_kept *kept, server_kept_answer *answer, const char *items, size_t size)
{
    if (size == 0) {
        return true;
    }
    char *text =
        charge(kept, answer, size + 1) ? realloc(answer->text, answer->size + size + 1) : NULL;
    if (text == NULL) {
        return false;
    }
    answer->text = text;
    if (answer->size > 0) {
        text[answer->size++] = ',';
    }
    memcpy(text + answer->size, items, size);
    answer->size += size;
    return true;
}

server_kept_answer *server_kept_begin(server_kept *kept, uint64_t client,
                                      server_kept_answer *before, const char *items, size_t size)
{
    server_kept_answer *answer = calloc(1, sizeof *answer);
    if (answer == NULL) {
        server_kept_release(kept, &before);
        return NULL;
    }
    *answer = (server_kept_answer){.before = before, .client = client, .references = 1};
    if (!charge(kept, answer, sizeof *answer) || !append(kept, answer, items, size)) {
        server_kept_release(kept, &answer);
    }
    return answer;
}

bool server_kept_finish(server_kept *kept, server_kept_answer *answer, const char *id,
                        const char *items, size_t size)
{
    if (!append(kept, answer, items, size)) {
        return false;
    }
    pthread_mutex_lock(&kept->lock);
    snprintf(answer->id, sizeof answer->id, "%s", id);
    answer->references++;
    list(kept, answer);
    pthread_mutex_unlock(&kept->lock);
    return true;
}

server_kept_answer *server_kept_find(server_kept *kept, uint64_t client, const char *id)
{
    pthread_mutex_lock(&kept->lock);
    server_kept_answer *answer = kept->newest;
    while (answer != NULL && (answer->client != client || strcmp(answer->id, id) != 0)) {
        answer = answer->older;
    }
    if (answer != NULL) {
        answer->references++;
        unlist(kept, answer);
        list(kept, answer);
    }
    pthread_mutex_unlock(&kept->lock);
    return answer;
}

void server_kept_release(server_kept *kept, server_kept_answer **answer)
{
    pthread_mutex_lock(&kept->lock);
    drop(kept, *answer);
    pthread_mutex_unlock(&kept->lock);
    *answer = NULL;
}

uint64_t server_kept_bytes(server_kept *kept)
{
    pthread_mutex_lock(&kept->lock);
    uint64_t bytes = kept->bytes;
    pthread_mutex_unlock(&kept->lock);
    return bytes;
}
