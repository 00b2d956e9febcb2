/* SPDX-License-Identifier: MIT */
/* The templates that the library knows by name, for files without one. bos_token and eos_token are
 * "" if the vocabulary has none; add_bos says whether its texts begin with BOS. */
#include "runtime/model/chat_template_table.h"

#define ROLES                                                                                      \
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"                \
    "{{ raise_exception('a message has the role \"' + m.role + '\"; roles are system, user and "   \
    "assistant') }}{% endif %}{% endfor %}"

#define BOS        "{{ bos_token }}"
#define BOS_IF_ANY "{% if add_bos %}" BOS "{% endif %}"

/* The system text that is used if the first message is not a system message. */
#define DEFAULT_SYSTEM(text)                                                                       \
    "{% if not messages or messages[0].role != 'system' %}{{ '" text "' }}{% endif %}"

#define LOOP(system, user, assistant)                                                              \
    "{% for m in messages %}{% if m.role == 'system' %}{{ " system " }}"                           \
    "{% elif m.role == 'user' %}{{ " user " }}{% else %}{{ " assistant                             \
    " }}{% endif %}{% endfor %}"

/* Puts the first question into the same frame as the system text before it. */
#define AFTER_SYSTEM(open)                                                                         \
    "('' if not loop.first and messages[loop.index0 - 1].role == 'system' else " open ")"

#define ANSWER(open) "{% if add_generation_prompt %}{{ " open " }}{% endif %}"

#define CHATML_TURN "'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n'"
#define CHATML      LOOP(CHATML_TURN, CHATML_TURN, CHATML_TURN) ANSWER("'<|im_start|>assistant\\n'")
#define CHATML_WITH(system)                                                                        \
    ROLES BOS_IF_ANY DEFAULT_SYSTEM("<|im_start|>system\\n" system "<|im_end|>\\n") CHATML

#define DEEPSEEK3(content)                                                                         \
    ROLES BOS LOOP("m.content", "'<｜User｜>' + m.content",                                        \
                   "'<｜Assistant｜>' + " content " + '<｜end▁of▁sentence｜>'")
#define ANSWERED "m.content.split('</think>')[-1]"

#define OPEN_USER(bos)                                                                             \
    ROLES bos LOOP("'<|system|>\\n' + m.content + '\\n'", "'<|user|>\\n' + m.content + '\\n'",     \
                   "'<|assistant|>\\n' + m.content + eos_token + '\\n'")                           \
        ANSWER("'<|assistant|>\\n'")

#define FRAMED(end)                                                                                \
    ROLES BOS_IF_ANY LOOP("'<|system|>\\n' + m.content + " end,                                    \
                          "'<|user|>\\n' + m.content + " end,                                      \
                          "'<|assistant|>\\n' + m.content + " end) ANSWER("'<|assistant|>\\n'")

#define LLAMA3_TURN                                                                                \
    "'<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content.strip() + "            \
    "'<|eot_id|>'"

/* Mistral's versions differ in the spaces around user messages and answers. */
#define MISTRAL(before, after, assistant)                                                          \
    ROLES BOS LOOP("'" before "' + m.content + '\\n\\n'",                                          \
                   AFTER_SYSTEM("'" before "'") " + m.content + '" after "'", assistant)

/* Qwen3: leaves out the reasoning of earlier answers; keeps it in answers after the last
 * question. */
#define QWEN3                                                                                      \
    ROLES BOS_IF_ANY                                                                               \
        "{% set ns = namespace(last=messages | length) %}{% for m in messages %}"                  \
        "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"          \
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"                             \
        "{% if m.role != 'assistant' %}{{ m.content }}{% else %}"                                  \
        "{% set text = m.content.split('</think>')[-1] %}{% set thought = '' %}"                   \
        "{% if m.reasoning_content is string %}{% set thought = m.reasoning_content %}"            \
        "{% elif '</think>' in m.content %}"                                                       \
        "{% set thought = m.content.split('</think>')[0].split('<think>')[-1] %}"                  \
        "{% set text = text.lstrip('\\n') %}{% endif %}{% set thought = thought.strip('\\n') %}"   \
        "{% if loop.index0 > ns.last and (loop.last or thought) %}"                                \
        "{{ '<think>\\n' + thought + '\\n</think>\\n\\n' + text.lstrip('\\n') }}"                  \
        "{% else %}{{ text }}{% endif %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"              \
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"                           \
        "{% if enable_thinking is defined and not enable_thinking %}"                              \
        "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"

#define CODER                                                                                      \
    "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "       \
    "Deepseek Company, and you only answer questions related to computer science. For "            \
    "politically sensitive questions, security and privacy issues, and other non-computer "        \
    "science questions, you will refuse to answer\\n"

const moe_known_template moe_known_templates[] = {
    {"chatml", ROLES BOS_IF_ANY CHATML},
    {"qwen3", QWEN3},
    {"qwen2.5",
     CHATML_WITH("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
    {"qwen2", CHATML_WITH("You are a helpful assistant.")},
    {"qwen1.5", CHATML_WITH("You are a helpful assistant")},
    {"llama3", ROLES BOS LOOP(LLAMA3_TURN, LLAMA3_TURN, LLAMA3_TURN)
                   ANSWER("'<|start_header_id|>assistant<|end_header_id|>\\n\\n'")},
    {"llama2", ROLES LOOP("bos_token + '[INST] <<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n'",
                          AFTER_SYSTEM("bos_token + '[INST] '") " + m.content.strip() + ' [/INST]'",
                          "' ' + m.content.strip() + ' ' + eos_token")},
    {"deepseek3", DEEPSEEK3("m.content") ANSWER("'<｜Assistant｜>'")},
    {"deepseek-r1", DEEPSEEK3(ANSWERED) ANSWER("'<｜Assistant｜>'")},
    {"deepseek-r1-think", DEEPSEEK3(ANSWERED) ANSWER("'<｜Assistant｜><think>\\n'")},
    {"deepseek2", ROLES BOS LOOP("m.content + '\\n\\n'", "'User: ' + m.content + '\\n\\n'",
                                 "'Assistant: ' + m.content + eos_token") ANSWER("'Assistant:'")},
    {"deepseek",
     ROLES BOS DEFAULT_SYSTEM(CODER) LOOP("m.content", "'### Instruction:\\n' + m.content + '\\n'",
                                          "'### Response:\\n' + m.content + '\\n<|EOT|>\\n'")
         ANSWER("'### Response:\\n'")},
    {"phi3", FRAMED("'<|end|>\\n'")},
    {"zephyr", FRAMED("eos_token + '\\n'")},
    {"olmoe", OPEN_USER("{{ eos_token }}")},
    {"olmoe-bos", OPEN_USER(BOS)},
    {"tulu", OPEN_USER(BOS_IF_ANY)},
    {"mistral-v1", MISTRAL(" [INST] ", " [/INST]", "' ' + m.content + eos_token")},
    {"mistral", MISTRAL("[INST] ", " [/INST]", "m.content + eos_token")},
    {"mistral-v3", MISTRAL("[INST] ", "[/INST]", "' ' + m.content.strip() + eos_token")},
};

const size_t moe_n_known_templates = sizeof moe_known_templates / sizeof moe_known_templates[0];
