/* SPDX-License-Identifier: MIT */
/* The folder where models of a hub are kept, as the hub's own programs and llama.cpp have it:
 *
 *   CACHE/models--OWNER--REPO/refs/main               the commit that "main" was when last asked
 *                            /snapshots/COMMIT/FILE    -> ../../blobs/SUM
 *                            /blobs/SUM                the bytes
 *   CACHE/.locks/models--OWNER--REPO/SUM.lock          held while the blob is made
 *
 * A blob that is being downloaded is SUM.moe-part, and SUM.moe-pieces says what of it is there. */
#ifndef HUB_CACHE_H
#define HUB_CACHE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "hub_names.h"

enum { HUB_FOLDER_SIZE = PATH_MAX / 2 };

typedef struct hub_cache {
    char folder[HUB_FOLDER_SIZE]; /* CACHE */
    char repo[HUB_FOLDER_SIZE];   /* CACHE/models--OWNER--REPO */
} hub_cache;

/* From HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME. Exit codes here and below. */
int hub_cache_open(hub_cache *cache, const char *repo);
/* From HF_TOKEN, or the file that the hub's own programs keep it in; "": none. */
int hub_cache_token(char *token, size_t size);

/* Files of a snapshot, each with its size and without its sum; none, if there is no snapshot. */
int hub_cache_files(const hub_cache *cache, const char *commit, hub_files *files);
/* The commit of refs/main; "": none. */
void hub_cache_main(const hub_cache *cache, char commit[HUB_COMMIT_SIZE]);
/* Finds a model whose files are all there, in the snapshot of refs/main or else in any other.
 * chosen->n is 0 if it is not there. */
int hub_cache_find(const hub_cache *cache, const hub_name *name, hub_files *chosen);

/* Calls for each snapshot of the repository, until it returns another code than CLI_EXIT_OK. */
typedef int (*hub_snapshot_call)(const hub_cache *cache, const char *commit, void *user);
int hub_cache_snapshots(const hub_cache *cache, hub_snapshot_call call, void *user);
/* Calls for each repository of the cache with its name, "owner/repo". */
typedef int (*hub_repo_call)(const char *repo, void *user);
int hub_cache_repos(hub_repo_call call, void *user);

/* CACHE/models--OWNER--REPO/snapshots/COMMIT/PATH. False: too long. */
bool hub_cache_path(char *out, size_t size, const hub_cache *cache, const char *commit,
                    const char *path);
bool hub_cache_blob(char *out, size_t size, const hub_cache *cache, const char *sum,
                    const char *ending);

/* Makes the folders above the path. */
int hub_make_parents(const char *path);
/* Makes the file of the snapshot a link to its blob. */
int hub_cache_link(const hub_cache *cache, const char *commit, const hub_file *file);
/* Writes refs/main. */
int hub_cache_set_main(const hub_cache *cache, const char *commit);
/* Waits for the blob's lock, with a note if that takes a while. *fd: close it. */
int hub_cache_lock(const hub_cache *cache, const char *sum, int *fd);
/* Removes a model from all snapshots, its blobs if nothing else links to them, and what stands
 * beside it by its name. Adds what became free to *bytes. */
int hub_cache_remove(const hub_cache *cache, const char *commit, const hub_files *model,
                     uint64_t *bytes);
/* Removes the repository's folders, if no snapshot and no blob is left. */
void hub_cache_tidy(const hub_cache *cache);
/* Removes what interrupted downloads have left; returns how many there were. */
unsigned hub_cache_remove_parts(const hub_cache *cache, uint64_t *bytes);

#endif
