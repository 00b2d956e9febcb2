/* SPDX-License-Identifier: MIT */
/* The tests, which follow "is". */
#include <string.h>

#include "runtime/template/jinja_evaluate.h"

#define TEST(name, condition)                                                                      \
    static bool name(jinja_context *c, jinja_value value, const jinja_args *args)                  \
    {                                                                                              \
        jinja_bind(c, "this test", args, "", 0, NULL);                                             \
        return condition;                                                                          \
    }

TEST(test_defined, value.kind != JINJA_UNDEFINED)
TEST(test_undefined, value.kind == JINJA_UNDEFINED)
TEST(test_none, value.kind == JINJA_NONE)
TEST(test_boolean, value.kind == JINJA_BOOL)
TEST(test_true, value.kind == JINJA_BOOL && value.truth)
TEST(test_false, value.kind == JINJA_BOOL && !value.truth)
TEST(test_string, value.kind == JINJA_STRING)
TEST(test_number, jinja_is_number(value) || value.kind == JINJA_BIG)
TEST(test_integer, value.kind == JINJA_INT || value.kind == JINJA_BIG)
TEST(test_float, value.kind == JINJA_FLOAT)
TEST(test_mapping, value.kind == JINJA_DICT)
TEST(test_sequence, value.kind == JINJA_STRING || value.kind == JINJA_LIST ||
                        value.kind == JINJA_TUPLE || value.kind == JINJA_DICT ||
                        value.kind == JINJA_UNDEFINED)
TEST(test_iterable, value.kind == JINJA_STRING || value.kind == JINJA_LIST ||
                        value.kind == JINJA_TUPLE || value.kind == JINJA_DICT ||
                        value.kind == JINJA_UNDEFINED || value.kind == JINJA_ITERATOR ||
                        value.kind == JINJA_LOOP)
TEST(test_callable, value.kind == JINJA_FUNCTION || value.kind == JINJA_METHOD ||
                        value.kind == JINJA_MACRO || value.kind == JINJA_JOINER ||
                        value.kind == JINJA_UNDEFINED)
TEST(test_escaped, value.kind == JINJA_ABSENT)
TEST(test_odd, jinja_need_integer(c, "odd", value) % 2 != 0)
TEST(test_even, jinja_need_integer(c, "even", value) % 2 == 0)

static bool has_case(jinja_context *c, jinja_value value, jinja_case how)
{
    jinja_text text = jinja_to_text(c, value);
    jinja_case other = how == JINJA_UPPER ? JINJA_LOWER : JINJA_UPPER;
    return jinja_text_equal(jinja_change_case(c, text, how), text) &&
           !jinja_text_equal(jinja_change_case(c, text, other), text);
}

TEST(test_lower, has_case(c, value, JINJA_LOWER))
TEST(test_upper, has_case(c, value, JINJA_UPPER))

static jinja_value other_of(jinja_context *c, const jinja_args *args)
{
    jinja_value other;
    jinja_bind(c, "this test", args, "other", 1, &other);
    return other;
}

static bool test_equal(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return jinja_equal(c, value, other_of(c, args));
}

static bool test_unequal(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return !jinja_equal(c, value, other_of(c, args));
}

static bool test_less(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return jinja_compare(c, value, other_of(c, args)) < 0;
}

static bool test_at_most(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return jinja_compare(c, value, other_of(c, args)) <= 0;
}

static bool test_greater(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return jinja_compare(c, value, other_of(c, args)) > 0;
}

static bool test_at_least(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return jinja_compare(c, value, other_of(c, args)) >= 0;
}

static bool test_in(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return jinja_contains(c, other_of(c, args), value);
}

static bool test_same(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value other = other_of(c, args);
    if (value.kind != other.kind) {
        return false;
    }
    return value.kind < JINJA_STRING ? jinja_equal(c, value, other) : value.list == other.list;
}

static bool test_divisible(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value rest =
        jinja_binary(c, '%', false, jinja_int(jinja_need_integer(c, "divisibleby", value)),
                     jinja_int(jinja_need_integer(c, "divisibleby", other_of(c, args))));
    return rest.integer == 0;
}

static bool test_test(jinja_context *c, jinja_value value, const jinja_args *args)
{
    (void)args;
    jinja_text text = jinja_need_text(c, "test", value);
    return jinja_find_test(jinja_intern(c, text.data, text.size)) != NULL;
}

const jinja_test *jinja_find_test(const char *name)
{
    static const jinja_test tests[] = {
        {"defined", test_defined},
        {"undefined", test_undefined},
        {"none", test_none},
        {"boolean", test_boolean},
        {"true", test_true},
        {"false", test_false},
        {"string", test_string},
        {"number", test_number},
        {"integer", test_integer},
        {"float", test_float},
        {"mapping", test_mapping},
        {"sequence", test_sequence},
        {"iterable", test_iterable},
        {"callable", test_callable},
        {"escaped", test_escaped},
        {"odd", test_odd},
        {"even", test_even},
        {"lower", test_lower},
        {"upper", test_upper},
        {"eq", test_equal},
        {"equalto", test_equal},
        {"==", test_equal},
        {"ne", test_unequal},
        {"!=", test_unequal},
        {"lt", test_less},
        {"<", test_less},
        {"lessthan", test_less},
        {"le", test_at_most},
        {"<=", test_at_most},
        {"gt", test_greater},
        {">", test_greater},
        {"greaterthan", test_greater},
        {"ge", test_at_least},
        {">=", test_at_least},
        {"in", test_in},
        {"sameas", test_same},
        {"divisibleby", test_divisible},
        {"test", test_test},
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (strcmp(tests[i].name, name) == 0) {
            return &tests[i];
        }
    }
    return NULL;
}
