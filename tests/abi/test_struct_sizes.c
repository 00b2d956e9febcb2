/* SPDX-License-Identifier: MIT */
/* The rule of struct_size (moe.h), at every size: smaller structs have defaults, or are filled as
 * far as they go; larger ones must be zero behind what the library knows; others are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <moe/calibrate.h>
#include <moe/lab.h>
#include <moe/model_file.h>
#include <moe/moe.h>
#include <moe/speed.h>
#include <moe/trace.h>

#define OLDER_STRUCTS_ONLY
#include "older_moe.h"
#include "runtime/base/struct_size.h"

/* What older programs have stands where it always stood. */
#define SAME_PLACE(name, field)                                                                    \
    _Static_assert(offsetof(old_##name, field) == offsetof(moe_##name, field),                     \
                   "moe_" #name "." #field " has moved: fields are appended, never inserted")
SAME_PLACE(engine_options, context);
SAME_PLACE(sampling, seed);
SAME_PLACE(engine_info, model_name);
SAME_PLACE(engine_stats, decode_tokens);
SAME_PLACE(memory_plan, budget);
SAME_PLACE(file_summary, file_bytes);
SAME_PLACE(file_tensor, type);
SAME_PLACE(trace_generator, noise);
SAME_PLACE(trace_info, n_expert);
SAME_PLACE(simulation, cache_share);
SAME_PLACE(simulation_result, n_tokens);
SAME_PLACE(storage_test, total_bytes);
SAME_PLACE(storage_speed, bytes_per_s);

enum { LARGEST = 16384, EXTRA = 64 };

static const moe_struct_kind *const kinds[] = {
    &moe_kind_engine_options,  &moe_kind_lossy_options, &moe_kind_lab_options,
    &moe_kind_session_options, &moe_kind_sampling,      &moe_kind_calibrate_options,
    &moe_kind_chat_options,    &moe_kind_storage_test,  &moe_kind_trace_open_options,
    &moe_kind_trace_generator, &moe_kind_simulation,    &moe_kind_engine_info,
    &moe_kind_engine_stats,    &moe_kind_memory_plan,   &moe_kind_file_summary,
    &moe_kind_file_tensor,     &moe_kind_storage_speed, &moe_kind_speed_rates,
    &moe_kind_speed_estimate,  &moe_kind_trace_info,    &moe_kind_simulation_result,
};

static union {
    unsigned char bytes[LARGEST];
    size_t struct_size;
} given, own;

static void set(const moe_struct_kind *kind, size_t struct_size)
{
    memset(given.bytes, 0xab, sizeof given.bytes);
    memset(own.bytes, 0x11, sizeof own.bytes);
    given.struct_size = struct_size;
    own.struct_size = kind->size;
}

static bool all_are(const unsigned char *bytes, size_t from, size_t to, unsigned char value)
{
    for (size_t i = from; i < to; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

/* What is larger has zeros where the library knows no field. */
static void taking(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const moe_struct_kind *kind = kinds[k];
        for (size_t size = kind->least; size <= kind->size + EXTRA; size += sizeof(size_t)) {
            size_t known = size < kind->known ? size : kind->known;
            set(kind, size);
            memset(given.bytes + known, 0, size - known);
            moe_error err = {""};
            assert_int_equal(moe_struct_take(kind, own.bytes, given.bytes, &err), MOE_OK);
            assert_int_equal(own.struct_size, kind->size);
            assert_true(all_are(own.bytes, sizeof(size_t), known, 0xab));
            assert_true(size <= kind->known
                            ? all_are(own.bytes, known, kind->size, 0x11) /* the defaults */
                            : all_are(own.bytes, kind->size, LARGEST, 0x11));
            for (size_t i = known; i < size; i++) {
                given.bytes[i] = 1;
                assert_int_equal(moe_struct_take(kind, own.bytes, given.bytes, &err),
                                 MOE_ERR_ARGUMENT);
                assert_non_null(strstr(err.message, kind->name));
                given.bytes[i] = 0;
            }
        }
    }
}

static void giving(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const moe_struct_kind *kind = kinds[k];
        for (size_t size = kind->least; size <= kind->size + EXTRA; size += sizeof(size_t)) {
            size_t both = size < kind->size ? size : kind->size;
            set(kind, size);
            assert_int_equal(moe_struct_give(kind, given.bytes, own.bytes, NULL), MOE_OK);
            assert_int_equal(given.struct_size, size);
            assert_true(all_are(given.bytes, sizeof(size_t), both, 0x11));
            assert_true(all_are(given.bytes, both, size, 0));
            assert_true(all_are(given.bytes, size, LARGEST, 0xab));
        }
    }
}

/* Sizes that no struct has: nothing is written. */
static void refusing(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const moe_struct_kind *kind = kinds[k];
        assert_true(kind->least > sizeof(size_t) && kind->least <= kind->known);
        const size_t sizes[] = {0,
                                1,
                                sizeof(size_t),
                                kind->least - sizeof(size_t),
                                kind->size + 1,
                                kind->size - 1,
                                65536 + sizeof(size_t),
                                SIZE_MAX,
                                SIZE_MAX - 7};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            set(kind, sizes[i]);
            moe_error err = {""};
            assert_int_equal(moe_struct_take(kind, own.bytes, given.bytes, &err), MOE_ERR_ARGUMENT);
            assert_non_null(strstr(err.message, kind->name));
            assert_int_equal(moe_struct_give(kind, given.bytes, own.bytes, &err), MOE_ERR_ARGUMENT);
            moe_struct_init(kind, given.bytes, sizes[i], own.bytes);
            assert_true(all_are(given.bytes, sizeof(size_t), LARGEST, 0xab));
            assert_true(all_are(own.bytes, sizeof(size_t), LARGEST, 0x11));
        }
        assert_int_equal(moe_struct_take(kind, own.bytes, NULL, NULL), MOE_ERR_ARGUMENT);
        assert_int_equal(moe_struct_give(kind, NULL, own.bytes, NULL), MOE_ERR_ARGUMENT);
        moe_struct_init(kind, NULL, kind->size, own.bytes);
    }
}

