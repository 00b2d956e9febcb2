/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>

#include <moe/moe.h>
#include <moe/verify.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "commands.h"

typedef struct verification {
    const cli_options *options;
    cli_progress progress;
    struct json_object *damaged; /* with --json */
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

static const char *kind_name(moe_damage_kind kind)
{
    return kind == MOE_DAMAGE_CHECKSUM ? "checksum" : "not finite";
}

static void on_damage(const moe_damage *damage, void *user)
{
    verification *v = user;
    if (v->options->json) {
        struct json_object *object = json_object_new_object();
        cli_json_text(object, "kind", kind_name(damage->kind));
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
           damage->kind == MOE_DAMAGE_CHECKSUM ? "damaged, the checksum does not match"
                                               : "damaged, values that are not finite");
    fflush(stdout);
}

static void print_result(const verification *v, const moe_verify_result *r)
{
    char bytes[CLI_FORMAT_SIZE];
    printf("%s: %s read, %" PRIu64 " parts, %" PRIu64 " with a checksum; %" PRIu64 " damaged\n",
           v->options->model, cli_format_bytes(bytes, r->bytes_read), r->n_parts, r->n_checksums,
           r->n_damaged);
    if (r->n_checksums < r->n_parts && !v->options->quiet) {
        fprintf(stderr,
                "moe-offload: note: parts without a checksum can be read and hold numbers; more "
                "than that is not known. 'moe-offload calibrate -m %s -f TEXT', run on a sound "
                "file, makes checksums of all\n",
                v->options->model);
    }
}

static int print_json(verification *v, const moe_verify_result *r)
{
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "model", v->options->model);
    cli_json_u64(object, "bytes_read", r->bytes_read);
    cli_json_u64(object, "parts", r->n_parts);
    cli_json_u64(object, "checksums", r->n_checksums);
    cli_json_u64(object, "damaged_parts", r->n_damaged);
    cli_json_put(object, "damaged", v->damaged);
    v->damaged = NULL;
    return cli_json_print(object, stdout);
}

int cmd_verify(const cli_options *options)
{
    verification v = {.options = options};
    moe_verify_options verify_options;
    moe_verify_result result = {.struct_size = sizeof result};
    moe_error err = {""};
    moe_verify_options_init(&verify_options);
    if (cli_io_kind(&verify_options.io, options->io) != CLI_EXIT_OK) {
        return CLI_EXIT_USAGE;
    }
    verify_options.model_path = options->model;
    verify_options.calibration = options->calibration;
    verify_options.io_timeout = options->io_timeout;
    verify_options.progress = on_progress;
    verify_options.on_damage = on_damage;
    verify_options.log = on_note;
    verify_options.user = &v;
    if (options->json) {
        v.damaged = json_object_new_array();
    }
    cli_interrupt_install();
    cli_progress_start(&v.progress, options, "verifying");
    int status = moe_verify(&verify_options, &result, &err);
    cli_progress_end(&v.progress);
    int code = status != MOE_OK ? cli_report(status, &err) : CLI_EXIT_OK;
    if (code == CLI_EXIT_OK && options->json) {
        code = print_json(&v, &result);
    } else if (code == CLI_EXIT_OK) {
        print_result(&v, &result);
    }
    json_object_put(v.damaged);
    return code == CLI_EXIT_OK && result.n_damaged > 0 ? CLI_EXIT_FAILURE : code;
}
