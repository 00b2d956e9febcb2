/* SPDX-License-Identifier: MIT */
/* The KV cache's checks of its own state, on a pool with two tables that share pages: each field
 * that is changed alone is noticed. Usage: test_kv_cache_sane MODEL.gguf */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/engine/engine_state.h"

static const char *model_path;

/* check holds, does not when field is value, and does again when field is what it was. */
#define NOTICED(check, field, value)                                                               \
    do {                                                                                           \
        __typeof__(field) was = field;                                                             \
        assert_true(check);                                                                        \
        field = (value);                                                                           \
        assert_true(field != was);                                                                 \
        assert_false(check);                                                                       \
        field = was;                                                                               \
        assert_true(check);                                                                        \
    } while (0)

static moe_engine *open_small_engine(void)
{
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_error err = {""};
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.context = 8 * MOE_KV_PAGE;
    assert_int_equal(moe_engine_open(&engine, &options, &err), MOE_OK);
    return engine;
}

/* Three pages, of which two are shared; one more is promised, and one is free. */
static void fill(moe_kv_pool *pool, moe_kv_table *table, moe_kv_table *fork)
{
    moe_error err = {""};
    *table = (moe_kv_table){0};
    moe_kv_table other = {0};
    assert_int_equal(moe_kv_table_reserve(pool, table, 0, 2 * MOE_KV_PAGE, &err), MOE_OK);
    assert_int_equal(moe_kv_table_share(pool, fork, table, &err), MOE_OK);
    assert_int_equal(moe_kv_table_reserve(pool, table, 2 * MOE_KV_PAGE, 3 * MOE_KV_PAGE, &err),
                     MOE_OK);
    assert_int_equal(moe_kv_table_reserve(pool, &other, 0, 2 * MOE_KV_PAGE, &err), MOE_OK);
    moe_kv_table_free(pool, &other);
    assert_int_equal(moe_kv_table_promise(pool, table, 3 * MOE_KV_PAGE, 4 * MOE_KV_PAGE, &err),
                     MOE_OK);
    assert_int_equal(pool->groups[0].n_free, 2);
    assert_int_equal(pool->groups[0].n_promised, 1);
}

static void test_pool(void **state)
{
    (void)state;
    moe_engine *engine = open_small_engine();
    moe_kv_pool *pool = &engine->kv;
    moe_kv_table table;
    moe_kv_table fork;
    fill(pool, &table, &fork);
    NOTICED(moe_kv_pool_is_sane(pool), pool->device, NULL);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].n_free, 1);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].n_free, 3);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].n_free, 0);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].free_pages, NULL);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].free_pages,
            pool->groups[0].free_pages->next_free);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].free_pages, table.pages[0]);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].free_pages->n_users, 1);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].free_pages->memory, NULL);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].free_pages->next_free, NULL);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].free_pages->next_free,
            pool->groups[0].free_pages);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].n_promised, 3);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].n_pages, 1);
    NOTICED(moe_kv_pool_is_sane(pool), pool->groups[0].page_bytes, pool->groups[0].page_bytes / 2);
    for (uint32_t l = 0; l < pool->n_layer; l++) {
        moe_kv_layout *layout = &pool->layers[l];
        NOTICED(moe_kv_pool_is_sane(pool), layout->k_offset, layout->k_offset + 32);
        NOTICED(moe_kv_pool_is_sane(pool), layout->v_offset, layout->v_offset + 32);
        NOTICED(moe_kv_pool_is_sane(pool), layout->v_offset, layout->k_offset);
        NOTICED(moe_kv_pool_is_sane(pool), layout->v_in_k, true);
        NOTICED(moe_kv_pool_is_sane(pool), layout->type, layout->type + 1);
        NOTICED(moe_kv_pool_is_sane(pool), layout->n_head_kv, layout->n_head_kv * 4);
        NOTICED(moe_kv_pool_is_sane(pool), layout->k_row_bytes, layout->k_row_bytes * 2);
        NOTICED(moe_kv_pool_is_sane(pool), layout->v_row_bytes, pool->groups[0].page_bytes);
    }
    moe_kv_table_free(pool, &fork);
    moe_kv_table_free(pool, &table);
    moe_engine_close(&engine);
}

static void test_table(void **state)
{
    (void)state;
    moe_engine *engine = open_small_engine();
    moe_kv_pool *pool = &engine->kv;
    moe_kv_table table;
    moe_kv_table fork;
    fill(pool, &table, &fork);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.pages[0], NULL);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.pages[0], table.pages[1]);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.addresses[1], table.addresses[0]);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.n_pages, table.capacity + 1);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.capacity, 2);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.n_promised[0], 2);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.pages[2]->n_users, 0);
    NOTICED(moe_kv_table_is_sane(pool, &table), table.pages[2]->memory, NULL);
    NOTICED(moe_kv_table_is_sane(pool, &table), pool->groups[0].n_pages, pool->groups[0].n_free);
    moe_kv_table twice = table; /* a page that stands in a table twice */
    moe_kv_page *pages[3] = {table.pages[0], table.pages[1], table.pages[0]};
    void *addresses[3] = {table.addresses[0], table.addresses[1], table.addresses[0]};
    twice.pages = pages;
    twice.addresses = addresses;
    assert_false(moe_kv_table_is_sane(pool, &twice));
    moe_kv_table_free(pool, &fork);
    moe_kv_table_free(pool, &table);
    assert_true(moe_kv_pool_is_sane(pool));
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
