/* SPDX-License-Identifier: MIT */
/* The pre-tokenizers whose splits cases/splits.bin holds. */
#ifndef MOE_TESTS_SPLIT_NAMES_H
#define MOE_TESTS_SPLIT_NAMES_H

/* In the order in which make_cases.py writes them. */
static const char *const splitters[] = {
    "gpt-2",       "llama-bpe",  "qwen2",  "olmo",      "dbrx",    "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "default",    "glm4",   "stablelm2", "qwen35",  "starcoder",    "falcon",
    "tekken",      "gpt-4o",     "youtu",  "tiny_aya",  "kimi-k2", "bailingmoe",   "seed-coder",
    "ufakzeka",    "exaone-moe", "laguna", "minicpm5",  "jais-2",  "bloom",        "viking",
    "chameleon",   "superbpe",   "afmoe",  "spark2_5"};

#define N_SPLITTERS (sizeof splitters / sizeof splitters[0])

#endif
