/* SPDX-License-Identifier: MIT */
/* The known chat templates, in the order in which they are tried. */
#include "runtime/model/chat_template_row.h"
#include "runtime/model/tokenizer_impl.h"

#define BOS MOE_MARK_BOS
#define EOS MOE_MARK_EOS

#define CHATML                                                                                     \
    .system = {"<|im_start|>system\n", "<|im_end|>\n", false},                                     \
    .user = {"<|im_start|>user\n", "<|im_end|>\n", false},                                         \
    .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n", false}

#define DEEPSEEK3                                                                                  \
    .start = BOS, .system = {"", "", false}, .user = {"<｜User｜>", "", false},                    \
    .assistant = {"<｜Assistant｜>", "<｜end▁of▁sentence｜>", false}

#define OPEN_USER                                                                                  \
    .system = {"<|system|>\n", "\n", false}, .user = {"<|user|>\n", "\n", false},                  \
    .assistant = {"<|assistant|>\n", EOS "\n", false}

const moe_chat_template moe_chat_templates[] = {
    /* Qwen3 answers without reasoning: its turn opens with the empty block that the template writes
     * for enable_thinking=false. "chatml" by name lets it reason. */
    {.name = "qwen3",
     .signs = {"<|im_start|>", "enable_thinking is false"},
     CHATML,
     .answer = "<|im_start|>assistant\n<think>\n\n</think>\n\n",
     .drops_reasoning = true,
     .last_reasoning = true},
    {.name = "qwen2.5",
     .signs = {"<|im_start|>", "You are Qwen, created by Alibaba Cloud. You are a helpful "
                               "assistant."},
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     CHATML,
     .answer = "<|im_start|>assistant\n"},
    {.name = "qwen2",
     .signs = {"<|im_start|>", "You are a helpful assistant.<|im_end|>"},
     .default_system = "You are a helpful assistant.",
     CHATML,
     .answer = "<|im_start|>assistant\n"},
    {.name = "qwen1.5",
     .signs = {"<|im_start|>", "You are a helpful assistant<|im_end|>"},
     .default_system = "You are a helpful assistant",
     CHATML,
     .answer = "<|im_start|>assistant\n"},
    {.name = "chatml",
     .signs = {"<|im_start|>"},
     .unless = "<|im_sep|>",
     CHATML,
     .answer = "<|im_start|>assistant\n"},
    {.name = "llama3",
     .signs = {"<|start_header_id|>", "<|end_header_id|>"},
     .start = BOS,
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", true},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", true},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", true},
     .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {.name = "deepseek-r1-think",
     .signs = {"<｜Assistant｜><think>", "</think>"},
     DEEPSEEK3,
     .answer = "<｜Assistant｜><think>\n",
     .drops_reasoning = true},
    {.name = "deepseek-r1",
     .signs = {"<｜Assistant｜>", "</think>"},
     DEEPSEEK3,
     .answer = "<｜Assistant｜>",
     .drops_reasoning = true},
    {.name = "deepseek3", .signs = {"<｜Assistant｜>"}, DEEPSEEK3, .answer = "<｜Assistant｜>"},
    {.name = "phi3",
     .signs = {"<|assistant|>", "<|end|>"},
     .system = {"<|system|>\n", "<|end|>\n", false},
     .user = {"<|user|>\n", "<|end|>\n", false},
     .assistant = {"<|assistant|>\n", "<|end|>\n", false},
     .answer = "<|assistant|>\n"},
    /* The next four differ in what ends a user's turn and in how a conversation begins. */
    {.name = "zephyr",
     .signs = {"<|assistant|>", "<|user|>"},
     .twice = "'] + eos_token",
     .system = {"<|system|>\n", EOS "\n", false},
     .user = {"<|user|>\n", EOS "\n", false},
     .assistant = {"<|assistant|>\n", EOS "\n", false},
     .answer = "<|assistant|>\n"},
    {.name = "olmoe",
     .signs = {"<|assistant|>", "<|user|>", "{{ eos_token }}"},
     .start = EOS,
     OPEN_USER,
     .answer = "<|assistant|>\n"},
    {.name = "olmoe-bos",
     .signs = {"<|assistant|>", "<|user|>", "{{ bos_token }}"},
     .start = BOS,
     OPEN_USER,
     .answer = "<|assistant|>\n"},
    {.name = "tulu",
     .signs = {"<|assistant|>", "<|user|>"},
     OPEN_USER,
     .answer = "<|assistant|>\n"},
    {.name = "llama2",
     .signs = {"[INST]", "<<SYS>>"},
     .system = {BOS "[INST] <<SYS>>\n", "\n<</SYS>>\n\n", false},
     .user = {BOS "[INST] ", " [/INST]", true},
     .assistant = {" ", " " EOS, true},
     .user_after_system = "",
     .answer = ""},
    /* Mistral's spaces changed with each version of its tokenizer. */
    {.name = "mistral-v1",
     .signs = {" [INST] ", " [/INST]"},
     .start = BOS,
     .system = {" [INST] ", "\n\n", false},
     .user = {" [INST] ", " [/INST]", false},
     .assistant = {" ", EOS, false},
     .user_after_system = "",
     .answer = ""},
    {.name = "mistral",
     .signs = {"[INST] ", " [/INST]"},
     .start = BOS,
     .system = {"[INST] ", "\n\n", false},
     .user = {"[INST] ", " [/INST]", false},
     .assistant = {"", EOS, false},
     .user_after_system = "",
     .answer = ""},
    {.name = "mistral-v3",
     .signs = {"[INST] ", "[/INST]"},
     .unless = "[SYSTEM_PROMPT]",
     .start = BOS,
     .system = {"[INST] ", "\n\n", false},
     .user = {"[INST] ", "[/INST]", false},
     .assistant = {" ", EOS, true},
     .user_after_system = "",
     .answer = ""},
    /* DeepSeek-MoE and DeepSeek-V2. */
    {.name = "deepseek2",
     .signs = {"'User: '", "'Assistant: '"},
     .start = BOS,
     .system = {"", "\n\n", false},
     .user = {"User: ", "\n\n", false},
     .assistant = {"Assistant: ", EOS, false},
     .answer = "Assistant:"},
    /* DeepSeek-Coder. */
    {.name = "deepseek",
     .signs = {"### Instruction:", "<|EOT|>"},
     .start = BOS,
     .default_system =
         "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
         "Deepseek Company, and you only answer questions related to computer science. For "
         "politically sensitive questions, security and privacy issues, and other non-computer "
         "science questions, you will refuse to answer\n",
     .system = {"", "", false},
     .user = {"### Instruction:\n", "\n", false},
     .assistant = {"### Response:\n", "\n<|EOT|>\n", false},
     .answer = "### Response:\n"},
};

const size_t moe_chat_n_templates = sizeof moe_chat_templates / sizeof moe_chat_templates[0];
