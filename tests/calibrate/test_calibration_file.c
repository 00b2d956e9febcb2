/* SPDX-License-Identifier: MIT */
/* The sidecar file: what is saved is what is loaded, and a file that is damaged, hostile or of
 * another model is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/sidecar/calibration.h"

#define N_LAYER  2
#define N_EXPERT 4
#define N_EMBD   3
#define N_PAIRS  (N_LAYER * N_EXPERT * N_EXPERT)

static const moe_calibration_shape shape = {.fingerprint = 0x1234567890abcdef,
                                            .n_layer = N_LAYER,
                                            .n_expert = N_EXPERT,
                                            .n_expert_used = 2,
                                            .n_embd = N_EMBD};
static char path[64];

static moe_calibration *make_valid(void)
{
    moe_calibration *c = NULL;
    assert_int_equal(moe_calibration_create(&c, &shape, "a text", MOE_CALIBRATION_GRAM, NULL),
                     MOE_OK);
    c->n_tokens = 100;
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++) {
        c->counts[i] = 10 * i;
        for (uint32_t j = 0; j < N_EXPERT; j++) {
            c->coactivation[i * N_EXPERT + j] = j == i % N_EXPERT ? 0.0f : 5.0f;
            c->coactivation_weighted[i * N_EXPERT + j] = j == i % N_EXPERT ? 0.0f : 1.25f;
            for (int kind = 0; kind < MOE_AFFINITY_KINDS; kind++) {
                c->affinity[kind][i * N_EXPERT + j] = (uint16_t)((i + j) % N_EXPERT);
            }
        }
        for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
            c->checksums[i * MOE_EXPERT_PARTS + p] = UINT64_MAX - i - p;
        }
    }
    for (uint32_t i = 0; i < N_LAYER * MOE_PERCENTILES; i++) {
        c->tae[i] = c->margin[i] = (float)(i % MOE_PERCENTILES) / 100.0f;
    }
    for (uint32_t i = 0; i < N_LAYER * N_EMBD * N_EMBD; i++) {
        c->gram[i] = (float)i - 4.5f;
    }
    static moe_draft_habits drafts;
    drafts.of[1].cells[2][3] = (moe_draft_tally){20.5f, 7.25f};
    drafts.of[3].costs[MOE_DRAFT_TIER_LINK] = (moe_draft_costs){3, 0.25f, 0.5f, 0};
    assert_int_equal(moe_calibration_learn_drafts(c, &drafts, NULL), MOE_OK);
    return c;
}

static int load(bool with_gram, moe_calibration **out, moe_error *error)
{
    error->message[0] = '\0';
    int status = moe_calibration_load(out, path, &shape, with_gram, NULL, error);
    assert_int_equal(status == MOE_OK, *out != NULL);
    assert_int_equal(status == MOE_OK, error->message[0] == '\0');
    return status;
}

static void round_trip(void **state)
{
    (void)state;
    moe_calibration *c = make_valid();
    moe_calibration *read = NULL;
    moe_error error;
    assert_int_equal(moe_calibration_save(c, path, NULL), MOE_OK);
    assert_int_equal(load(true, &read, &error), MOE_OK);
    assert_string_equal(read->text_name, "a text");
    assert_int_equal(read->n_tokens, 100);
    assert_memory_equal(read->counts, c->counts, N_LAYER * N_EXPERT * sizeof *c->counts);
    assert_memory_equal(read->coactivation, c->coactivation, N_PAIRS * sizeof(float));
    assert_memory_equal(read->coactivation_weighted, c->coactivation_weighted,
                        N_PAIRS * sizeof(float));
    assert_memory_equal(read->tae, c->tae, N_LAYER * MOE_PERCENTILES * sizeof(float));
    assert_memory_equal(read->margin, c->margin, N_LAYER * MOE_PERCENTILES * sizeof(float));
    for (int kind = 0; kind < MOE_AFFINITY_KINDS; kind++) {
        assert_memory_equal(read->affinity[kind], c->affinity[kind], N_PAIRS * sizeof(uint16_t));
    }
    assert_memory_equal(read->checksums, c->checksums,
                        N_LAYER * N_EXPERT * MOE_EXPERT_PARTS * sizeof *c->checksums);
    assert_memory_equal(read->gram, c->gram, N_LAYER * N_EMBD * N_EMBD * sizeof(float));
    assert_memory_equal(read->drafts, c->drafts, sizeof *c->drafts);
    moe_calibration_free(&read);
    assert_int_equal(load(false, &read, &error), MOE_OK);
    assert_null(read->gram);
    moe_calibration_free(&read);
    moe_calibration_free(&c);
}

/* What conversations leave where nobody has calibrated; and what they add to a calibration. */
static void learned(void **state)
{
    (void)state;
    uint64_t counts[N_LAYER * N_EXPERT] = {3, 0, 1, 0, 0, 4, 0, 0};
    moe_calibration *c = NULL;
    moe_calibration *read = NULL;
    moe_error error;
    assert_int_equal(moe_calibration_create(&c, &shape, "", MOE_CALIBRATION_HOTNESS, NULL), MOE_OK);
    moe_calibration_learn(c, counts, 4);
    assert_int_equal(moe_calibration_save(c, path, NULL), MOE_OK);
    moe_calibration_free(&c);
    assert_int_equal(load(true, &read, &error), MOE_OK);
    assert_false(moe_calibration_has_tables(read));
    assert_int_equal(read->n_tokens, 4);
    assert_int_equal(read->n_learned, 4);
    assert_memory_equal(read->counts, counts, sizeof counts);
    float *hotness = moe_calibration_hotness(read);
    assert_true(hotness[0] == 0.75f && hotness[2] == 0.25f && hotness[N_EXPERT + 1] == 1.0f);
    free(hotness);
    moe_calibration_free(&read);

    c = make_valid();
    moe_calibration_learn(c, counts, 4);
    assert_int_equal(moe_calibration_save(c, path, NULL), MOE_OK);
    assert_int_equal(load(true, &read, &error), MOE_OK);
    assert_true(moe_calibration_has_tables(read) && read->gram != NULL);
    assert_int_equal(read->n_tokens, 104);
    assert_int_equal(read->n_learned, 4);
    assert_int_equal(read->counts[0], 3);
    assert_int_equal(read->counts[5], 54);
    assert_memory_equal(read->coactivation, c->coactivation, N_PAIRS * sizeof(float));
    moe_calibration_free(&read);
    moe_calibration_free(&c);
}

