/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>
#include <moe/verify.h>

#include "cli_copies.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "commands.h"

typedef struct verification {
    const cli_options *options;
    cli_progress progress;
    struct json_object *damaged;                          /* with --json */
    uint64_t n_kept, n_kept_damaged, n_kept_by_checksums; /* files of --cache-dir */
} verification;

static bool on_progress(double fraction, void *user)
{
    verification *v = user;
    cli_progress_show(&v->progress, fraction);
    return !cli_interrupted();
}

static void on_note(const char *line, void *user)
{
    verification *v = user;
    if (!v->options->quiet) {
        cli_progress_end(&v->progress);
        fprintf(stderr, "moe-offload: note: %s\n", line);
    }
}

static const char *const kind_names[] = {[MOE_DAMAGE_CHECKSUM] = "checksum",
                                         [MOE_DAMAGE_NOT_FINITE] = "not finite",
                                         [MOE_DAMAGE_DIFFERS] = "differs"};
static const char *const kind_words[] = {
    [MOE_DAMAGE_CHECKSUM] = "damaged, the checksum does not match",
    [MOE_DAMAGE_NOT_FINITE] = "damaged, values that are not finite",
    [MOE_DAMAGE_DIFFERS] = "other bytes than the model's; nothing tells which are right"};

static void on_damage(const moe_damage *damage, void *user)
{
    verification *v = user;
    if (v->options->json) {
        struct json_object *object = json_object_new_object();
        cli_json_text(object, "kind", kind_names[damage->kind]);
        cli_json_text(object, "file", damage->path);
        cli_json_text(object, "tensor", damage->tensor);
        cli_json_u64(object, "offset", damage->offset);
        cli_json_u64(object, "bytes", damage->bytes);
        if (damage->is_expert) {
            cli_json_u64(object, "layer", damage->layer);
            cli_json_u64(object, "expert", damage->expert);
        } else {
            cli_json_null(object, "layer");
            cli_json_null(object, "expert");
        }
        cli_json_append(v->damaged, object);
        return;
    }
    cli_progress_end(&v->progress);
    printf("%s: %s", damage->path, damage->tensor);
    if (damage->is_expert) {
        printf(" (layer %" PRIu32 ", expert %" PRIu32 ")", damage->layer, damage->expert);
    }
    printf(", %" PRIu64 " bytes at offset %" PRIu64 ": %s\n", damage->bytes, damage->offset,
           kind_words[damage->kind]);
    fflush(stdout);
}

static void print_result(const verification *v, const moe_verify_result *r)
{
    char bytes[CLI_FORMAT_SIZE];
    printf("%s: %s read, %" PRIu64 " parts, %" PRIu64 " with a checksum; %" PRIu64 " damaged\n",
           v->options->model, cli_format_bytes(bytes, r->bytes_read), r->n_parts, r->n_checksums,
           r->n_damaged);
    const char *kept = v->options->checksums;
    if (r->n_checksums < r->n_parts && !v->options->quiet) {
        fprintf(stderr,
                "moe-offload: note: parts without a checksum can be read and hold numbers; more "
                "than that is not known of them. %s\n",
                kept != NULL && strcmp(kept, "none") == 0
                    ? "Without '--checksums none' the next 'verify' knows what they were"
                    : "Their checksums are made now: what changes from here on will be seen");
    }
}

static int print_json(verification *v, const moe_verify_result *r)
{
    struct json_object *object = json_object_new_object();
    if (v->options->model != NULL) {
        cli_json_text(object, "model", v->options->model);
    } else {
        cli_json_null(object, "model");
    }
    cli_json_u64(object, "bytes_read", r->bytes_read);
    cli_json_u64(object, "parts", r->n_parts);
    cli_json_u64(object, "checksums", r->n_checksums);
    cli_json_u64(object, "damaged_parts", r->n_damaged);
    cli_json_u64(object, "kept_files", v->n_kept);
    cli_json_u64(object, "kept_files_damaged", v->n_kept_damaged);
    cli_json_u64(object, "kept_files_by_checksums", v->n_kept_by_checksums);
    cli_json_put(object, "damaged", v->damaged);
    v->damaged = NULL;
    return cli_json_print(object, stdout);
}

/* ---- Kept prompts ---- */

