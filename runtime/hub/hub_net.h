/* SPDX-License-Identifier: MIT */
/* What needs the hub itself, and so libcurl and libcrypto (hub_net.c); a build without them has
 * hub_none.c, whose functions say so. Exit codes. */
#ifndef HUB_NET_H
#define HUB_NET_H

#include "cli_options.h"
#include "hub_cache.h"

/* Asks for the files of the model that the name means. chosen->n is not 0 on success. */
int hub_net_files(const hub_name *name, hub_files *chosen);

/* Downloads the model's files that are not in the cache, and sets refs/main. *bytes: how many came.
 */
int hub_net_pull(const hub_name *name, const hub_cache *cache, const cli_options *options,
                 hub_files *chosen, uint64_t *bytes);

/* The address of the first file of the model that this OWNER/REPO[:QUANT] means. */
int hub_net_address(const char *model, char *url, size_t size);

/* Makes a folder with files of the model's names and sizes, of which only the headers are there:
 * some MB by ranges, the rest is holes. folder: "" if none was made. */
int hub_net_headers(const hub_name *name, const hub_cache *cache, hub_files *chosen, char *folder,
                    size_t size);

#endif
