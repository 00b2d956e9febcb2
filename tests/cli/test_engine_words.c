/* SPDX-License-Identifier: MIT */
/* The command's words for the engine become the library's values: each word its value, settings
 * field by field, and unknown words are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../../runtime/cli_base/cli_engine_words.h"

static cli_engine_settings settings;

static int read_length(const char *text)
{
    cli_options options = {.length_control = text};
    return cli_engine_words(&settings, &options);
}

static void lengths(void **state)
{
    (void)state;
    static const char *const refused[] = {"",
                                          "greedy",
                                          "cascad",
                                          "survival:t=2",
                                          "static:",
                                          "cascade:",
                                          "cascade:t",
                                          "cascade:t=",
                                          "cascade:t=0",
                                          "cascade:t=99999999999",
                                          "cascade:t=2,",
                                          "cascade:t=2,,set=8",
                                          "cascade:back-off=no",
                                          "cascade:disabled=off",
                                          "cascade:T=2"};
    const moe_lab_options *lab = &settings.lab;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(read_length(refused[i]), CLI_EXIT_USAGE);
    }
    assert_int_equal(read_length("survival"), CLI_EXIT_OK);
    assert_int_equal(lab->length_control, MOE_LENGTH_SURVIVAL);
    assert_int_equal(read_length("static"), CLI_EXIT_OK);
    assert_int_equal(lab->length_control, MOE_LENGTH_STATIC);
    assert_int_equal(read_length("cascade"), CLI_EXIT_OK);
    assert_true(!lab->no_back_off && !lab->no_early_exit && !lab->no_disable);
    assert_int_equal(lab->set_iterations, 0);
    assert_int_equal(read_length("cascade:t=2,trials=3,set=8,refresh=50"), CLI_EXIT_OK);
    assert_int_equal(lab->length_control, MOE_LENGTH_CASCADE);
    assert_int_equal(lab->trial_iterations, 2);
    assert_int_equal(lab->test_trials, 3);
    assert_int_equal(lab->set_iterations, 8);
    assert_int_equal(lab->refresh_iterations, 50);
    assert_true(!lab->no_back_off && !lab->no_early_exit && !lab->no_disable);
    assert_int_equal(read_length("cascade:disable=off,back-off=off"), CLI_EXIT_OK);
    assert_true(lab->no_back_off && !lab->no_early_exit && lab->no_disable);
    assert_int_equal(read_length("cascade:early-exit=off,back-off=on"), CLI_EXIT_OK);
    assert_true(!lab->no_back_off && lab->no_early_exit && !lab->no_disable);
    assert_true(!lab->no_climb);
    assert_int_equal(read_length("cascade:climb=off"), CLI_EXIT_OK);
    assert_true(lab->no_climb && !lab->no_early_exit);
}

static void words(void **state)
{
    (void)state;
    cli_options options = {.offload = "overlap",
                           .kernels = "avx2",
                           .io = "sync",
                           .speculate = "model:small.gguf",
                           .acceptance = "rejection",
                           .cost = "bytes",
                           .draft_pin = "random",
                           .affinity = "shuffled"};
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_OK);
    assert_ptr_equal(settings.options.lab, &settings.lab);
    assert_ptr_equal(settings.options.lossy, &settings.lossy);
    assert_int_equal(settings.lab.offload, MOE_OFFLOAD_OVERLAP);
    assert_int_equal(settings.lab.kernels, MOE_KERNELS_AVX2);
    assert_int_equal(settings.options.io, MOE_IO_SYNC);
    assert_int_equal(settings.options.speculate, MOE_SPECULATE_MODEL);
    assert_string_equal(settings.options.draft_model, "small.gguf");
    assert_int_equal(settings.options.acceptance, MOE_ACCEPTANCE_REJECTION);
    assert_true(settings.lab.cost_by_bytes);
    assert_int_equal(settings.lab.draft_pin, MOE_DRAFT_PIN_RANDOM);
    assert_int_equal(settings.lab.affinity, MOE_STAND_IN_SHUFFLED);
    options.speculate = "self";
    options.affinity = "none";
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_OK);
    assert_int_equal(settings.options.speculate, MOE_SPECULATE_SELF);
    assert_null(settings.options.draft_model);
    assert_int_equal(settings.lab.affinity, MOE_STAND_IN_NONE);
    static const char *const refused[] = {"model:", "model", "on", "model:FILES", ""};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        options.speculate = refused[i];
        bool is_file = strcmp(refused[i], "model:FILES") == 0;
        assert_int_equal(cli_engine_words(&settings, &options),
                         is_file ? CLI_EXIT_OK : CLI_EXIT_USAGE);
    }
}

static void lossy(void **state)
{
    (void)state;
    static const char *const refused[] = {"yes",          "rho=65",        "alpha=0",
                                          "tae=100",      "margin=",       "kappa=2",
                                          "epsilon=-1",   "temperature=0", "reuse=1.1",
                                          "transfer=10%", "lists=all",     "weight=heavy",
                                          "missing=out",  "on,rho=x"};
    cli_options options = {.expert_budget_mode = "static,truncate,free"};
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_OK);
    assert_int_equal(settings.lossy.budget_order, MOE_BUDGET_BY_CALIBRATION);
    assert_true(settings.lossy.budget_truncates && settings.lossy.budget_free_resident);
    assert_true(!settings.lossy.buddies && !settings.lab.budget_oracle);
    options.expert_budget_mode = "oracle,substitute,error";
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_OK);
    assert_true(settings.lab.budget_oracle && settings.lab.budget_error);
    assert_true(!settings.lossy.budget_truncates && !settings.lossy.budget_free_resident);
    options.expert_budget_mode = "free,oracle";
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_USAGE);
    options.expert_budget_mode = NULL;
    options.buddy = "off";
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_OK);
    assert_false(settings.lossy.buddies);
    options.buddy = "random,rho=8,tae=0,max=7,search=5,beta=0.5,eta=2,margin=0.25,alpha=0.5,"
                    "weight=own,missing=drop";
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_OK);
    const moe_lossy_options *l = &settings.lossy;
    assert_true(l->buddies && l->buddies_random && l->buddies_own_weight && l->buddies_drop);
    assert_int_equal(l->buddies_max_replaced, 8);
    assert_int_equal(l->buddies_tae_percentile, 0);
    assert_int_equal(l->buddies_max, 7);
    assert_int_equal(l->buddies_search, 5);
    assert_true(l->buddies_beta == 0.5f && l->buddies_eta == 2.0f);
    assert_true(l->buddies_margin == 0.25f && l->buddies_alpha == 0.5f);
    assert_true(!l->buddies_weighted && l->buddies_transfer == 0 && l->buddies_kappa == 1.0f);
    assert_true(l->buddies_epsilon == 1.0f && l->buddies_temperature == 1.0f);
    assert_true(l->buddies_reuse == 0.0f);
    options.buddy = "kappa=0.25,epsilon=2,temperature=0.8,reuse=0.5,transfer=3M,lists=weighted";
    assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_OK);
    assert_true(l->buddies_weighted && l->buddies_transfer == 3 << 20);
    assert_true(l->buddies_kappa == 0.25f && l->buddies_epsilon == 2.0f);
    assert_true(l->buddies_temperature == 0.8f && l->buddies_reuse == 0.5f);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        options.buddy = refused[i];
        assert_int_equal(cli_engine_words(&settings, &options), CLI_EXIT_USAGE);
    }
}

static cli_overrides overrides;

static int read_overrides(const char *text)
{
    cli_text_list given = {""};
    snprintf(given.text, sizeof given.text, "%s", text);
    return cli_overrides_read(&overrides, &given);
}

static void metadata(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "key",         "key=",          "key=int:",   "key=int:1x",
        "=int:1",      "key=bool:1",    "key=uint:1", "key=float:nan",
        "key:int=1",   "a=int:1,b",     "a=int:1,",   "key=int:99999999999999999999",
        "key=float:x", "key=bool:True", ",a=int:1",   "key=float:",
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (read_overrides(refused[i]) != CLI_EXIT_USAGE) {
            fail_msg("'%s' is accepted", refused[i]);
        }
    }
    assert_int_equal(read_overrides(""), CLI_EXIT_OK);
    assert_int_equal(overrides.n, 0);
    assert_int_equal(read_overrides("a.b=int:-99,c=str:a,b=c,d,e=float:-2.5e3,f=bool:true,g=str:"),
                     CLI_EXIT_OK);
    const moe_metadata_override *list = overrides.list;
    assert_int_equal(overrides.n, 5);
    assert_string_equal(list[0].key, "a.b");
    assert_int_equal(list[0].type, MOE_METADATA_INT);
    assert_int_equal(list[0].value.integer, -99);
    assert_string_equal(list[1].key, "c");
    assert_int_equal(list[1].type, MOE_METADATA_TEXT);
    assert_string_equal(list[1].value.text, "a,b=c,d");
    assert_int_equal(list[2].type, MOE_METADATA_FLOAT);
    assert_true(list[2].value.real == -2500);
    assert_int_equal(list[3].type, MOE_METADATA_BOOL);
    assert_true(list[3].value.flag);
    assert_string_equal(list[4].value.text, "");
    /* As many as the option's text can hold. */
    char many[sizeof overrides.text.text] = "";
    size_t size = 0;
    uint32_t n = 0;
    for (; size + 8 < sizeof many; n++) {
        size += (size_t)snprintf(many + size, sizeof many - size, "%sk=str:", n > 0 ? "," : "");
    }
    assert_int_equal(read_overrides(many), CLI_EXIT_OK);
    assert_int_equal(overrides.n, n);
    assert_true(n < CLI_MOST_OVERRIDES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths),
        cmocka_unit_test(words),
        cmocka_unit_test(lossy),
        cmocka_unit_test(metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
