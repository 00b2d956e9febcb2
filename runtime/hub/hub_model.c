/* SPDX-License-Identifier: MIT */
#include "hub_model.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_interrupt.h"
#include "hub_net.h"

bool hub_is_offline(const cli_options *options)
{
    const char *value = getenv("HF_HUB_OFFLINE");
    return options->offline || (value != NULL && value[0] != '\0' && strcmp(value, "0") != 0);
}

static int take_new(hub_model *model, const hub_cache *cache, const hub_name *name,
                    cli_options *options, bool header_only, hub_files *files)
{
    uint64_t bytes;
    if (hub_is_offline(options)) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s%s%s is not in the cache %s, and the hub is not asked (--offline)",
                        name->shown, name->quant[0] != '\0' ? ":" : "", name->quant, cache->folder);
    }
    if (!header_only) {
        return hub_net_pull(name, cache, options, files, &bytes);
    }
    options->model_is_header = true;
    return hub_net_headers(name, cache, files, model->folder, sizeof model->folder);
}

int hub_model_take(hub_model *model, cli_options *options, bool header_only)
{
    hub_cache cache;
    hub_name name;
    hub_files files = {0};
    *model = (hub_model){.path = ""};
    int code = hub_name_parse(&name, options->hub_model);
    code = code == CLI_EXIT_OK ? hub_cache_open(&cache, name.repo) : code;
    code =
        code == CLI_EXIT_OK ? hub_cache_find(&cache, &name, hub_is_offline(options), &files) : code;
    if (code == CLI_EXIT_OK && files.n == 0) {
        cli_interrupt_install();
        code = take_new(model, &cache, &name, options, header_only, &files);
    }
    if (code == CLI_EXIT_OK && model->folder[0] != '\0') {
        const char *slash = strrchr(files.list[0].path, '/');
        snprintf(model->path, sizeof model->path, "%s/%s", model->folder,
                 slash == NULL ? files.list[0].path : slash + 1);
    } else if (code == CLI_EXIT_OK && !hub_cache_path(model->path, sizeof model->path, &cache,
                                                      files.commit, files.list[0].path)) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: the path is too long", cache.repo);
    }
    options->model = model->path;
    hub_files_free(&files);
    return code;
}

bool hub_model_is_here(const cli_options *options)
{
    hub_cache cache;
    hub_name name;
    hub_files files = {0};
    bool here = hub_name_parse(&name, options->hub_model) == CLI_EXIT_OK &&
                hub_cache_open(&cache, name.repo) == CLI_EXIT_OK &&
                hub_cache_find(&cache, &name, hub_is_offline(options), &files) == CLI_EXIT_OK &&
                files.n > 0;
    hub_files_free(&files);
    return here;
}

void hub_model_release(hub_model *model)
{
    DIR *dir = model->folder[0] != '\0' ? opendir(model->folder) : NULL;
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        char path[PATH_MAX];
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", model->folder, entry->d_name);
            unlink(path);
        }
    }
    if (dir != NULL) {
        closedir(dir);
        rmdir(model->folder);
    }
}