/* A newer program's struct, through the API: its tail is zero, or it asks for what this library
 * cannot do. */
static void newer_program(void **state)
{
    struct {
        moe_engine_options options;
        uint64_t newer[4];
    } o;
    struct {
        moe_engine_info info;
        uint64_t newer[4];
    } i;
    memset(&o, 0, sizeof o);
    moe_engine_options_init_sized(&o.options, sizeof o);
    assert_int_equal(o.options.struct_size, sizeof o);
    o.options.model_path = *state;
    o.options.vocabulary_only = true;
    moe_engine *engine;
    moe_error err = {""};
    assert_int_equal(moe_engine_open(&engine, &o.options, &err), MOE_OK);
    memset(&i, 0xab, sizeof i);
    i.info.struct_size = sizeof i;
    assert_int_equal(moe_engine_get_info(engine, &i.info), MOE_OK);
    assert_true(i.info.n_vocab > 0 && i.newer[0] == 0 && i.newer[3] == 0);
    moe_engine_close(&engine);
    o.newer[2] = 1;
    assert_int_equal(moe_engine_open(&engine, &o.options, &err), MOE_ERR_ARGUMENT);
    assert_null(engine);
    assert_non_null(strstr(err.message, "moe_engine_options"));
}

/* Statistics with a struct_size of 0, of an engine without a model: nothing is written. */
static void uninitialised_statistics(void **state)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = *state;
    options.vocabulary_only = true;
    moe_engine *engine;
    assert_int_equal(moe_engine_open(&engine, &options, NULL), MOE_OK);
    moe_engine_stats stats;
    memset(&stats, 0xab, sizeof stats);
    stats.struct_size = 0;
    assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_ERR_ARGUMENT);
    assert_true(all_are((const unsigned char *)&stats, sizeof(size_t), sizeof stats, 0xab));
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    void *model = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taking),
        cmocka_unit_test(giving),
        cmocka_unit_test(refusing),
        cmocka_unit_test_prestate(newer_program, model),
        cmocka_unit_test_prestate(uninitialised_statistics, model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
