/* SPDX-License-Identifier: MIT */
/* Turns -hf OWNER/REPO[@REVISION][:QUANT] into a file that a command can open. */
#ifndef HUB_MODEL_H
#define HUB_MODEL_H

#include "cli_options.h"
#include "hub_cache.h"

/* The file that a command opens for the model, until the command ends. */
typedef struct hub_model {
    char path[PATH_MAX];
    char folder[HUB_FOLDER_SIZE]; /* a temporary folder with only the model's header; "": none */
} hub_model;

/* Sets options->model by options->hub_model: to the model in the cache, or else to the hub's, which
 * is downloaded first. header_only: the model's header is enough. Returns an exit code. */
int hub_model_take(hub_model *model, cli_options *options, bool header_only);
/* Whether the cache has the model. */
bool hub_model_is_here(const cli_options *options);
/* Removes the temporary folder, if there is one. */
void hub_model_release(hub_model *model);

/* Whether the hub must not be asked: --offline, or HF_HUB_OFFLINE. */
bool hub_is_offline(const cli_options *options);

#endif