/* ---- Contents that no calibration writes, under a right checksum ---- */

static void count_above_tokens(moe_calibration *c)
{
    c->counts[5] = 101;
}
static void count_huge(moe_calibration *c)
{
    c->counts[0] = UINT64_MAX;
}
static void learned_above_tokens(moe_calibration *c)
{
    c->n_learned = 101;
}
static void tokens_huge(moe_calibration *c)
{
    c->n_tokens = UINT64_MAX;
}
static void pair_is_nan(moe_calibration *c)
{
    c->coactivation[1] = NAN;
}
static void pair_is_negative(moe_calibration *c)
{
    c->coactivation[N_PAIRS - 2] = -1.0f;
}
static void pair_above_tokens(moe_calibration *c)
{
    c->coactivation[2] = 101.0f;
}
static void weighted_is_infinite(moe_calibration *c)
{
    c->coactivation_weighted[3] = INFINITY;
}
static void weighted_is_nan(moe_calibration *c)
{
    c->coactivation_weighted[0] = NAN;
}
static void tae_falls(moe_calibration *c)
{
    c->tae[50] = 0.001f;
}
static void tae_above_one(moe_calibration *c)
{
    c->tae[MOE_PERCENTILES - 1] = 1.5f;
}
static void tae_is_nan(moe_calibration *c)
{
    c->tae[MOE_PERCENTILES] = NAN;
}
static void margin_is_negative(moe_calibration *c)
{
    c->margin[0] = -0.5f;
}
static void margin_falls(moe_calibration *c)
{
    c->margin[98 + 50] = 0.9f;
}
static void neighbour_out_of_range(moe_calibration *c)
{
    c->affinity[0][3] = N_EXPERT;
}
static void neighbour_huge(moe_calibration *c)
{
    c->affinity[1][N_PAIRS - 1] = UINT16_MAX;
}
static void neighbour_twice(moe_calibration *c)
{
    c->affinity[2][2] = c->affinity[2][1];
}

static void self_not_first(moe_calibration *c)
{
    c->affinity[3][0] = 1;
    c->affinity[3][1] = 0;
}

static void other_model(moe_calibration *c)
{
    c->shape.fingerprint++;
}
static void other_n_used(moe_calibration *c)
{
    c->shape.n_expert_used = 3;
}
static void fewer_layers(moe_calibration *c)
{
    c->shape.n_layer = 1;
}
static void fewer_experts(moe_calibration *c)
{
    c->shape.n_expert = 2;
}
static void accepted_above_drafted(moe_calibration *c)
{
    c->drafts->of[0].depths[1] = (moe_draft_tally){4, 4.5f};
}

