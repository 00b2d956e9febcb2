/* SPDX-License-Identifier: MIT */
/* The folder where models of a hub are kept, in the layout that the hub's own programs and
 * llama.cpp use:
 *
 *   CACHE/models--OWNER--REPO/refs/REVISION           the commit that it was when last asked
 *                            /snapshots/COMMIT/FILE    -> ../../blobs/SUM
 *                            /blobs/SUM                the bytes
 *   CACHE/.locks/models--OWNER--REPO/SUM.lock          held while the blob is made
 *
 * A blob that is being downloaded is SUM.moe-part; SUM.moe-pieces says which bytes of it are
 * there. */
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

/* Finds the folder by HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME. This function and those below
 * return exit codes. */
int hub_cache_open(hub_cache *cache, const char *repo);
/* Reads the access token from HF_TOKEN, or from the file where the hub's own programs keep it; "":
 * none. */
int hub_cache_token(char *token, size_t size);

/* Lists the files of a snapshot, with sizes but without sums; an empty list if there is no
 * snapshot. */
int hub_cache_files(const hub_cache *cache, const char *commit, hub_files *files);
/* Finds the commit that a revision was when the hub was last asked ("": main); a commit is its own.
 * commit: "" if the cache does not know. */
void hub_cache_commit(const hub_cache *cache, const char *revision, char commit[HUB_COMMIT_SIZE]);
/* Finds the revision that a commit is: "main" if it is that one, else another that the cache
 * knows, else the commit itself. */
void hub_cache_revision(const hub_cache *cache, const char *commit,
                        char revision[HUB_REVISION_SIZE]);
/* Finds a model whose files are all there, in the snapshot of the name's revision. any: where the
 * name has no revision and main's snapshot lacks the model, any other will do. chosen->n is 0 if
 * there is none. */
int hub_cache_find(const hub_cache *cache, const hub_name *name, bool any, hub_files *chosen);

/* Calls the function for each snapshot of the repository, until it returns another code than
 * CLI_EXIT_OK. */
typedef int (*hub_snapshot_call)(const hub_cache *cache, const char *commit, void *user);
int hub_cache_snapshots(const hub_cache *cache, hub_snapshot_call call, void *user);
/* Calls the function for each repository of the cache, with its name "owner/repo". */
typedef int (*hub_repo_call)(const char *repo, void *user);
int hub_cache_repos(hub_repo_call call, void *user);

/* Writes the path CACHE/models--OWNER--REPO/snapshots/COMMIT/PATH. False: it is too long. */
bool hub_cache_path(char *out, size_t size, const hub_cache *cache, const char *commit,
                    const char *path);
bool hub_cache_blob(char *out, size_t size, const hub_cache *cache, const char *sum,
                    const char *ending);

/* Makes the folders above the path. */
int hub_make_parents(const char *path);
/* Makes the file of the snapshot a link to its blob. */
int hub_cache_link(const hub_cache *cache, const char *commit, const hub_file *file);
/* Writes refs/REVISION ("": main); a commit needs none. */
int hub_cache_set_ref(const hub_cache *cache, const char *revision, const char *commit);
/* Waits for the blob's lock; prints a note if that takes a while. The caller closes *fd. */
int hub_cache_lock(const hub_cache *cache, const char *sum, int *fd);
/* Removes a model from all snapshots, its blobs if nothing else links to them, and files beside it
 * with its name (sidecar, checksums). Adds the bytes that became free to *bytes. */
int hub_cache_remove(const hub_cache *cache, const char *commit, const hub_files *model,
                     uint64_t *bytes);
/* Removes refs to commits without a snapshot, and the repository's folders if no snapshot and no
 * blob is left. */
void hub_cache_tidy(const hub_cache *cache);
/* Removes files that interrupted downloads have left; returns their number. */
unsigned hub_cache_remove_parts(const hub_cache *cache, uint64_t *bytes);

#endif
