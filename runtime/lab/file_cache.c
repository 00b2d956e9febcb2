/* SPDX-License-Identifier: MIT */
/* Makes the page cache cold without privileges: posix_fadvise() drops clean pages that no process
 * maps, and mincore() on an untouched mapping shows which pages are left. */
#include "runtime/lab/file_cache.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <moe/lab.h>

#include "runtime/base/error.h"
#include "offload/model_open.h"

#define WINDOW_PAGES 4096u /* pages that are mapped and examined by one call */

/* Whether mincore() can be trusted: if a process may not write the file, the kernel reports every
 * page as resident. */
static bool may_ask(int fd)
{
    char link[64];
    struct stat state;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return fstat(fd, &state) == 0 &&
           (geteuid() == state.st_uid || geteuid() == 0 || access(link, W_OK) == 0);
}

static bool count_cached(int fd, uint64_t file_bytes, uint64_t *cached)
{
    long page_bytes = sysconf(_SC_PAGESIZE);
    unsigned char present[WINDOW_PAGES];
    *cached = 0;
    if (page_bytes <= 0 || !may_ask(fd)) {
        return false;
    }
    uint64_t page = (uint64_t)page_bytes;
    for (uint64_t at = 0; at < file_bytes; at += WINDOW_PAGES * page) {
        uint64_t left = file_bytes - at;
        size_t bytes = (size_t)(left < WINDOW_PAGES * page ? left : WINDOW_PAGES * page);
        void *window = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)at);
        if (window == MAP_FAILED) {
            return false;
        }
        bool known = mincore(window, bytes, present) == 0;
        munmap(window, bytes);
        if (!known) {
            return false;
        }
        for (size_t i = 0; i < (bytes + page - 1) / page; i++) {
            *cached += (present[i] & 1u) != 0 ? page : 0;
        }
    }
    *cached = *cached < file_bytes ? *cached : file_bytes;
    return true;
}

bool moe_file_cache_drop_fd(int fd, uint64_t file_bytes, uint64_t *cached)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return count_cached(fd, file_bytes, cached);
}

int moe_file_cache_drop(const char *model_path, double *cached_share, moe_error *err)
{
    if (model_path == NULL) {
        return moe_fail_null(err, "moe_file_cache_drop", "model_path");
    }
    moe_gguf *gguf;
    uint64_t all = 0;
    uint64_t all_cached = 0;
    bool all_known = true;
    MOE_TRY(moe_model_open(&gguf, model_path, NULL, err));
    for (size_t i = 0; i < moe_gguf_n_files(gguf); i++) {
        const moe_gguf_file *file = moe_gguf_file_at(gguf, i);
        uint64_t cached = 0;
        all_known = moe_file_cache_drop_fd(file->source->fd, file->size, &cached) && all_known;
        all += file->size;
        all_cached += cached;
    }
    moe_gguf_close(&gguf);
    if (cached_share != NULL) {
        *cached_share = all_known && all > 0 ? (double)all_cached / (double)all : -1;
    }
    return MOE_OK;
}