static void drafted_is_nan(moe_calibration *c)
{
    c->drafts->of[3].buckets[7].seen = NAN;
}

static void draft_cost_is_negative(moe_calibration *c)
{
    c->drafts->of[2].costs[0].pass = -1;
}

static void narrower(moe_calibration *c)
{
    c->shape.n_embd = 2;
}

static const struct {
    const char *name;
    void (*alter)(moe_calibration *c);
    int status;
    const char *message;
} contents[] = {
    {"count above tokens", count_above_tokens, MOE_ERR_FORMAT, "counts"},
    {"count huge", count_huge, MOE_ERR_FORMAT, "counts"},
    {"more learned than counted", learned_above_tokens, MOE_ERR_FORMAT, "counts"},
    {"tokens huge", tokens_huge, MOE_ERR_FORMAT, "counts"},
    {"pair is NaN", pair_is_nan, MOE_ERR_FORMAT, "coactivation"},
    {"pair is negative", pair_is_negative, MOE_ERR_FORMAT, "coactivation"},
    {"pair above tokens", pair_above_tokens, MOE_ERR_FORMAT, "coactivation"},
    {"weighted is infinite", weighted_is_infinite, MOE_ERR_FORMAT, "coactivation.weighted"},
    {"weighted is NaN", weighted_is_nan, MOE_ERR_FORMAT, "coactivation.weighted"},
    {"TAE falls", tae_falls, MOE_ERR_FORMAT, "tae.percentiles"},
    {"TAE above one", tae_above_one, MOE_ERR_FORMAT, "tae.percentiles"},
    {"TAE is NaN", tae_is_nan, MOE_ERR_FORMAT, "tae.percentiles"},
    {"margin is negative", margin_is_negative, MOE_ERR_FORMAT, "margin.percentiles"},
    {"margin falls", margin_falls, MOE_ERR_FORMAT, "margin.percentiles"},
    {"neighbour out of range", neighbour_out_of_range, MOE_ERR_FORMAT, "affinity"},
    {"neighbour huge", neighbour_huge, MOE_ERR_FORMAT, "affinity"},
    {"neighbour twice", neighbour_twice, MOE_ERR_FORMAT, "affinity"},
    {"self not first", self_not_first, MOE_ERR_FORMAT, "affinity"},
    {"more accepted than drafted", accepted_above_drafted, MOE_ERR_FORMAT, "drafts"},
    {"drafted is NaN", drafted_is_nan, MOE_ERR_FORMAT, "drafts"},
    {"cost of a draft is negative", draft_cost_is_negative, MOE_ERR_FORMAT, "drafts"},
    {"other model", other_model, MOE_ERR_MISMATCH, "another model"},
    {"other number of experts used", other_n_used, MOE_ERR_FORMAT, "moe-cal.n_expert_used"},
    {"fewer layers", fewer_layers, MOE_ERR_FORMAT, "moe-cal.n_layer"},
    {"fewer experts", fewer_experts, MOE_ERR_FORMAT, "moe-cal.n_expert"},
    {"narrower", narrower, MOE_ERR_FORMAT, "moe-cal.n_embd"},
};

static void wrong_contents(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        moe_calibration *c = make_valid();
        moe_calibration *read = NULL;
        moe_error error;
        contents[i].alter(c);
        assert_int_equal(moe_calibration_save(c, path, NULL), MOE_OK);
        c->shape = shape;
        int status = load(true, &read, &error);
        if (status != contents[i].status || strstr(error.message, contents[i].message) == NULL) {
            fail_msg("%s: status %d, '%s'", contents[i].name, status, error.message);
        }
        moe_calibration_free(&c);
    }
}

/* ---- Bytes ---- */

