/* SPDX-License-Identifier: MIT */
/* Used in a build without libcurl or libcrypto: all functions print an error. */
#include "hub_net.h"

static int fail(const hub_name *name)
{
    return cli_fail(CLI_EXIT_FAILURE,
                    "%s is not in the cache, and this build downloads nothing: build it with "
                    "libcurl and libcrypto (Debian: libcurl4-openssl-dev, libssl-dev), or fetch "
                    "the file and give it with -m",
                    name->shown);
}

int hub_net_files(const hub_name *name, hub_files *chosen)
{
    (void)chosen;
    return fail(name);
}

int hub_net_pull(const hub_name *name, const hub_cache *cache, const cli_options *options,
                 hub_files *chosen, uint64_t *bytes)
{
    (void)cache, (void)options, (void)chosen, (void)bytes;
    return fail(name);
}

int hub_net_address(const char *model, char *url, size_t size)
{
    hub_name name;
    (void)url, (void)size;
    int code = hub_name_parse(&name, model);
    return code == CLI_EXIT_OK ? fail(&name) : code;
}

int hub_net_headers(const hub_name *name, const hub_cache *cache, hub_files *chosen, char *folder,
                    size_t size)
{
    (void)cache, (void)chosen, (void)folder, (void)size;
    return fail(name);
}
