/* SPDX-License-Identifier: MIT */
/* Silent drafts: what is kept of a draft that is not verified, and which of its tokens are compared
 * with the text that then comes; a drafting layer's beside n-grams'. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/draft/drafters.h"
#include "tests/draft/length_process.h"

#define N_TOKENS 10u

typedef struct silent_case {
    moe_speculation speculation;
    moe_session_draft draft;
    int32_t tokens[N_TOKENS + 8];
    float confidence[8];
} silent_case;

static silent_case shared;

static silent_case *begin(void)
{
    static const moe_drafter kinds[] = {MOE_DRAFTER_NGRAM, MOE_DRAFTER_HEAD};
    silent_case *c = &shared;
    *c = (silent_case){.tokens = {[N_TOKENS - 1] = 7}};
    moe_error err = {""};
    for (int i = 0; i < 2; i++) {
        c->speculation.control[kinds[i]] = length_control_of(MOE_LENGTH_SURVIVAL, 8);
    }
    assert_int_equal(moe_token_tree_init(&c->draft.tree, 8, &err), MOE_OK);
    c->draft.line = (moe_draft_line){.tokens = c->tokens, .n_tokens = N_TOKENS};
    c->draft.confidence = c->confidence;
    moe_token_tree_reset(&c->draft.tree, 7);
    return c;
}

static void end(silent_case *c)
{
    moe_token_tree_free(&c->draft.tree);
    moe_length_control_free(&c->speculation.control[MOE_DRAFTER_NGRAM]);
    moe_length_control_free(&c->speculation.control[MOE_DRAFTER_HEAD]);
}

/* Drafts a chain of n tokens from `first` on, and keeps it. */
static void keep(silent_case *c, moe_drafter kind, int32_t first, uint32_t n)
{
    uint32_t node = 0;
    for (uint32_t i = 0; i < n; i++) {
        node = moe_token_tree_add(&c->draft.tree, node, first + (int32_t)i, 0.5f, kind);
        c->confidence[node] = 0.5f;
    }
    moe_silent_keep(&c->draft, kind);
}

static void write_token(silent_case *c, int32_t token)
{
    moe_draft_line *line = &c->draft.line;
    moe_silent_note_token(&c->speculation, &c->draft, line->n_tokens, token);
    line->tokens[line->n_tokens++] = token;
}

static double survival(const silent_case *c, moe_drafter kind)
{
    return moe_length_survival(c->speculation.control[kind], 1, 0.5f);
}

static bool is_pending(const silent_case *c, moe_drafter kind)
{
    return moe_silent_is_pending(&c->draft.silent[kind], &c->draft.line);
}

static void a_draft_is_kept_and_not_verified(void **state)
{
    (void)state;
    silent_case *c = begin();
    keep(c, MOE_DRAFTER_HEAD, 20, 6);
    const moe_silent_draft *silent = &c->draft.silent[MOE_DRAFTER_HEAD];
    assert_int_equal(c->draft.tree.n, 1);
    assert_int_equal(silent->n, MOE_SILENT_DRAFT);
    assert_int_equal(silent->tokens[3], 23);
    assert_true(is_pending(c, MOE_DRAFTER_HEAD) && !is_pending(c, MOE_DRAFTER_NGRAM));
    end(c);
}

/* Each drafter is told of its own tokens alone, until the first wrong one. */
static void tokens_are_compared_with_the_text(void **state)
{
    (void)state;
    silent_case *c = begin();
    double before = survival(c, MOE_DRAFTER_HEAD);
    keep(c, MOE_DRAFTER_HEAD, 20, 3);
    keep(c, MOE_DRAFTER_NGRAM, 30, 3);
    write_token(c, 20);
    assert_true(survival(c, MOE_DRAFTER_HEAD) > before);
    assert_true(survival(c, MOE_DRAFTER_NGRAM) < before);
    assert_true(is_pending(c, MOE_DRAFTER_HEAD) && !is_pending(c, MOE_DRAFTER_NGRAM));
    double heard = survival(c, MOE_DRAFTER_NGRAM);
    write_token(c, 31); /* wrong of one; the other's draft has ended */
    assert_true(survival(c, MOE_DRAFTER_NGRAM) == heard);
    assert_false(is_pending(c, MOE_DRAFTER_HEAD));
    assert_int_equal(c->draft.silent[MOE_DRAFTER_HEAD].n_right, 2);
    end(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_is_kept_and_not_verified),
        cmocka_unit_test(tokens_are_compared_with_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
