/* SPDX-License-Identifier: MIT */
/* Grammars that a session's text must match, also made from a JSON schema.
 *
 * The language is GBNF, as llama.cpp's users write it:
 *   root   ::= "yes" | "no" | list         the text must match the rule root
 *   list   ::= item ("," ws item)*         groups, and  * + ? {3} {2,} {2,5}  (at most 2000 times)
 *   item   ::= [a-zA-Z_] [^\x00-\x1F",]*   classes of characters;  .  is any character
 *   ws     ::= " "?                        # a comment
 * A rule ends with its line, except within a group, after "::=" and "|", and before "|". Escapes
 * are \n \r \t \ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH. An addition to GBNF: <[123]> is the token 123,
 * also if it is a control token, which no text spells. A rule that calls itself before it reads a
 * character is refused.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_grammar_create, moe_grammar_close, moe_json_schema_grammar
 *   reading: moe_chat_grammar_create
 *   in turn: moe_session_set_grammar, moe_session_grammar_failed */
#ifndef MOE_GRAMMAR_H
#define MOE_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>

#include <moe/chat.h>
#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_grammar moe_grammar;

/* Compiles a grammar of size bytes. MOE_ERR_ARGUMENT names the line and what is wrong there. */
MOE_API int moe_grammar_create(moe_grammar **out, const char *text, size_t size, moe_error *err);
/* Sessions that use the grammar keep it alive. */
MOE_API void moe_grammar_close(moe_grammar **grammar);

/* Turns a JSON schema into a grammar's text (*grammar: moe_free()); the schema "{}" allows
 * any JSON value. Objects have their properties in the schema's order. They have other properties
 * only if additionalProperties or patternProperties say so, or if the schema lists none. Without
 * "type", a keyword applies only to values of its own type. The grammar enforces type, enum,
 * const, nullable; minimum, maximum, exclusiveMinimum, exclusiveMaximum and multipleOf (of
 * integers, and 0.1, 0.01 ..; bounded numbers are written without an exponent); minLength,
 * maxLength, pattern (characters, classes, \d \w \s, groups, alternatives, repetitions, ^ and $ at
 * the ends; no look-around) and format (date, time, date-time, uuid, email, ipv4, hostname, uri);
 * properties, required, additionalProperties, patternProperties (of one pattern), propertyNames,
 * minProperties, maxProperties, dependentRequired, dependentSchemas; items, prefixItems, minItems,
 * maxItems, contains, uniqueItems (of up to 8 listed values); anyOf, oneOf whose parts exclude each
 * other, allOf, if, then, else, and $ref within the schema. The grammar never allows more than the
 * schema, and may allow less. MOE_ERR_UNSUPPORTED names a keyword that it cannot enforce;
 * annotations and unknown keywords are ignored. */
MOE_API int moe_json_schema_grammar(char **grammar, const char *schema, size_t size,
                                    moe_error *err);

/* Makes the grammar of a reply to the prompt whose answer must match `answer`. Any reasoning may
 * come before the answer, between the marks that moe_chat_reply knows; if the prompt has opened
 * reasoning, it must end first. Without such marks, and for gpt-oss's channels, *out is `answer`
 * again. Close both. */
MOE_API int moe_chat_grammar_create(moe_grammar **out, const moe_engine *engine,
                                    const moe_chat_prompt *prompt, moe_grammar *answer,
                                    moe_error *err);

/* Makes the text that the session samples from now on match the grammar, from its beginning; NULL:
 * no grammar. Tokens that the program feeds afterwards count as text, too. When the text is
 * complete, tokens that end a text are allowed. Drafts must match as well. */
MOE_API int moe_session_set_grammar(moe_session *session, moe_grammar *grammar, moe_error *err);
/* True if the session no longer follows the grammar: the program fed tokens that do not match, or
 * the grammar became too ambiguous. Only tokens that end the text are then sampled. */
MOE_API bool moe_session_grammar_failed(const moe_session *session);

#ifdef __cplusplus
}
#endif

#endif
