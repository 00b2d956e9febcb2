/* SPDX-License-Identifier: MIT */
/* Models by name: pull, list, rm, show. */
#include <stdio.h>
#include <string.h>

#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "commands.h"
#include "hub_model.h"
#include "hub_net.h"

static int open_named(const cli_options *options, hub_name *name, hub_cache *cache)
{
    int code = hub_name_parse(name, options->hub_model);
    return code == CLI_EXIT_OK ? hub_cache_open(cache, name->repo) : code;
}

static uint64_t size_of(const hub_files *files)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < files->n; i++) {
        bytes += files->list[i].size;
    }
    return bytes;
}

static void print_files(const hub_files *files)
{
    char size[CLI_FORMAT_SIZE];
    for (size_t i = 0; i < files->n; i++) {
        printf("%12s  %s\n", cli_format_bytes(size, files->list[i].size), files->list[i].path);
    }
    printf("%12s  in all\n", cli_format_bytes(size, size_of(files)));
}

/* ---- pull ---- */

/* Prints what would be downloaded, and how the model would run here according to its header. */
static int foretell(const cli_options *options, const hub_name *name)
{
    hub_files files = {0};
    hub_model model;
    cli_options planned = *options;
    int code = hub_net_files(name, &files);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    print_files(&files);
    hub_files_free(&files);
    putchar('\n');
    fflush(stdout);
    code = hub_model_take(&model, &planned, true);
    code = code == CLI_EXIT_OK ? cmd_plan(&planned) : code;
    hub_model_release(&model);
    return code;
}

static void print_speed(const cli_options *options, uint64_t bytes, uint64_t ns)
{
    char size[CLI_FORMAT_SIZE];
    if (!options->quiet && bytes > 0) {
        fprintf(stderr, "downloaded %s in %.1f s (%.1f MB/s)\n", cli_format_bytes(size, bytes),
                cli_seconds(ns), (double)bytes / cli_seconds(ns) / 1e6);
    } else if (!options->quiet) {
        fprintf(stderr, "the cache has it already\n");
    }
}

int cmd_pull(const cli_options *options)
{
    hub_name name;
    hub_cache cache;
    hub_files files = {0};
    char path[PATH_MAX];
    uint64_t bytes = 0;
    int code = open_named(options, &name, &cache);
    if (code == CLI_EXIT_OK && hub_is_offline(options)) {
        code = cli_fail(CLI_EXIT_USAGE, "pull: the hub must not be asked (HF_HUB_OFFLINE)");
    }
    if (code != CLI_EXIT_OK || options->dry_run) {
        return code == CLI_EXIT_OK ? foretell(options, &name) : code;
    }
    uint64_t begun = cli_now_ns();
    cli_interrupt_install();
    code = hub_net_pull(&name, &cache, options, &files, &bytes);
    if (code == CLI_EXIT_OK &&
        hub_cache_path(path, sizeof path, &cache, files.commit, files.list[0].path)) {
        print_speed(options, bytes, cli_now_ns() - begun);
        printf("%s\n", path);
    }
    hub_files_free(&files);
    return code;
}

/* ---- list ---- */

/* A function that is called for each model of a repository's snapshots, or only for the model that
 * `quant` means. */
typedef struct model_call {
    int (*call)(const hub_cache *cache, const char *name, const hub_files *model, void *user);
    const char *repo;
    const char *quant; /* "": all models */
    void *user;
} model_call;

static int call_model(const hub_cache *cache, const hub_files *files, const char *quant,
                      const model_call *m)
{
    char text[HUB_SHOWN_SIZE + HUB_QUANT_SIZE], shown[HUB_QUANT_SIZE];
    char revision[HUB_REVISION_SIZE];
    hub_name name = {.repo = ""};
    hub_files model;
    snprintf(name.quant, sizeof name.quant, "%s", quant);
    if (!hub_files_choose(&model, files, &name)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the list of models");
    }
    int code = CLI_EXIT_OK;
    if (model.n > 0) { /* otherwise parts are missing */
        hub_quant_of(model.list[0].path, shown);
        hub_cache_revision(cache, files->commit, revision);
        bool is_main = strcmp(revision, "main") == 0;
        snprintf(text, sizeof text, "%s%s%s:%s", m->repo, is_main ? "" : "@",
                 is_main ? "" : revision, shown);
        code = m->call(cache, text, &model, m->user);
    }
    hub_files_free(&model);
    return code;
}

