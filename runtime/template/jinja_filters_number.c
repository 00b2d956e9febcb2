/* SPDX-License-Identifier: MIT */
/* Filters of numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/template/jinja_evaluate.h"

/* Copies a short text without the white space around it. False: it is too long, or empty. */
static bool short_copy(jinja_context *c, jinja_text text, char out[64])
{
    text = jinja_strip(c, text, NULL, true, true);
    if (text.size == 0 || text.size > 63 || memchr(text.data, '\0', text.size) != NULL) {
        return false;
    }
    memcpy(out, text.data, text.size);
    out[text.size] = '\0';
    return true;
}

static bool read_number(jinja_context *c, jinja_text text, double *out)
{
    char copy[64];
    char *end;
    if (!short_copy(c, text, copy) || strpbrk(copy, "xX(") != NULL) {
        return false;
    }
    *out = strtod(copy, &end);
    return *end == '\0';
}

static bool integer_of(double number, int64_t *out)
{
    if (!(number > -9.2e18 && number < 9.2e18)) {
        return false;
    }
    *out = (int64_t)number;
    return true;
}

static bool text_to_integer(jinja_context *c, jinja_text text, int64_t base, int64_t *out)
{
    char copy[64];
    char *end;
    double number;
    if (base != 0 && (base < 2 || base > 36)) {
        return false;
    }
    if (short_copy(c, text, copy)) {
        *out = strtoll(copy, &end, (int)base);
        if (*end == '\0' && strlen(copy) < 19) {
            return true;
        }
    }
    return read_number(c, text, &number) && integer_of(number, out);
}

static jinja_value filter_int(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[2];
    int64_t out;
    jinja_bind(c, "int", args, "default base", 0, a);
    if (value.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, value);
    }
    if (jinja_is_integer(value)) {
        return jinja_int(jinja_as_integer(value));
    }
    int64_t base = a[1].kind == JINJA_ABSENT ? 10 : jinja_need_integer(c, "int", a[1]);
    if ((value.kind == JINJA_FLOAT && integer_of(value.number, &out)) ||
        (value.kind == JINJA_STRING && text_to_integer(c, *value.text, base, &out))) {
        return jinja_int(out);
    }
    return a[0].kind == JINJA_ABSENT ? jinja_int(0) : a[0];
}

static jinja_value filter_float(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value other;
    double number;
    jinja_bind(c, "float", args, "default", 0, &other);
    if (value.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, value);
    }
    if (jinja_is_number(value)) {
        return jinja_float(jinja_as_double(value));
    }
    if (value.kind == JINJA_STRING && read_number(c, *value.text, &number)) {
        return jinja_float(number);
    }
    return other.kind == JINJA_ABSENT ? jinja_float(0) : other;
}

static void need_number(jinja_context *c, const char *what, jinja_value value)
{
    if (!jinja_is_number(value)) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s needs a number, not %s", what,
                   jinja_kind_name(value.kind));
    }
}

static jinja_value filter_abs(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "abs", args, "", 0, NULL);
    need_number(c, "abs", value);
    if (value.kind == JINJA_FLOAT) {
        return jinja_float(fabs(value.number));
    }
    int64_t number = jinja_as_integer(value);
    return number < 0 ? jinja_binary(c, '-', false, jinja_int(0), value) : jinja_int(number);
}

static jinja_value filter_round(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[2];
    jinja_bind(c, "round", args, "precision method", 0, a);
    need_number(c, "round", value);
    int64_t precision = a[0].kind == JINJA_ABSENT ? 0 : jinja_need_integer(c, "round", a[0]);
    bool common =
        a[1].kind == JINJA_ABSENT || jinja_text_is(jinja_need_text(c, "round", a[1]), "common");
    if (precision < -15 || precision > 15) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "round: a precision from -15 to 15");
    }
    if (common && jinja_is_integer(value) && precision >= 0) {
        return jinja_int(jinja_as_integer(value));
    }
    double scale = pow(10, (double)precision);
    double scaled = jinja_as_double(value) * scale;
    if (!common) {
        bool up = jinja_text_is(jinja_need_text(c, "round", a[1]), "ceil");
        return jinja_float((up ? ceil(scaled) : floor(scaled)) / scale);
    }
    return jinja_float(nearbyint(scaled) / scale);
}

const jinja_filter *jinja_find_number_filter(const char *name)
{
    static const jinja_filter filters[] = {
        {"int", filter_int}, {"float", filter_float}, {"abs", filter_abs}, {"round", filter_round}};
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, name) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}
