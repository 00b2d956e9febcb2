/* SPDX-License-Identifier: MIT */
/* Finds a policy by its name: a built-in one, or one in a shared object. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <moe/files.h>

#include "cache/expert_cache.h"
#include "cache/policies.h"
#include "runtime/base/error.h"

static const moe_policy *const built_in[] = {
    &moe_policy_lfru,        &moe_policy_lru,          &moe_policy_lfu,
    &moe_policy_sieve,       &moe_policy_s3_fifo,      &moe_policy_arc,
    &moe_policy_two_queue,   &moe_policy_lirs,         &moe_policy_lru_k,
    &moe_policy_gdsf,        &moe_policy_tiny_lfu,     &moe_policy_lecar,
    &moe_policy_least_stale, &moe_policy_hot_temporal, &moe_policy_hot_global,
    &moe_policy_gate_score,  &moe_policy_cost_aware,   &moe_policy_random,
    &moe_policy_belady,
};

#define N_BUILT_IN (sizeof built_in / sizeof built_in[0])

const moe_policy *moe_policy_at(uint32_t index)
{
    return index < N_BUILT_IN ? built_in[index] : NULL;
}

static int fail_unknown(const char *name, moe_error *err)
{
    char names[256] = "";
    size_t size = 0;
    for (size_t i = 0; i < N_BUILT_IN && size < sizeof names; i++) {
        size += (size_t)snprintf(names + size, sizeof names - size, "%s%s", i == 0 ? "" : ", ",
                                 built_in[i]->name);
    }
    return moe_fail(
        err, MOE_ERR_ARGUMENT,
        "there is no cache policy '%.100s'; choose one of %s, or a plug-in: a path that "
        "ends in .so",
        name, names);
}

/* The name of a function that the plug-in's table lacks; NULL: it has all. */
static const char *missing_member(const moe_policy *policy)
{
    const struct {
        bool present;
        const char *name;
    } members[] = {
        {policy->name != NULL, "name"},       {policy->create != NULL, "create"},
        {policy->destroy != NULL, "destroy"}, {policy->hit != NULL, "hit"},
        {policy->insert != NULL, "insert"},   {policy->evict != NULL, "evict"},
        {policy->victim != NULL, "victim"},   {policy->end_pass != NULL, "end_pass"},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (!members[i].present) {
            return members[i].name;
        }
    }
    return NULL;
}

static int check_table(const moe_policy *policy, const char *path, moe_error *err)
{
    if (policy == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%.200s: moe_policy_plugin() returned NULL",
                        path);
    }
    if (policy->abi == 0 || policy->abi > MOE_POLICY_ABI) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%.200s: built for version %u of the policy interface, this library has "
                        "%u; rebuild it with the installed moe/policy.h",
                        path, policy->abi, MOE_POLICY_ABI);
    }
    const char *missing = missing_member(policy);
    if (missing != NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%.200s: the policy's member '%s' is missing",
                        path, missing);
    }
    return MOE_OK;
}

static int load_plugin(const moe_policy **out, void **plugin, const char *path, moe_error *err)
{
    typedef const moe_policy *(*plugin_fn)(void);
    char local[4096];
    /* dlopen() would search the system's folders for a name without a slash. */
    int size = snprintf(local, sizeof local, "%s%s", strchr(path, '/') == NULL ? "./" : "", path);
    if (size < 0 || (size_t)size >= sizeof local) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "the path of the policy plug-in is too long");
    }
    /* dlopen() would wait for ever on a named pipe, so check first that it is a regular file. */
    int fd;
    moe_error reason = {""};
    int status = moe_input_open(&fd, local, 0, &reason);
    if (status != MOE_OK) {
        return moe_fail(err, status, "policy plug-in: %.450s", reason.message);
    }
    close(fd);
    void *handle = dlopen(local, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        return moe_fail(err, MOE_ERR_IO, "policy plug-in: %.450s", dlerror());
    }
    plugin_fn entry;
    *(void **)&entry = dlsym(handle, "moe_policy_plugin");
    status = entry == NULL ? moe_fail(err, MOE_ERR_FORMAT,
                                      "%.200s: not a policy plug-in: it does not define "
                                      "moe_policy_plugin() (see moe/policy.h)",
                                      path)
                           : check_table(entry(), path, err);
    if (status != MOE_OK) {
        dlclose(handle);
        return status;
    }
    *out = entry();
    *plugin = handle;
    return MOE_OK;
}

int moe_policy_load(const moe_policy **out, void **plugin, const char *name, moe_error *err)
{
    *out = NULL;
    *plugin = NULL;
    size_t length = strlen(name);
    if (length > 3 && strcmp(name + length - 3, ".so") == 0) {
        return load_plugin(out, plugin, name, err);
    }
    for (size_t i = 0; i < N_BUILT_IN; i++) {
        if (strcmp(name, built_in[i]->name) == 0) {
            *out = built_in[i];
            return MOE_OK;
        }
    }
    return fail_unknown(name, err);
}

int moe_policy_choose(const moe_policy **out, void **plugin, const moe_policy *own,
                      const char *name, moe_error *err)
{
    if (own == NULL) {
        return moe_policy_load(out, plugin, name, err);
    }
    *plugin = NULL;
    *out = own;
    return check_table(own, "own_policy", err);
}

void moe_policy_release(void **plugin)
{
    if (*plugin != NULL) {
        dlclose(*plugin);
        *plugin = NULL;
    }
}
