/* SPDX-License-Identifier: MIT */
/* Writes the seeds of fuzz_split, fuzz_sidecar and fuzz_session, in FOLDER/corpus-split and so on.
 * Linked with trusting_hash.c, so that their checksums are those that the targets expect. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/sidecar_shape.h"
#include "tests/fuzz/tiny_model.h"

static const char *folder;

static void seed_path(char path[4096], const char *target, const char *name)
{
    snprintf(path, 4096, "%s/corpus-%s/%s", folder, target, name);
}

static FILE *create(const char *target, const char *name)
{
    char path[4096];
    seed_path(path, target, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

static gguf_builder *part(int number, int count, int n_tensors)
{
    char name[16];
    gguf_builder *b = gb_new();
    gb_raw_kv(b, "split.no", 8, MOE_GGUF_U16, &(uint16_t){(uint16_t)number}, 2);
    gb_raw_kv(b, "split.count", 11, MOE_GGUF_U16, &(uint16_t){(uint16_t)count}, 2);
    gb_i32(b, "split.tensors.count", n_tensors);
    snprintf(name, sizeof name, "t%d", number);
    gb_tensor(b, name, MOE_DTYPE_F32, 1, 8);
    return b;
}

/* The name chosen is the first part's of that many: 1 of 1, 1 of 2, 1 of 3, ... */
static void write_split(const char *name, int count, gguf_builder *first)
{
    static const uint8_t opened[] = {0, 1, 3, 6};
    FILE *file = create("split", name);
    fputc(opened[count - 1], file);
    for (int i = 0; i < count; i++) {
        gguf_builder *b = i == 0 && first != NULL ? first : part(i, count, count);
        size_t size;
        const uint8_t *bytes = gb_finish(b, &size);
        if (i < 3) { /* the fourth is what is left */
            fputc((int)(size & 255), file);
            fputc((int)(size >> 8), file);
        }
        fwrite(bytes, 1, size, file);
        gb_free(b);
    }
    fclose(file);
}

static void write_splits(void)
{
    gb_model model = fuzz_tiny_model("olmoe");
    gguf_builder *whole = gb_model_build(&model);
    write_split("one", 1, whole);
    write_split("two", 2, NULL);
    write_split("three", 3, NULL);
    write_split("four", 4, NULL);
}

static void write_sidecar(const char *name, moe_calibration_extent extent)
{
    moe_calibration *c = NULL;
    char path[4096];
    char saved[4096 + 8];
    fuzz_expect(moe_calibration_create(&c, &fuzz_sidecar_shape, "a text", extent, NULL) == MOE_OK);
    c->n_tokens = 100;
    uint32_t n = c->shape.n_expert;
    for (uint32_t row = 0; row < c->shape.n_layer * n; row++) {
        c->counts[row] = 10 * row;
        for (uint32_t e = 0; e < n && extent != MOE_CALIBRATION_HOTNESS; e++) {
            c->coactivation[row * n + e] = e == row % n ? 0.0f : 5.0f;
            for (int kind = 0; kind < MOE_AFFINITY_KINDS; kind++) {
                c->affinity[kind][row * n + e] = (uint16_t)((row + e) % n);
            }
        }
    }
    seed_path(path, "sidecar", name);
    snprintf(saved, sizeof saved, "%s.saved", path);
    fuzz_expect(moe_calibration_save(c, saved, NULL) == MOE_OK);
    moe_calibration_free(&c);
    FILE *in = fopen(saved, "rb");
    FILE *out = create("sidecar", name);
    fputc(extent == MOE_CALIBRATION_GRAM, out);
    for (int byte = fgetc(in); byte != EOF; byte = fgetc(in)) {
        fputc(byte, out);
    }
    fclose(in);
    fclose(out);
    remove(saved);
}

static void write_session(moe_engine *engine, const char *name, uint32_t n_fed, uint32_t n_steps)
{
    moe_session_options options;
    moe_session *session = NULL;
    char path[4096];
    int32_t tokens[128];
    moe_session_options_init(&options);
    options.sampling.seed = 1;
    for (uint32_t i = 0; i < n_fed; i++) {
        tokens[i] = (int32_t)(i * 7 % 5);
    }
    fuzz_expect(moe_session_create(&session, engine, &options, NULL) == MOE_OK);
    fuzz_expect(moe_session_feed(session, tokens, n_fed, NULL) == MOE_OK);
    for (uint32_t i = 0; i < n_steps; i++) {
        fuzz_expect(moe_step(engine, &session, 1, NULL) == MOE_OK);
    }
    seed_path(path, "session", name);
    fuzz_expect(moe_session_save(session, path, NULL) == MOE_OK);
    moe_session_close(&session);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    write_splits();
    write_sidecar("hotness", MOE_CALIBRATION_HOTNESS);
    write_sidecar("tables", MOE_CALIBRATION_TABLES);
    write_sidecar("gram", MOE_CALIBRATION_GRAM);
    moe_engine *engine = fuzz_tiny_engine();
    write_session(engine, "begun", 3, 0);
    write_session(engine, "decoded", 3, 4);
    write_session(engine, "two-pages", 70, 12);
    moe_engine_close(&engine);
    return 0;
}
