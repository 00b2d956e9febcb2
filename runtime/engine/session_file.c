/* SPDX-License-Identifier: MIT */
/* Functions that writing and reading a saved session share. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/session_format.h"

int moe_session_file_begin(moe_session_file *f, moe_error *err)
{
    f->hash = XXH3_createState();
    if (f->hash == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to %s a session",
                        f->writes ? "save" : "load");
    }
    XXH3_64bits_reset(f->hash);
    return MOE_OK;
}

void moe_session_file_end(moe_session_file *f)
{
    XXH3_freeState(f->hash);
    free(f->block);
}

static int put(const moe_session_file *f, const void *data, size_t size)
{
    if (size > 0 && fwrite(data, 1, size, f->file) != size) {
        return moe_fail(f->err, MOE_ERR_IO, "%s: cannot write: %s", f->path, strerror(errno));
    }
    return MOE_OK;
}

static int get(const moe_session_file *f, void *data, size_t size)
{
    if (size == 0 || fread(data, 1, size, f->file) == size) {
        return MOE_OK;
    }
    if (ferror(f->file)) {
        return moe_fail(f->err, MOE_ERR_IO, "%s: cannot read: %s", f->path, strerror(errno));
    }
    return moe_fail(f->err, MOE_ERR_FORMAT, "%s: the session file is truncated", f->path);
}

int moe_session_file_bytes(moe_session_file *f, void *data, size_t size)
{
    MOE_TRY(f->writes ? put(f, data, size) : get(f, data, size));
    XXH3_64bits_update(f->hash, data, size);
    return MOE_OK;
}

int moe_session_file_block(moe_session_file *f, moe_device *device, void *address, size_t size)
{
    if (size > f->block_size) {
        free(f->block);
        f->block = moe_calloc_aligned(size, 1);
        f->block_size = f->block != NULL ? size : 0;
    }
    if (f->block == NULL) {
        return moe_fail(f->err, MOE_ERR_MEMORY, "no memory to %s a page or a state",
                        f->writes ? "save" : "load");
    }
    int status =
        f->writes ? device->ops->download(device, f->block, address, size, f->err) : MOE_OK;
    status = status == MOE_OK ? moe_session_file_bytes(f, f->block, size) : status;
    return status == MOE_OK && !f->writes && address != NULL
               ? device->ops->upload(device, address, f->block, size, f->err)
               : status;
}

int moe_session_file_pages(moe_session_file *f, const moe_session *session, const uint32_t *first)
{
    const moe_kv_pool *pool = &session->engine->kv;
    int status = MOE_OK;
    for (uint32_t p = 0; p < moe_kv_pages_of(session->n_evaluated); p++) {
        for (uint32_t g = 0; g < pool->n_groups && status == MOE_OK; g++) {
            if (p >= first[g] && pool->groups[g].page_bytes > 0) {
                status =
                    moe_session_file_block(f, session->engine->device,
                                           session->kv.addresses[(size_t)p * pool->n_groups + g],
                                           pool->groups[g].page_bytes);
            }
        }
    }
    return status;
}

int moe_session_file_state(moe_session_file *f, moe_session *session)
{
    moe_engine *engine = session->engine;
    moe_state_table *states = &session->states;
    size_t size = engine->states.state_bytes;
    if (size == 0 || session->n_evaluated == 0) {
        return MOE_OK;
    }
    MOE_TRY(moe_session_file_block(f, engine->device,
                                   (f->writes ? states->current : states->next)->memory, size));
    if (!f->writes) {
        moe_state_table_commit(&engine->states, states, session->n_evaluated);
    }
    return MOE_OK;
}

int moe_session_file_head_pages(moe_session_file *f, const moe_head_line *line, uint32_t n_entries)
{
    for (uint32_t p = 0; p < moe_kv_pages_of(n_entries); p++) {
        MOE_TRY(moe_session_file_block(f, line->head->device, line->pages[p],
                                       line->head->kv.page_bytes));
    }
    return MOE_OK;
}
