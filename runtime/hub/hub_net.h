/* SPDX-License-Identifier: MIT */
/* Functions that ask the hub itself, and so need libcurl and libcrypto (hub_net.c). In a build
 * without these libraries, the functions of hub_none.c only print an error. They return exit
 * codes. */
#ifndef HUB_NET_H
#define HUB_NET_H

#include "cli_options.h"
#include "hub_cache.h"

/* Asks the hub for the files of the model that the name means. chosen->n is not 0 on success. */
int hub_net_files(const hub_name *name, hub_files *chosen);

/* Downloads the model's files that are not in the cache, and sets the ref of its revision. *bytes:
 * bytes downloaded. */
int hub_net_pull(const hub_name *name, const hub_cache *cache, const cli_options *options,
                 hub_files *chosen, uint64_t *bytes);

/* Writes the address of the first file of the model that OWNER/REPO[@REVISION][:QUANT] means. */
int hub_net_address(const char *model, char *url, size_t size);

/* Makes a folder with files of the model's names and sizes that contain only the headers: it
 * fetches some MB by ranges, and the rest is holes. folder: "" if none was made. */
int hub_net_headers(const hub_name *name, const hub_cache *cache, hub_files *chosen, char *folder,
                    size_t size);

#endif
