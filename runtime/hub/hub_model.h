/* SPDX-License-Identifier: MIT */
/* From -hf OWNER/REPO[:QUANT] to a file that a command can open. */
#ifndef HUB_MODEL_H
#define HUB_MODEL_H

#include "cli_options.h"
#include "hub_cache.h"

/* Which file stands for the model, until the command ends. */
typedef struct hub_model {
    char path[PATH_MAX];
    char folder[HUB_FOLDER_SIZE]; /* of a header without weights, to be removed; "": none */
} hub_model;

/* Sets options->model by options->hub_model: a model of the cache as it is, else the hub's, which
 * is downloaded first. header_only: its header is enough. Exit codes. */
int hub_model_take(hub_model *model, cli_options *options, bool header_only);
/* Whether the cache has the model. */
bool hub_model_is_here(const cli_options *options);
/* Removes what was only borrowed. */
void hub_model_release(hub_model *model);

/* Whether the hub must not be asked: --offline, or HF_HUB_OFFLINE. */
bool hub_is_offline(const cli_options *options);

#endif
