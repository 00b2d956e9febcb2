/* SPDX-License-Identifier: MIT */
/* Conversations through the public interface: a session that follows evaluates only new tokens and
 * writes what a fresh one would; replies are separated into their parts; templates by name, by
 * text, and the switches of thinking.
 * Usage: test_conversation MODEL.gguf (one with ChatML's tokens) */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <moe/chat.h>
#include <moe/moe.h>

static const char *path;
static moe_engine *engine;

static int open_engine(void **state)
{
    (void)state;
    moe_engine_options options;
    moe_error err = {""};
    moe_engine_options_init(&options);
    options.model_path = path;
    options.context = 512;
    options.n_threads = 2;
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    moe_engine_close(&engine);
    return 0;
}

static moe_session *new_session(void)
{
    moe_session_options options;
    moe_session *session;
    moe_session_options_init(&options);
    options.sampling.temperature = 0;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    return session;
}

static moe_chat_prompt *render(const char *messages)
{
    moe_chat_options options;
    moe_chat_prompt *prompt;
    moe_error err = {""};
    moe_chat_options_init(&options);
    options.messages = messages;
    if (moe_chat_render(&prompt, engine, &options, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return prompt;
}

/* Steps until the session has written n tokens. */
static void write_tokens(moe_session *session, int32_t *tokens, size_t n)
{
    for (size_t got = 0; got < n;) {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        got += moe_session_take(session, tokens + got, n - got);
    }
}

#define QUESTION                                                                                   \
    "{\"role\": \"system\", \"content\": \"Be brief.\"},"                                          \
    "{\"role\": \"user\", \"content\": \"What is 12 times 7?\"}"

/* A second question after an answer: only what is new is evaluated, and what is written is what a
 * session writes that gets the whole at once. */
static void follows(void **state)
{
    (void)state;
    int32_t tokens[2][8];
    size_t n[3];
    size_t kept = 99;
    moe_session *session = new_session();
    moe_chat_prompt *first = render("[" QUESTION "]");
    const int32_t *given = moe_chat_prompt_tokens(first, &n[0]);
    assert_int_equal(moe_session_follow(session, given, n[0], &kept, NULL), MOE_OK);
    assert_int_equal(kept, 0);
    assert_int_equal(moe_session_n_pending(session), n[0]);
    write_tokens(session, tokens[0], 5);

    moe_chat_prompt *second = render("[" QUESTION ", {\"role\": \"assistant\", \"content\": "
                                     "\"84\"}, {\"role\": \"user\", \"content\": \"And 3?\"}]");
    given = moe_chat_prompt_tokens(second, &n[1]);
    assert_true(n[1] > n[0]);
    assert_int_equal(moe_session_follow(session, given, n[1], &kept, NULL), MOE_OK);
    assert_in_range(kept, n[0], n[1] - 1);
    assert_int_equal(moe_session_n_tokens(session), n[1]);
    assert_memory_equal(moe_session_tokens(session), given, n[1] * sizeof *given);
    assert_int_equal(moe_session_n_pending(session), n[1] - kept);
    write_tokens(session, tokens[0], 8);

    moe_session *fresh = new_session();
    assert_int_equal(moe_session_feed(fresh, given, n[1], NULL), MOE_OK);
    write_tokens(fresh, tokens[1], 8);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    moe_session_close(&fresh);

    /* The same once more: the last token alone is evaluated again, and the text is the same. */
    assert_int_equal(moe_session_follow(session, given, n[1], &kept, NULL), MOE_OK);
    assert_int_equal(kept, n[1] - 1);
    write_tokens(session, tokens[1], 8);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    /* A past that was changed is evaluated from there on. */
    given = moe_chat_prompt_tokens(first, &n[2]);
    assert_int_equal(moe_session_follow(session, given, n[2] - 3, &kept, NULL), MOE_OK);
    assert_int_equal(kept, n[2] - 4);
    moe_chat_prompt_close(&first);
    moe_chat_prompt_close(&second);
    moe_session_close(&session);
}

/* Qwen3's template leaves out the reasoning of earlier answers: the timeline is cut back to the
 * first answer's beginning, and what is written is what a fresh session writes. */
static void reasoning_is_dropped(void **state)
{
    (void)state;
    static const char first[] = "[" QUESTION "]";
    static const char second[] =
        "[" QUESTION ", {\"role\": \"assistant\", \"content\": \"84\", \"reasoning_content\": "
        "\"Seven dozens.\"}, {\"role\": \"user\", \"content\": \"And 3?\"}]";
    static const char thought[] = "<think>\nSeven dozens.\n</think>\n\n84<|im_end|>";
    moe_chat_options options;
    moe_chat_prompt *prompts[2];
    size_t n[2];
    size_t n_thought;
    size_t kept;
    int32_t *answer;
    int32_t tokens[2][6];
    moe_chat_options_init(&options);
    options.template_name = "qwen3";
    for (int i = 0; i < 2; i++) {
        options.messages = i == 0 ? first : second;
        assert_int_equal(moe_chat_render(&prompts[i], engine, &options, NULL), MOE_OK);
        (void)moe_chat_prompt_tokens(prompts[i], &n[i]);
    }
    moe_session *session = new_session();
    const int32_t *given = moe_chat_prompt_tokens(prompts[0], NULL);
    assert_int_equal(moe_session_follow(session, given, n[0], &kept, NULL), MOE_OK);
    assert_int_equal(moe_tokenize(engine, thought, strlen(thought), MOE_TOKENIZE_PARSE_SPECIAL,
                                  &answer, &n_thought, NULL),
                     MOE_OK);
    assert_int_equal(moe_session_feed(session, answer, n_thought, NULL), MOE_OK);
    write_tokens(session, tokens[0], 1);
    given = moe_chat_prompt_tokens(prompts[1], NULL);
    assert_int_equal(moe_session_follow(session, given, n[1], &kept, NULL), MOE_OK);
    assert_int_equal(kept, n[0]);
    write_tokens(session, tokens[0], 6);
    moe_session *fresh = new_session();
    assert_int_equal(moe_session_feed(fresh, given, n[1], NULL), MOE_OK);
    write_tokens(fresh, tokens[1], 6);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    moe_free(answer);
    moe_session_close(&session);
    moe_session_close(&fresh);
    moe_chat_prompt_close(&prompts[0]);
    moe_chat_prompt_close(&prompts[1]);
}

static void does_not_fit(void **state)
{
    (void)state;
    static int32_t tokens[513];
    moe_session *session = new_session();
    moe_error err = {""};
    size_t kept;
    assert_int_equal(moe_session_feed(session, tokens, 3, &err), MOE_OK);
    assert_int_equal(moe_session_follow(session, tokens, 513, &kept, &err), MOE_ERR_CONTEXT_FULL);
    assert_non_null(strstr(err.message, "513 tokens do not fit a context of 512"));
    assert_int_equal(moe_session_n_tokens(session), 3);
    assert_int_equal(moe_session_follow(session, tokens, 0, &kept, &err), MOE_OK);
    assert_int_equal(moe_session_n_tokens(session), 0);
    moe_session_close(&session);
}

/* ---- Templates ---- */

static char *text_of(const moe_chat_options *options)
{
    moe_chat_prompt *prompt;
    moe_error err = {""};
    size_t size;
    if (moe_chat_render(&prompt, engine, options, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    char *text = strdup(moe_chat_prompt_text(prompt, &size));
    assert_int_equal(size, strlen(text));
    moe_chat_prompt_close(&prompt);
    return text;
}

static void expect_text(const moe_chat_options *options, const char *expected)
{
    char *text = text_of(options);
    assert_string_equal(text, expected);
    free(text);
}

static void templates(void **state)
{
    (void)state;
    moe_chat_options options;
    moe_chat_options_init(&options);
    options.messages = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    expect_text(&options, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    options.template_name = "phi3";
    expect_text(&options, "<|user|>\nHi<|end|>\n<|assistant|>\n");
    options.template_name = NULL;
    options.template_text = "{{ messages[0].content ~ '|' ~ tools ~ '|' ~ x }}";
    options.template_arguments = "{\"x\": \"y\"}";
    expect_text(&options, "Hi|None|y");
    options.tools = "[1]";
    expect_text(&options, "Hi|[1]|y");
    options.template_text = "{{ strftime_now('%Y') }}";
    options.now = 1000000000;
    expect_text(&options, "2001");
    options.template_name = "chatml";
    moe_chat_prompt *prompt;
    moe_error err = {""};
    assert_int_equal(moe_chat_render(&prompt, engine, &options, &err), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "both given"));
    assert_null(prompt);
}

static void thinking(void **state)
{
    (void)state;
    moe_chat_options options;
    moe_chat_options_init(&options);
    options.messages = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    options.template_name = "qwen3";
    expect_text(&options, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    options.thinking = MOE_SWITCH_ON;
    expect_text(&options, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    options.thinking = MOE_SWITCH_OFF;
    expect_text(&options, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                          "<think>\n\n</think>\n\n");
    options.add_generation_prompt = false;
    options.continue_final_message = true;
    options.messages = "[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
                       "\"content\": \"Well \", \"reasoning\": \"So.\"}]";
    expect_text(&options, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                          "<think>\nSo.\n</think>\n\nWell ");
}

/* Arguments of tool calls come as JSON in a string: an object for templates that go through it,
 * the string itself for those that print it. */
static void tool_arguments(void **state)
{
    (void)state;
    moe_chat_options options;
    moe_chat_options_init(&options);
    options.messages =
        "[{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"I \"}, "
        "{\"type\": "
        "\"text\", \"text\": \"look.\"}], \"tool_calls\": [{\"function\": {\"name\": \"f\", "
        "\"arguments\": \"{\\\"a\\\":1}\"}}, {\"function\": {\"name\": \"g\", \"arguments\": "
        "\"{\\\"a\\\":\"}}]}]";
    options.template_text =
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
        "[{{ c.function.arguments }}|{{ 'x' + c.function.arguments }}|"
        "{{ c.function.arguments | tojson }}|{{ c.function.arguments is mapping }}]{% endfor %}"
        "{% endfor %}";
    expect_text(&options, "I look.[{\"a\":1}|x{\"a\":1}|{\"a\": 1}|True]"
                          "[{\"a\":|x{\"a\":|\"{\\\"a\\\":\"|False]");
}

/* ---- Replies ---- */

/* Pushes the text's tokens one by one; '|' stands between what came as reasoning and as answer. */
static void expect_parts(const char *template_text, const char *written, const char *reasoning,
                         const char *content)
{
    moe_chat_options options;
    moe_chat_prompt *prompt;
    moe_chat_reply *reply;
    moe_error err = {""};
    char parts[2][256] = {"", ""};
    int32_t *tokens;
    size_t n;
    const char *got[2];
    moe_chat_options_init(&options);
    options.messages = "[]";
    options.template_text = template_text;
    assert_int_equal(moe_chat_render(&prompt, engine, &options, &err), MOE_OK);
    assert_int_equal(moe_chat_reply_create(&reply, engine, prompt, &err), MOE_OK);
    moe_chat_prompt_close(&prompt);
    assert_int_equal(moe_tokenize(engine, written, strlen(written), MOE_TOKENIZE_PARSE_SPECIAL,
                                  &tokens, &n, &err),
                     MOE_OK);
    for (size_t i = 0; i <= n; i++) {
        if (i < n) {
            moe_chat_reply_push(reply, tokens[i], &got[0], &got[1]);
        } else {
            moe_chat_reply_finish(reply, &got[0], &got[1]);
        }
        for (int part = 0; part < 2; part++) {
            assert_true(strlen(parts[part]) + strlen(got[part]) < sizeof parts[part]);
            strcat(parts[part], got[part]);
        }
    }
    assert_string_equal(parts[0], reasoning);
    assert_string_equal(parts[1], content);
    moe_free(tokens);
    moe_chat_reply_close(&reply);
}

static void replies(void **state)
{
    (void)state;
    static const char marks[] = "{{ '</think>' if false }}x";
    expect_parts(marks, "<think>\nSo, a < b.\n</think>\n\nYes.\n", "So, a < b.", "Yes.\n");
    expect_parts(marks, "No marks, 1 </ 2 <thin", "", "No marks, 1 </ 2 <thin");
    expect_parts(marks, "<think>a</think>b<think> c </think> d", "ac", "bd");
    expect_parts(marks, "<think>unfinished </thi", "unfinished </thi", "");
    expect_parts(marks, "<think></think>b", "", "b");
    expect_parts("{{ '</think>' if false }}<think>\n", "so\n\n</think>\n\nthat", "so", "that");
    expect_parts("<think></think>\n\n", "it", "", "it");
    expect_parts("{{ '[/THINK]' if false }}x", "[THINK]a[/THINK] b <think>", "a", "b <think>");
    expect_parts("x", "<think>as it is</think>", "", "<think>as it is</think>");
    expect_parts(marks, "<think>ünï→</think>“é”", "ünï→", "“é”");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_is_dropped),
        cmocka_unit_test(follows),
        cmocka_unit_test(does_not_fit),
        cmocka_unit_test(templates),
        cmocka_unit_test(thinking),
        cmocka_unit_test(tool_arguments),
        cmocka_unit_test(replies),
    };
    if (argc != 2) {
        return 2;
    }
    path = argv[1];
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