static uint8_t *read_file(size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void write_file(const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* Text in the header, and what replaces it or, at a distance behind it, a byte. */
static const struct {
    const char *name;
    const char *text;
    size_t distance; /* from the text's beginning */
    uint8_t value;
} header_edits[] = {
    {"magic", "GGUF", 0, 'X'},
    {"container version", "GGUF", 4, 9},
    {"number of tensors", "GGUF", 8, 200},
    {"number of keys", "GGUF", 16, 3},
    {"version key renamed", "moe-cal.version", 8, 'V'},
    {"version is a float", "moe-cal.version", 15, 6},
    {"version 1", "moe-cal.version", 19, 1},
    {"version 3", "moe-cal.version", 19, 3},
    {"tables key renamed", "moe-cal.tables", 8, 'T'},
    {"said to hold hotness alone", "moe-cal.tables", 18, 1},
    {"nine tables", "moe-cal.tables", 18, 9},
    {"learned key renamed", "moe-cal.learned.tokens", 0, 'x'},
    {"fingerprint key renamed", "moe-cal.model.fingerprint", 0, 'x'},
    {"tokens key renamed", "moe-cal.text.tokens", 0, 'x'},
    {"checksum key renamed", "moe-cal.checksum", 0, 'x'},
    {"text is no string", "moe-cal.text.name", 17, 6},
    {"fewer tokens than counts", "moe-cal.text.tokens", 23, 1},
    {"counts renamed", "counts", 0, 'k'},
    {"counts of one dimension", "counts", 6, 1},
    {"counts of another width", "counts", 10, 3},
    {"counts of another type", "counts", 26, 0},
    {"counts lie elsewhere", "counts", 30, 32},
    {"counts lie beyond the file", "counts", 35, 1},
    {"checksums renamed", "checksums", 0, 'k'},
};

static void damaged_header(void **state)
{
    (void)state;
    moe_calibration *c = make_valid();
    assert_int_equal(moe_calibration_save(c, path, NULL), MOE_OK);
    moe_calibration_free(&c);
    size_t size;
    uint8_t *bytes = read_file(&size);
    for (size_t i = 0; i < sizeof header_edits / sizeof header_edits[0]; i++) {
        const char *text = header_edits[i].text;
        uint8_t *at = memmem(bytes, size, text, strlen(text));
        assert_non_null(at);
        at += header_edits[i].distance;
        uint8_t old = *at;
        *at = header_edits[i].value;
        assert_int_not_equal(*at, old);
        write_file(bytes, size);
        moe_calibration *read = NULL;
        moe_error error;
        if (load(true, &read, &error) == MOE_OK) {
            fail_msg("%s: accepted", header_edits[i].name);
        }
        *at = old;
    }
    free(bytes);
}

/* Cut anywhere, it is refused; so is a flipped bit anywhere in the tables. */
static void cut_and_flipped(void **state)
{
    (void)state;
    moe_calibration *c = make_valid();
    moe_calibration *read = NULL;
    moe_error error;
    assert_int_equal(moe_calibration_save(c, path, NULL), MOE_OK);
    size_t size;
    uint8_t *bytes = read_file(&size);
    /* The last table is the Gram matrices', padded to 32 bytes. */
    size_t end = size - (32 - N_LAYER * N_EMBD * N_EMBD * sizeof(float) % 32) % 32;
    for (size_t cut = 0; cut < end; cut += 13) {
        write_file(bytes, cut);
        assert_int_not_equal(load(true, &read, &error), MOE_OK);
    }
    uint8_t *first = memmem(bytes, size, c->coactivation, N_PAIRS * sizeof(float));
    assert_non_null(first);
    for (size_t i = 0; i < N_PAIRS * sizeof(float); i += 7) {
        first[i] ^= 0x10;
        write_file(bytes, size);
        assert_int_equal(load(true, &read, &error), MOE_ERR_FORMAT);
        first[i] ^= 0x10;
    }
    uint8_t *gram = memmem(bytes, size, c->gram, N_LAYER * N_EMBD * N_EMBD * sizeof(float));
    assert_non_null(gram);
    gram[2] ^= 1;
    write_file(bytes, size);
    assert_int_equal(load(true, &read, &error), MOE_ERR_FORMAT);
    assert_int_equal(load(false, &read, &error), MOE_OK); /* not read, so not missed */
    moe_calibration_free(&read);
    free(bytes);
    moe_calibration_free(&c);
}

static void cannot_be_written(void **state)
{
    (void)state;
    moe_calibration *c = make_valid();
    moe_error error;
    assert_int_equal(moe_calibration_save(c, "/nonexistent/x.gguf", &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, "/nonexistent/x.gguf"));
    moe_calibration_free(&c);
}

static void default_paths(void **state)
{
    (void)state;
    char *beside = moe_calibration_default_path("/models/a.b.gguf");
    assert_string_equal(beside, "/models/a.b.moe-cal.gguf");
    free(beside);
    beside = moe_calibration_default_path("model.bin");
    assert_string_equal(beside, "model.bin.moe-cal.gguf");
    free(beside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),      cmocka_unit_test(learned),
        cmocka_unit_test(wrong_contents),  cmocka_unit_test(damaged_header),
        cmocka_unit_test(cut_and_flipped), cmocka_unit_test(cannot_be_written),
        cmocka_unit_test(default_paths),
    };
    snprintf(path, sizeof path, "/tmp/moe-calibration-%d.gguf", (int)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
