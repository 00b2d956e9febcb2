/* SPDX-License-Identifier: MIT */
/* Finds the files of a repository that a model's name means. Names of files come from the hub, so
 * they are checked before they become paths. */
#ifndef HUB_NAMES_H
#define HUB_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HUB_REPO_SIZE = 200,
    HUB_REVISION_SIZE = 200,
    HUB_SHOWN_SIZE = HUB_REPO_SIZE + HUB_REVISION_SIZE,
    HUB_QUANT_SIZE = 256,
    HUB_COMMIT_SIZE = 41,
    HUB_SUM_SIZE = 65
};

/* "owner/repo@revision:quant" */
typedef struct hub_name {
    char repo[HUB_REPO_SIZE];
    /* A branch, a tag, "refs/pr/1", or a commit's 40 digits; "": none, which means main. */
    char revision[HUB_REVISION_SIZE];
    char shown[HUB_SHOWN_SIZE]; /* "owner/repo@revision", for messages */
    char quant[HUB_QUANT_SIZE]; /* "Q4_K_M", or a file's path, which ends in ".gguf"; "": none */
} hub_name;

typedef struct hub_file {
    char *path; /* in the repository */
    uint64_t size;
    char sum[HUB_SUM_SIZE]; /* SHA-256 in hexadecimal digits; "": not known */
} hub_file;

typedef struct hub_files {
    hub_file *list;
    size_t n;
    char commit[HUB_COMMIT_SIZE];
} hub_files;

/* Parses OWNER/REPO[@REVISION][:QUANT]. Returns an exit code. */
int hub_name_parse(hub_name *name, const char *text);

/* Whether the path stays below the folder to which it is appended, and can be printed. */
bool hub_path_is_safe(const char *path);
/* Whether the text may be a revision: letters, digits and "._-+/", and a safe path. */
bool hub_is_revision(const char *text);
bool hub_is_hex(const char *text, size_t size);

/* Adds a file to the list. False: memory is short. */
bool hub_files_add(hub_files *files, const char *path, uint64_t size, const char *sum);
void hub_files_free(hub_files *files);

/* Copies the files of the model that the name means, parts of a split one in their order. Without a
 * quant: Q4_K_M, or the first model. An empty result: there is none, or parts are missing. False:
 * memory is short. */
bool hub_files_choose(hub_files *chosen, const hub_files *all, const hub_name *name);
/* Lists the quants of the models among the files, such as "Q4_K_M, Q8_0"; cut at the buffer's
 * size. */
void hub_files_quants(const hub_files *files, char *out, size_t size);
/* Returns the index of the first file of the next model among the files, at or after `from`;
 * files->n: there is none. */
size_t hub_files_next_model(const hub_files *files, size_t from);
/* Writes the quant, or the path, that means this file's model behind the repository's name. */
void hub_quant_of(const char *path, char out[HUB_QUANT_SIZE]);

#endif
