/* SPDX-License-Identifier: MIT */
#include "cli_messages.h"

#include <stdio.h>
#include <string.h>

#include <moe/model_file.h>

#include "cli_engine.h"

static bool is_file(const char *value)
{
    static const char ending[] = ".jinja";
    size_t size = strlen(value);
    return strchr(value, '/') != NULL ||
           (size >= strlen(ending) && strcmp(value + size - strlen(ending), ending) == 0);
}

int cli_chat_template_load(cli_chat_template *chat_template, const cli_options *options)
{
    *chat_template = (cli_chat_template){.name = options->chat_template};
    if (options->chat_template == NULL || !is_file(options->chat_template)) {
        return CLI_EXIT_OK;
    }
    chat_template->name = NULL;
    int code = cli_read_file(&chat_template->text, options->chat_template);
    if (code == CLI_EXIT_OK && (chat_template->text.size == 0 ||
                                strlen(chat_template->text.data) != chat_template->text.size)) {
        code = cli_fail(CLI_EXIT_FAILURE, "--chat-template: %s is empty or has a NUL byte",
                        options->chat_template);
    }
    return code;
}

void cli_chat_template_free(cli_chat_template *chat_template)
{
    cli_buffer_free(&chat_template->text);
}

static bool add_text(struct json_object *message, const char *name, const char *text)
{
    struct json_object *value = json_object_new_string(text);
    return value != NULL && json_object_object_add(message, name, value) == 0;
}

bool cli_add_message(struct json_object *messages, const char *role, const char *text,
                     const char *reasoning)
{
    struct json_object *message = json_object_new_object();
    bool whole = message != NULL && add_text(message, "role", role) &&
                 add_text(message, "content", text) &&
                 (reasoning == NULL || reasoning[0] == '\0' ||
                  add_text(message, "reasoning_content", reasoning)) &&
                 json_object_array_add(messages, message) == 0;
    if (!whole) {
        json_object_put(message);
    }
    return whole;
}

int cli_render_messages(moe_chat_prompt **prompt, const moe_engine *engine,
                        const cli_options *options, const cli_chat_template *chat_template,
                        struct json_object *messages, bool continues)
{
    moe_chat_options chat;
    moe_error err = {""};
    moe_chat_options_init(&chat);
    chat.messages = json_object_to_json_string_ext(messages, JSON_C_TO_STRING_PLAIN);
    chat.template_name = chat_template->name;
    chat.template_text = chat_template->text.data;
    chat.template_arguments = options->chat_template_arguments;
    chat.thinking = (moe_switch)options->think;
    chat.add_generation_prompt = !continues;
    chat.continue_final_message = continues;
    *prompt = NULL;
    if (chat.messages == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
    }
    int status = moe_chat_render(prompt, engine, &chat, &err);
    if (status != MOE_OK && chat.template_text != NULL) {
        moe_error inner = err;
        snprintf(err.message, sizeof err.message, "%.160s: %.320s", options->chat_template,
                 inner.message);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cli_render_question(moe_chat_prompt **prompt, const moe_engine *engine,
                        const cli_options *options, const cli_buffer *text)
{
    cli_chat_template chat_template;
    *prompt = NULL;
    if (text->size > 0 && memchr(text->data, '\0', text->size) != NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "the prompt has a NUL byte: --chat takes text only");
    }
    int code = cli_chat_template_load(&chat_template, options);
    struct json_object *messages = json_object_new_array();
    bool whole = messages != NULL &&
                 (options->system_text == NULL ||
                  cli_add_message(messages, "system", options->system_text, NULL)) &&
                 cli_add_message(messages, "user", text->size > 0 ? text->data : "", NULL) &&
                 (options->continued == NULL ||
                  cli_add_message(messages, "assistant", options->continued, NULL));
    if (code == CLI_EXIT_OK && !whole) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
    }
    if (code == CLI_EXIT_OK) {
        code = cli_render_messages(prompt, engine, options, &chat_template, messages,
                                   options->continued != NULL);
    }
    json_object_put(messages);
    cli_chat_template_free(&chat_template);
    return code;
}

/* Whether the file's header has a chat template, or an override gives it one. Also true if that
 * cannot be determined: opening then says why. */
static bool header_has_template(const cli_options *options)
{
    static const char wanted[] = "tokenizer.chat_template";
    moe_file *file = NULL;
    char type[8], value[8]; /* cut short */
    const char *key = "";
    if (strstr(options->overrides.text, wanted) != NULL ||
        moe_file_open(&file, options->model, NULL) != MOE_OK) {
        return true;
    }
    bool has = false;
    for (uint64_t i = 0; !has && moe_file_get_metadata(file, i, &key, type, sizeof type, value,
                                                       sizeof value) == MOE_OK;
         i++) {
        has = strcmp(key, wanted) == 0;
    }
    moe_file_close(&file);
    return has;
}

bool cli_has_template(const cli_options *options)
{
    return options->chat_template != NULL || header_has_template(options);
}
