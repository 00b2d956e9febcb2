/* SPDX-License-Identifier: MIT */
#include "server_job.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

server_job *server_job_new(void)
{
    pthread_condattr_t attributes;
    server_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return NULL;
    }
    moe_sampling_init(&job->sampling);
    job->max_tokens = UINT64_MAX;
    job->n_top = -1;
    job->references = 1;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&job->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return job;
}

server_job *server_job_follow(server_job *leader)
{
    server_job *job = server_job_new();
    if (job == NULL) {
        return NULL;
    }
    job->leader = leader;
    leader->references++;
    job->tokens = leader->tokens;
    job->n_tokens = leader->n_tokens;
    job->prompt = leader->prompt;
    job->sampling = leader->sampling;
    job->biases = leader->biases;
    job->n_biases = leader->n_biases;
    job->grammar = leader->grammar;
    job->n_stop_ids = leader->n_stop_ids;
    memcpy(job->stop_ids, leader->stop_ids, sizeof job->stop_ids);
    job->n_top = leader->n_top;
    job->max_tokens = leader->max_tokens;
    job->ignore_eos = leader->ignore_eos;
    job->keeps_markup = leader->keeps_markup;
    job->tells_prompt = leader->tells_prompt;
    job->client = leader->client;
    job->stops = leader->stops;
    return job;
}

server_job *server_job_free(server_job *job)
{
    server_job *leader = job->leader;
    if (leader == NULL) {
        free(job->tokens);
        free(job->biases);
        free(job->text_ends);
        moe_grammar_close(&job->grammar);
        moe_chat_prompt_close(&job->prompt);
    }
    free(job->pool.sums);
    server_stops_free(&job->stops);
    cli_buffer_free(&job->content);
    cli_buffer_free(&job->reasoning);
    cli_buffer_free(&job->reports);
    pthread_cond_destroy(&job->changed);
    free(job);
    return leader;
}

server_job *server_job_first(server_job *job)
{
    return job->leader == NULL ? job : job->leader;
}
