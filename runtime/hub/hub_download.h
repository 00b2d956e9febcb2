/* SPDX-License-Identifier: MIT */
/* Downloads one file by ranges, over several connections at a time. */
#ifndef HUB_DOWNLOAD_H
#define HUB_DOWNLOAD_H

#include "cli_progress.h"
#include "hub_cache.h"
#include "hub_http.h"

/* Where a file of a repository is, and its facts according to the hub. */
typedef struct hub_place {
    char url[HUB_URL_SIZE];
    bool ranges; /* the server gives parts of a file */
} hub_place;

/* Bytes of all files together, for the line of progress. */
typedef struct hub_meter {
    cli_progress *progress;
    uint64_t all;
    uint64_t before; /* bytes of files that are complete */
    uint64_t begun_ns;
    uint64_t begun_bytes; /* bytes that were there when the download began */
    uint64_t last_ns;     /* when the speed was last sampled */
    uint64_t last_bytes;
    double bytes_per_s;
} hub_meter;

/* Escapes characters that a part of an address cannot have ("%20"), except those in `kept`. False:
 * the result is too long. */
bool hub_escape(const char *path, const char *kept, char *out, size_t size);
/* Writes the address of a file of the repository. False: it is too long. */
bool hub_file_address(const hub_http *http, const char *repo, const char *commit, const char *path,
                      char *url, size_t size);
/* Finds the file, checks that the hub's facts about it agree, and fills in its sum. Returns an exit
 * code. */
int hub_locate(hub_http *http, const char *repo, const char *commit, hub_file *file,
               hub_place *place);
/* Downloads the file as a blob into the cache. The caller holds the blob's lock. */
int hub_download(hub_http *http, const hub_cache *cache, const char *commit, const char *repo,
                 hub_file *file, hub_meter *meter);

#endif
