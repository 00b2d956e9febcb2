/* SPDX-License-Identifier: MIT */
/* Tells how far opening a model has come, gives up at a fraction if asked to, and says what was
 * opened. Usage: progress MODEL.gguf [GIVE_UP_AT] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <moe/moe.h>

typedef struct opening {
    double give_up_at;
    unsigned calls;
} opening;

static bool on_progress(double fraction, void *user)
{
    opening *state = user;
    state->calls++;
    fprintf(stderr, "\r%3.0f%%", fraction * 100);
    return fraction < state->give_up_at;
}

static void on_note(const char *line, void *user)
{
    (void)user;
    fprintf(stderr, "note: %s\n", line);
}

int main(int argc, char **argv)
{
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_engine_info info = {.struct_size = sizeof info};
    moe_error err = {""};
    opening state = {2, 0};
    if (argc < 2) {
        fprintf(stderr, "usage: progress MODEL.gguf [GIVE_UP_AT]\n");
        return 2;
    }
    if (argc > 2) {
        state.give_up_at = atof(argv[2]);
    }
    moe_engine_options_init(&options);
    options.model_path = argv[1];
    options.progress = on_progress;
    options.log = on_note;
    options.user = &state;
    int status = moe_engine_open(&engine, &options, &err);
    fprintf(stderr, "\n");
    if (status == MOE_ERR_CANCELLED) {
        printf("given up after %u calls\n", state.calls);
        return 0;
    }
    if (status != MOE_OK) {
        fprintf(stderr, "progress: %s\n", err.message);
        return 1;
    }
    moe_engine_get_info(engine, &info);
    printf("%s: %u layers of %u experts, %u used; %" PRIu64 " bytes resident, %" PRIu64
           " of experts\n",
           info.family, info.n_layer, info.n_expert, info.n_expert_used, info.resident_bytes,
           info.expert_bytes);
    moe_engine_close(&engine);
    return 0;
}
