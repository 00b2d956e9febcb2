/* SPDX-License-Identifier: MIT */
#include "cli_sweep_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli_json.h"
#include "cli_prompt.h"

#define DEFAULT_DECODE 64

/* Identifies a file by its content: an edited text is another file, a moved one is the same. */
static void describe_bytes(struct json_object *identity, const char *what, const char *path,
                           const cli_buffer *bytes)
{
    char hex[CLI_HASH_HEX_SIZE];
    char text[CLI_HASH_HEX_SIZE + 16];
    char key[64];
    cli_hash_bytes(bytes->data, bytes->size, 0, hex);
    snprintf(text, sizeof text, "xxh128 %s", hex);
    cli_json_text(identity, what, text);
    snprintf(key, sizeof key, "%s_file", what);
    cli_json_text(identity, key, path);
}

/* Describes the file; if path is NULL, uses the text `otherwise`. Returns an exit code. */
static int describe_file(struct json_object *identity, const char *what, const char *path,
                         const char *otherwise)
{
    cli_buffer bytes = {0};
    if (path == NULL || strcmp(path, "none") == 0) {
        cli_json_text(identity, what, otherwise);
        return CLI_EXIT_OK;
    }
    int code = cli_read_file(&bytes, path);
    if (code == CLI_EXIT_OK) {
        describe_bytes(identity, what, path, &bytes);
    }
    cli_buffer_free(&bytes);
    return code;
}

int cli_sweep_model_describe(cli_sweep_model *m)
{
    const cli_options *o = m->sweep.options;
    char text[128];
    int code = cli_sweep_identify(&m->sweep, o->model, true);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    struct json_object *identity = m->sweep.identity;
    m->run.n_prompt = o->bench_prompt;
    m->run.n_decode = o->predict < 1 ? DEFAULT_DECODE : (size_t)o->predict;
    if (o->prompt_file != NULL) {
        code = cli_prompt_text(&m->text, o);
        m->run.text = &m->text;
        if (code == CLI_EXIT_OK) {
            describe_bytes(identity, "prompt", o->prompt_file, &m->text);
        }
    } else {
        snprintf(text, sizeof text, "random tokens, seed %" PRId64, o->seed < 0 ? 0 : o->seed);
        cli_json_text(identity, "prompt", text);
    }
    code = code == CLI_EXIT_OK ? describe_file(identity, "routing", o->route_trace, "the model's")
                               : code;
    code =
        code == CLI_EXIT_OK ? describe_file(identity, "calibration", o->calibration, "none") : code;
    if (o->route_trace != NULL) {
        cli_json_text(identity, "text", "means nothing: the routing is replayed");
    }
    snprintf(text, sizeof text, "%zu of the prompt, %zu written (greedy), which are counted",
             m->run.n_prompt, m->run.n_decode);
    cli_json_text(identity, "tokens", text);
    cli_json_text(identity, "page cache",
                  "the model's files dropped before each run (posix_fadvise); no warm start");
    return code;
}

void cli_sweep_model_close(cli_sweep_model *m)
{
    cli_sweep_close(&m->sweep);
    cli_buffer_free(&m->text);
}