static int call_snapshot(const hub_cache *cache, const char *commit, void *user)
{
    const model_call *m = user;
    hub_files files;
    int code = hub_cache_files(cache, commit, &files);
    if (code == CLI_EXIT_OK && m->quant[0] != '\0') {
        code = call_model(cache, &files, m->quant, m);
    } else {
        for (size_t i = hub_files_next_model(&files, 0); code == CLI_EXIT_OK && i < files.n;
             i = hub_files_next_model(&files, i + 1)) {
            code = call_model(cache, &files, files.list[i].path, m);
        }
    }
    hub_files_free(&files);
    return code;
}

static int print_model(const hub_cache *cache, const char *name, const hub_files *model, void *user)
{
    struct json_object *list = user;
    char path[PATH_MAX], size[CLI_FORMAT_SIZE];
    if (!hub_cache_path(path, sizeof path, cache, model->commit, model->list[0].path)) {
        return CLI_EXIT_OK;
    }
    if (list == NULL) {
        printf("%-60s %12s  %s\n", name, cli_format_bytes(size, size_of(model)), path);
        return CLI_EXIT_OK;
    }
    struct json_object *entry = json_object_new_object();
    cli_json_text(entry, "name", name);
    cli_json_u64(entry, "bytes", size_of(model));
    cli_json_u64(entry, "files", model->n);
    cli_json_text(entry, "commit", model->commit);
    cli_json_text(entry, "path", path);
    cli_json_append(list, entry);
    return CLI_EXIT_OK;
}

static int print_repo(const char *repo, void *user)
{
    hub_cache cache;
    model_call m = {print_model, repo, "", user};
    int code = hub_cache_open(&cache, repo);
    return code == CLI_EXIT_OK ? hub_cache_snapshots(&cache, call_snapshot, &m) : code;
}

int cmd_list(const cli_options *options)
{
    struct json_object *list = options->json ? json_object_new_array() : NULL;
    if (options->json && list == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the list of models");
    }
    int code = hub_cache_repos(print_repo, list);
    if (code == CLI_EXIT_OK && list != NULL) {
        return cli_json_print(list, stdout);
    }
    json_object_put(list);
    return code;
}

/* ---- rm ---- */

typedef struct removal {
    unsigned n_models;
    uint64_t bytes;
} removal;

static int remove_model(const hub_cache *cache, const char *name, const hub_files *model,
                        void *user)
{
    removal *r = user;
    int code = hub_cache_remove(cache, model->commit, model, &r->bytes);
    if (code == CLI_EXIT_OK) {
        r->n_models++;
        printf("removed %s\n", name);
    }
    return code;
}

int cmd_rm(const cli_options *options)
{
    char freed[CLI_FORMAT_SIZE], commit[HUB_COMMIT_SIZE];
    hub_name name;
    hub_cache cache;
    removal r = {0};
    int code = open_named(options, &name, &cache);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    model_call m = {remove_model, name.repo, name.quant, &r};
    if (name.revision[0] == '\0') {
        code = hub_cache_snapshots(&cache, call_snapshot, &m);
    } else {
        hub_cache_commit(&cache, name.revision, commit);
        code = commit[0] != '\0' ? call_snapshot(&cache, commit, &m) : CLI_EXIT_OK;
    }
    if (code == CLI_EXIT_OK && name.quant[0] == '\0' && name.revision[0] == '\0') {
        r.n_models += hub_cache_remove_parts(&cache, &r.bytes);
    }
    hub_cache_tidy(&cache);
    if (code == CLI_EXIT_OK && r.n_models == 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s is not in the cache (see 'moe-offload list')",
                        options->hub_model);
    }
    if (code == CLI_EXIT_OK && !options->quiet) {
        fprintf(stderr, "freed %s\n", cli_format_bytes(freed, r.bytes));
    }
    return code;
}

/* ---- show ---- */

int cmd_show(const cli_options *options)
{
    hub_name name;
    hub_cache cache;
    hub_files files;
    hub_model model = {.path = ""};
    cli_options shown = *options;
    int code = open_named(options, &name, &cache);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    code = hub_cache_find(&cache, &name, hub_is_offline(options), &files);
    bool cached = files.n > 0;
    if (code == CLI_EXIT_OK && !cached && !hub_is_offline(options)) {
        code = hub_net_files(&name, &files);
    }
    code = code == CLI_EXIT_OK ? hub_model_take(&model, &shown, true) : code;
    if (code == CLI_EXIT_OK && !options->json) {
        printf("repository:   %s, commit %.12s\nin the cache: %s\n", name.shown, files.commit,
               cached ? "yes" : "no ('moe-offload pull' downloads it)");
        print_files(&files);
        putchar('\n');
    }
    code = code == CLI_EXIT_OK ? cmd_inspect(&shown) : code;
    hub_model_release(&model);
    hub_files_free(&files);
    return code;
}
