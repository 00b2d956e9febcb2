/* SPDX-License-Identifier: MIT */
/* The command line. The first byte chooses the command, the rest is its arguments, each ended by a
 * 0 byte. What parses for `plan` also becomes options of the library and is planned for a small
 * model. What the command prints is thrown away. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli_base/cli_engine.h"
#include "runtime/cli_base/cli_options.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/tiny_model.h"

#define MAX_ARGUMENTS 24

static const char *model_path(void)
{
    static fuzz_file file;
    if (file.fd == 0) {
        gb_model model = fuzz_tiny_model("olmoe");
        gguf_builder *b = gb_model_build(&model);
        size_t size;
        const uint8_t *bytes = gb_finish(b, &size);
        fuzz_file_write(&file, bytes, size);
        gb_free(b);
    }
    return file.path;
}

static void plan(const cli_options *options)
{
    cli_engine_settings settings;
    moe_memory_plan memory = {.struct_size = sizeof memory};
    moe_error err = {""};
    if (cli_engine_options(&settings, options, options->context) == CLI_EXIT_OK) {
        int status = moe_plan_memory(&settings.options, &memory, &err);
        fuzz_expect(status == MOE_OK || err.message[0] != '\0');
    }
}

static void parse(const cli_command *command, int argc, char **argv)
{
    cli_options options;
    int code = -1;
    bool goes_on = cli_options_parse(&options, command, argc, argv, &code);
    fuzz_expect(code == CLI_EXIT_OK || (!goes_on && code == CLI_EXIT_USAGE));
    if (goes_on && command->bit == CLI_PLAN) {
        options.model = model_path();
        plan(&options);
    }
    if (goes_on) {
        cli_options_free(&options);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    static size_t n_commands;
    if (nowhere == NULL) {
        nowhere = fopen("/dev/null", "w");
        fuzz_expect(nowhere != NULL);
        while (cli_commands[n_commands].name != NULL) {
            n_commands++;
        }
    }
    if (size == 0) {
        return 0;
    }
    char *arguments = calloc(size, 1); /* a 0 byte behind the last, in place of the first */
    char *argv[MAX_ARGUMENTS + 3] = {"-m", (char *)model_path()};
    int argc = 2;
    fuzz_expect(arguments != NULL);
    memcpy(arguments, data + 1, size - 1);
    for (size_t at = 0; at < size - 1 && argc < MAX_ARGUMENTS + 2;
         at += strlen(arguments + at) + 1) {
        argv[argc++] = arguments + at;
    }
    const cli_command *command = &cli_commands[data[0] % n_commands];
    int first = command->needs_model ? 0 : 2;
    FILE *streams[2] = {stdout, stderr};
    stdout = stderr = nowhere;
    parse(command, argc - first, argv + first);
    stdout = streams[0];
    stderr = streams[1];
    free(arguments);
    return 0;
}
