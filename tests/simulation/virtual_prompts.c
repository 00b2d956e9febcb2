/* SPDX-License-Identifier: MIT */
/* A double of the server's folder of finished prompts (server_disk.h), which fails by seed. */
#include <string.h>

#include "runtime/server/server_disk.h"
#include "tests/simulation/virtual_engine.h"

enum { MOST_FILES = 4, LEAST_TOKENS = 20, DISK_NS = 5000000 };

struct server_disk {
    struct {
        int32_t tokens[VE_CONTEXT];
        size_t n;
    } files[MOST_FILES];
    size_t n_files;
    sim_dice dice;
};

static server_disk the_disk;

server_disk *server_disk_open(moe_engine *engine, const server_options *options, char *error,
                              size_t error_size)
{
    (void)engine;
    (void)options;
    (void)error;
    (void)error_size;
    the_disk.n_files = 0;
    the_disk.dice = sim_dice_of(sim_roll(&the_engine.dice), 90);
    return &the_disk;
}

void server_disk_close(server_disk **disk)
{
    *disk = NULL;
}

static size_t most_alike(const server_disk *disk, const int32_t *tokens, size_t n, size_t *shared)
{
    size_t best = 0;
    *shared = 0;
    for (size_t i = 0; i < disk->n_files; i++) {
        size_t now = 0;
        while (now < n && now < disk->files[i].n && disk->files[i].tokens[now] == tokens[now]) {
            now++;
        }
        best = now > *shared ? i : best;
        *shared = now > *shared ? now : *shared;
    }
    return best;
}

size_t server_disk_shared(const server_disk *disk, const int32_t *tokens, size_t n)
{
    size_t shared = 0;
    if (disk != NULL) {
        (void)most_alike(disk, tokens, n, &shared);
    }
    return shared;
}

int server_disk_load(server_disk *disk, const int32_t *tokens, size_t n, moe_session **out)
{
    size_t shared;
    size_t i = most_alike(disk, tokens, n, &shared);
    ve_enter("moe_session_load");
    ve_work(DISK_NS);
    bool fails = sim_chance(&disk->dice, 200);
    *out = fails ? NULL : ve_new_session(disk->files[i].tokens, disk->files[i].n);
    if (fails) {
        disk->files[i] = disk->files[--disk->n_files];
    }
    ve_leave();
    return fails ? MOE_ERR_FORMAT : *out == NULL ? MOE_ERR_BUDGET : MOE_OK;
}

void server_disk_keep(server_disk *disk, const moe_session *session)
{
    if (disk == NULL || session->n < LEAST_TOKENS) {
        return;
    }
    ve_enter("moe_session_save");
    ve_work(DISK_NS);
    if (!sim_chance(&disk->dice, 200)) {
        size_t i =
            disk->n_files < MOST_FILES ? disk->n_files++ : sim_below(&disk->dice, MOST_FILES);
        disk->files[i].n = session->n - session->n_pending;
        memcpy(disk->files[i].tokens, session->tokens, disk->files[i].n * sizeof(int32_t));
    }
    ve_leave();
}
