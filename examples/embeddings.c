/* SPDX-License-Identifier: MIT */
/* Turns texts into vectors and prints how alike each is to the first one: 1 is the same direction.
 * Usage: embeddings MODEL.gguf TEXT TEXT... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/embedding.h>
#include <moe/moe.h>

/* The tokens of all texts, one text after the other. Both arrays: free(). */
static int tokenize(const moe_engine *engine, char *const *texts, size_t n, int32_t **tokens,
                    size_t *lengths, moe_error *err)
{
    size_t n_all = 0;
    *tokens = NULL;
    for (size_t i = 0; i < n; i++) {
        int32_t *ids;
        int status = moe_tokenize(engine, texts[i], strlen(texts[i]), MOE_TOKENIZE_ADD_SPECIAL,
                                  &ids, &lengths[i], err);
        if (status != MOE_OK) {
            return status;
        }
        int32_t *all = realloc(*tokens, (n_all + lengths[i] + 1) * sizeof **tokens);
        if (all == NULL) {
            moe_free(ids);
            return MOE_ERR_MEMORY;
        }
        memcpy(all + n_all, ids, lengths[i] * sizeof *ids);
        n_all += lengths[i];
        *tokens = all;
        moe_free(ids);
    }
    return MOE_OK;
}

static float product(const float *a, const float *b, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

int main(int argc, char **argv)
{
    moe_engine_options options;
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine *engine = NULL;
    moe_error err = {"out of memory"};
    int32_t *tokens = NULL;
    if (argc < 4) {
        fprintf(stderr, "usage: embeddings MODEL.gguf TEXT TEXT...\n");
        return 2;
    }
    const size_t n = (size_t)argc - 2;
    size_t *lengths = calloc(n, sizeof *lengths);
    float *embeddings = NULL;
    moe_engine_options_init(&options);
    options.model_path = argv[1];
    int status = lengths == NULL ? MOE_ERR_MEMORY : moe_engine_open(&engine, &options, &err);
    if (status == MOE_OK) {
        status = tokenize(engine, argv + 2, n, &tokens, lengths, &err);
    }
    if (status == MOE_OK) {
        (void)moe_engine_get_info(engine, &info);
        embeddings = calloc(n * info.n_embd, sizeof *embeddings);
        status = embeddings == NULL ? MOE_ERR_MEMORY
                                    : moe_embed(engine, tokens, lengths, n, MOE_POOLING_MEAN, true,
                                                embeddings, &err);
    }
    for (size_t i = 1; i < n && status == MOE_OK; i++) {
        printf("%.3f  %s\n", (double)product(embeddings, embeddings + i * info.n_embd, info.n_embd),
               argv[i + 2]);
    }
    if (status != MOE_OK) {
        fprintf(stderr, "embeddings: %s\n", err.message);
    }
    free(embeddings);
    free(tokens);
    free(lengths);
    moe_engine_close(&engine);
    return status == MOE_OK ? 0 : 1;
}
