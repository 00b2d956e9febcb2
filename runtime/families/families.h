/* SPDX-License-Identifier: MIT */
/* The model families. To add one, write a new file, or extend a relative's, and add its name to
 * MOE_FAMILIES. */
#ifndef MOE_FAMILIES_FAMILIES_H
#define MOE_FAMILIES_FAMILIES_H

#include <stddef.h>

#include "runtime/model/family.h"

/* Returns the family with this architecture; NULL if there is none. */
const moe_family *moe_family_find(const char *architecture);
size_t moe_family_count(void);
const moe_family *moe_family_at(size_t index);

/* Finds the model's family and reads its config (moe_model_config_read_as()). The error about an
 * unknown architecture names some known ones. */
int moe_model_config_read(moe_model_config *config, const moe_gguf *gguf, moe_error *err);

/* All families, in the order of moe_family_at(). */
/* clang-format off */
#define MOE_FAMILIES(F) \
    F(llama) F(olmoe) F(qwen2moe) F(qwen3moe) F(qwen3next) F(qwen35moe) F(lfm2moe) F(deepseek) \
    F(deepseek2) F(kimi_linear) F(deepseek32) F(glm_dsa) F(mistral4) F(glm4moe) F(qwen3vlmoe) \
    F(minimax_m2) F(granitemoe) F(granitehybrid) F(nemotron_h_moe) F(jamba) F(ernie4_5_moe) \
    F(bailingmoe) F(bailingmoe2) F(dots1) F(hy_v3) F(hy_v4) F(hunyuan_moe) F(gpt_oss) F(llama4) \
    F(exaone_moe) F(gemma4) F(phimoe) F(cohere2moe) F(mimo2) F(step35) F(mellum) F(afmoe) \
    F(dbrx) F(smallthinker) F(grok) F(arctic) F(minimax_m3) F(granite_swa) F(laguna) F(maple) \
    F(flex_olmo) F(bailingmoe3) F(glm5_next) F(glm5next) F(qwen4exp) F(deepseek4) \
    F(dots3note) F(kimi_k3)
/* clang-format on */

#define MOE_DECLARE_FAMILY(name) extern const moe_family moe_family_##name;
MOE_FAMILIES(MOE_DECLARE_FAMILY)

#endif
