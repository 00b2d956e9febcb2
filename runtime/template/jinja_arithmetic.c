/* SPDX-License-Identifier: MIT */
/* + - * / // % ** */
#include <math.h>

#include "runtime/template/jinja_evaluate.h"

__attribute__((noreturn)) static void fail_kinds(jinja_context *c, char sign, jinja_value a,
                                                 jinja_value b)
{
    jinja_fail(c, MOE_ERR_UNSUPPORTED, "'%c' does not go with %s and %s", sign,
               jinja_kind_name(a.kind), jinja_kind_name(b.kind));
}

static jinja_value divide(jinja_context *c, char sign, bool floors, int64_t a, int64_t b)
{
    if (b == 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a division by zero");
    }
    if (sign == '/' && !floors) {
        return jinja_float((double)a / (double)b);
    }
    if (b == -1) { /* INT64_MIN / -1, the one division that can overflow */
        return sign == '%' ? jinja_int(0) : jinja_binary(c, '-', false, jinja_int(0), jinja_int(a));
    }
    int64_t rest = a % b;
    bool other_sign = rest != 0 && (rest < 0) != (b < 0);
    return jinja_int(sign == '%' ? rest + (other_sign ? b : 0) : a / b - other_sign);
}

static jinja_value power(jinja_context *c, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    if (exponent < 0) {
        return jinja_float(pow((double)base, (double)exponent));
    }
    for (; exponent > 0; exponent--) {
        jinja_charge(c, 1);
        if (__builtin_mul_overflow(result, base, &result)) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "a number of more than 64 bits");
        }
        if (result == 0 || (result == 1 && base == 1)) {
            break;
        }
    }
    return jinja_int(result);
}

static jinja_value of_integers(jinja_context *c, char sign, bool twice, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    if (sign == '+') {
        overflow = __builtin_add_overflow(a, b, &result);
    } else if (sign == '-') {
        overflow = __builtin_sub_overflow(a, b, &result);
    } else if (sign == '*' && twice) {
        return power(c, a, b);
    } else if (sign == '*') {
        overflow = __builtin_mul_overflow(a, b, &result);
    } else {
        return divide(c, sign, twice, a, b);
    }
    if (overflow) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a number of more than 64 bits");
    }
    return jinja_int(result);
}

static jinja_value of_floats(jinja_context *c, char sign, bool twice, double a, double b)
{
    switch (sign) {
    case '+':
        return jinja_float(a + b);
    case '-':
        return jinja_float(a - b);
    case '*':
        return jinja_float(twice ? pow(a, b) : a * b);
    default:
        break;
    }
    if (b == 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a division by zero");
    }
    if (sign == '/') {
        return jinja_float(twice ? floor(a / b) : a / b);
    }
    double rest = fmod(a, b);
    return jinja_float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

static jinja_value repeat(jinja_context *c, jinja_value what, int64_t n)
{
    if (what.kind == JINJA_STRING) {
        jinja_builder b = jinja_build(c);
        for (int64_t i = 0; i < n && what.text->size > 0; i++) {
            jinja_charge(c, 1);
            jinja_add(&b, *what.text);
        }
        return jinja_string(c, jinja_built(&b));
    }
    jinja_value list = jinja_new_list(c, what.kind);
    for (int64_t i = 0; i < n && what.list->n > 0; i++) {
        for (size_t j = 0; j < what.list->n; j++) {
            jinja_charge(c, 1);
            jinja_list_add(c, list.list, what.list->items[j]);
        }
    }
    return list;
}

/* Concatenates two texts. If only one of them is marked safe, the other one is escaped, as
 * jinja2's Markup does. */
static jinja_value add_texts(jinja_context *c, jinja_text a, jinja_text b)
{
    if (a.is_safe == b.is_safe) {
        jinja_text both = jinja_concat(c, a, b);
        both.is_safe = a.is_safe;
        return jinja_string(c, both);
    }
    jinja_text both =
        jinja_concat(c, a.is_safe ? a : jinja_escape(c, a), b.is_safe ? b : jinja_escape(c, b));
    both.is_safe = true;
    return jinja_string(c, both);
}

static jinja_value join_lists(jinja_context *c, jinja_value a, jinja_value b)
{
    jinja_value list = jinja_new_list(c, a.kind);
    for (size_t i = 0; i < a.list->n; i++) {
        jinja_list_add(c, list.list, a.list->items[i]);
    }
    for (size_t i = 0; i < b.list->n; i++) {
        jinja_list_add(c, list.list, b.list->items[i]);
    }
    jinja_charge(c, a.list->n + b.list->n);
    return list;
}

static bool can_repeat(jinja_value value)
{
    return value.kind == JINJA_STRING || value.kind == JINJA_LIST || value.kind == JINJA_TUPLE;
}

/* If a dict was parsed from a JSON text (arguments of a tool call) and is now joined with a text,
 * it becomes that JSON text again. */
static jinja_value as_text(jinja_context *c, jinja_value value, jinja_value other)
{
    return value.kind == JINJA_DICT && value.dict->source != NULL && other.kind == JINJA_STRING
               ? jinja_string(c, *value.dict->source)
               : value;
}

jinja_value jinja_binary(jinja_context *c, char sign, bool twice, jinja_value a, jinja_value b)
{
    if (a.kind == JINJA_STRING && sign == '%') {
        return jinja_string(c, jinja_format(c, *a.text, b));
    }
    if (sign == '+') {
        a = as_text(c, a, b);
        b = as_text(c, b, a);
    }
    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, a.kind == JINJA_UNDEFINED ? a : b);
    }
    if (jinja_is_integer(a) && jinja_is_integer(b)) {
        return of_integers(c, sign, twice, jinja_as_integer(a), jinja_as_integer(b));
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        return of_floats(c, sign, twice, jinja_as_double(a), jinja_as_double(b));
    }
    if (sign == '+' && a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        return add_texts(c, *a.text, *b.text);
    }
    if (sign == '+' && a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) {
        return join_lists(c, a, b);
    }
    if (sign == '*' && !twice && can_repeat(a) && jinja_is_integer(b)) {
        return repeat(c, a, jinja_as_integer(b));
    }
    if (sign == '*' && !twice && can_repeat(b) && jinja_is_integer(a)) {
        return repeat(c, b, jinja_as_integer(a));
    }
    fail_kinds(c, sign, a, b);
}
