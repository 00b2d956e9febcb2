/* SPDX-License-Identifier: MIT */
/* The values of the language. Strings, tuples and dicts are shared and never change after they were
 * made; a namespace changes, and a list by append() and pop(). */
#ifndef MOE_TEMPLATE_JINJA_VALUE_H
#define MOE_TEMPLATE_JINJA_VALUE_H

#include "runtime/template/jinja_text.h"

typedef enum jinja_kind {
    JINJA_ABSENT, /* an argument that was not given; the language has no such value */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_BIG, /* an integer of more than 64 bits: only its digits */
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_ITERATOR, /* returned by map() and similar filters: can be walked once, has no length */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_FUNCTION, /* of the language */
    JINJA_METHOD,   /* of a string, list or dict */
    JINJA_MACRO,
    JINJA_CYCLER,
    JINJA_JOINER
} jinja_kind;

typedef struct jinja_value jinja_value;
typedef struct jinja_list jinja_list;
typedef struct jinja_dict jinja_dict;
typedef struct jinja_loop jinja_loop;
typedef struct jinja_macro jinja_macro;
typedef struct jinja_bound jinja_bound;
typedef struct jinja_function jinja_function;

struct jinja_value {
    jinja_kind kind;
    union {
        const char *missing; /* JINJA_UNDEFINED: what was looked up */
        bool truth;
        int64_t integer;
        double number;
        const jinja_text *text; /* JINJA_STRING, JINJA_BIG */
        jinja_list *list;       /* JINJA_LIST, JINJA_TUPLE, JINJA_ITERATOR, JINJA_CYCLER */
        jinja_dict *dict;       /* JINJA_DICT, JINJA_NAMESPACE */
        jinja_loop *loop;
        const jinja_function *function;
        const jinja_bound *method;
        const jinja_macro *macro;
        jinja_list *joiner; /* its separator; emptied once it was called */
    };
};

struct jinja_list {
    jinja_value *items;
    size_t n;
    size_t capacity;
    size_t at; /* of a cycler */
};

typedef struct jinja_entry {
    jinja_value key;
    jinja_value value;
} jinja_entry;

struct jinja_dict { /* in the order of insertion */
    jinja_entry *entries;
    size_t n;
    size_t capacity;
    const jinja_text *source; /* the text to print in its place; NULL: print as Python prints a dict
                               */
};

struct jinja_bound {
    jinja_value self;
    const struct jinja_method_row *row;
};

/* The arguments of a filter, test, function or method. */
typedef struct jinja_args {
    jinja_value *values;
    size_t n;
    const char **names; /* of the named ones */
    jinja_value *named;
    size_t n_named;
} jinja_args;

static inline jinja_value jinja_undefined(const char *missing)
{
    return (jinja_value){.kind = JINJA_UNDEFINED, .missing = missing};
}
static inline jinja_value jinja_none(void)
{
    return (jinja_value){.kind = JINJA_NONE};
}
static inline jinja_value jinja_bool(bool truth)
{
    return (jinja_value){.kind = JINJA_BOOL, .truth = truth};
}
static inline jinja_value jinja_int(int64_t integer)
{
    return (jinja_value){.kind = JINJA_INT, .integer = integer};
}
static inline jinja_value jinja_float(double number)
{
    return (jinja_value){.kind = JINJA_FLOAT, .number = number};
}
jinja_value jinja_string(jinja_context *c, jinja_text text);
jinja_value jinja_new_list(jinja_context *c, jinja_kind kind);
void jinja_list_add(jinja_context *c, jinja_list *list, jinja_value item);
jinja_value jinja_copy_list(jinja_context *c, const jinja_list *list); /* JINJA_LIST */
jinja_value jinja_new_dict(jinja_context *c);
void jinja_dict_set(jinja_context *c, jinja_dict *dict, jinja_value key, jinja_value value);
const jinja_value *jinja_dict_get(jinja_context *c, const jinja_dict *dict, jinja_value key);

const char *jinja_kind_name(jinja_kind kind); /* as Python calls it */
bool jinja_truth(jinja_value value);
bool jinja_is_number(jinja_value value);  /* with bool, as Python has it; without JINJA_BIG */
bool jinja_is_integer(jinja_value value); /* with bool */
double jinja_as_double(jinja_value value);
int64_t jinja_as_integer(jinja_value value);
bool jinja_equal(jinja_context *c, jinja_value a, jinja_value b);
/* Compares two values: < 0, 0 or > 0. Ends the rendering with an error if they cannot be
 * ordered. */
int jinja_compare(jinja_context *c, jinja_value a, jinja_value b);
bool jinja_contains(jinja_context *c, jinja_value container, jinja_value item);
/* Returns the items that a loop over the value visits. An iterator is empty afterwards. */
jinja_list *jinja_iterate(jinja_context *c, jinja_value value);
int64_t jinja_count(jinja_context *c, jinja_value value); /* len() */

jinja_text jinja_escape(jinja_context *c, jinja_text text); /* & < > and quotes, as HTML has them */
/* Returns str(value) as Python writes it; a string is returned as it is. */
jinja_text jinja_to_text(jinja_context *c, jinja_value value);
void jinja_add_repr(jinja_builder *b, jinja_value value);
void jinja_add_float(jinja_builder *b, double number);
void jinja_add_integer(jinja_builder *b, int64_t number);

__attribute__((noreturn)) void jinja_fail_undefined(jinja_context *c, jinja_value value);

/* Assigns arguments to parameters as Python does: by position, or by the names in `names` ("value
 * default boolean"). The first `least` parameters are required. out[i] is JINJA_ABSENT for a
 * parameter that was not given. */
void jinja_bind(jinja_context *c, const char *what, const jinja_args *args, const char *names,
                size_t least, jinja_value *out);
int64_t jinja_need_integer(jinja_context *c, const char *what, jinja_value value);
jinja_text jinja_need_text(jinja_context *c, const char *what, jinja_value value);

#endif