static void on_kept_damage(verification *v, const char *path, const char *why)
{
    v->n_kept_damaged++;
    if (v->options->json) {
        struct json_object *object = json_object_new_object();
        cli_json_text(object, "kind", "kept prompt");
        cli_json_text(object, "file", path);
        cli_json_append(v->damaged, object);
    } else {
        printf("%s\n", why);
        fflush(stdout);
    }
}

static int verify_kept(verification *v, const char *path)
{
    moe_error err = {""};
    bool by_checksums = false;
    int status = path != NULL ? moe_verify_session(path, &by_checksums, &err) : MOE_ERR_MEMORY;
    if (status == MOE_ERR_MEMORY) { /* the file was not checked */
        return cli_report(status, &err);
    }
    v->n_kept++;
    v->n_kept_by_checksums += by_checksums;
    if (status != MOE_OK) {
        on_kept_damage(v, path, err.message);
    }
    return CLI_EXIT_OK;
}

static int is_kept(const struct dirent *entry)
{
    static const char ending[] = ".moe-session";
    size_t size = strlen(entry->d_name);
    return size >= sizeof ending && strcmp(entry->d_name + size - (sizeof ending - 1), ending) == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int verify_folder(verification *v)
{
    const char *folder = v->options->cache_folder;
    struct dirent **entries;
    int n = scandir(folder, &entries, is_kept, by_name);
    if (n < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "--cache-dir %s: %s", folder, strerror(errno));
    }
    int code = CLI_EXIT_OK;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (code == CLI_EXIT_OK && !cli_interrupted()) {
            path = asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0 ? NULL : path;
            code = verify_kept(v, path);
        }
        free(path);
        free(entries[i]);
    }
    free(entries);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    if (!v->options->json) {
        printf("%s: %" PRIu64 " kept prompts, %" PRIu64 " tied to checksums of the weights, the "
               "others to inode, size and times of the model's file; %" PRIu64 " damaged\n",
               folder, v->n_kept, v->n_kept_by_checksums, v->n_kept_damaged);
    }
    return cli_interrupted() ? CLI_EXIT_INTERRUPTED : CLI_EXIT_OK;
}

/* ---- The command ---- */

static int verify_model(verification *v, moe_verify_result *result)
{
    const cli_options *options = v->options;
    moe_verify_options verify_options;
    moe_error err = {""};
    cli_copies copies = {.n = 0};
    moe_verify_options_init(&verify_options);
    if (cli_io_kind(&verify_options.io, options->io) != CLI_EXIT_OK ||
        cli_copies_read(&copies, &options->model_copies) != CLI_EXIT_OK) {
        return CLI_EXIT_USAGE;
    }
    verify_options.model_path = options->model;
    verify_options.calibration = options->calibration;
    verify_options.io_timeout = options->io_timeout;
    verify_options.progress = on_progress;
    verify_options.on_damage = on_damage;
    verify_options.log = on_note;
    verify_options.user = v;
    verify_options.model_copies = copies.list;
    verify_options.n_model_copies = copies.n;
    verify_options.checksums = options->checksums != NULL ? options->checksums : "auto";
    cli_progress_start(&v->progress, options, "verifying");
    int status = moe_verify(&verify_options, result, &err);
    cli_progress_end(&v->progress);
    return status != MOE_OK ? cli_report(status, &err) : CLI_EXIT_OK;
}

int cmd_verify(const cli_options *options)
{
    verification v = {.options = options};
    moe_verify_result result = {.struct_size = sizeof result};
    if (options->model == NULL && options->cache_folder == NULL) {
        return cli_fail(CLI_EXIT_USAGE, "verify: say what: -m FILE, --cache-dir FOLDER, or both");
    }
    if (options->json) {
        v.damaged = json_object_new_array();
    }
    cli_interrupt_install();
    int code = options->model != NULL ? verify_model(&v, &result) : CLI_EXIT_OK;
    if (code == CLI_EXIT_OK && options->model != NULL && !options->json) {
        print_result(&v, &result);
    }
    if (code == CLI_EXIT_OK && options->cache_folder != NULL) {
        code = verify_folder(&v);
    }
    if (code == CLI_EXIT_OK && options->json) {
        code = print_json(&v, &result);
    }
    json_object_put(v.damaged);
    return code == CLI_EXIT_OK && result.n_damaged + v.n_kept_damaged > 0 ? CLI_EXIT_FAILURE : code;
}
