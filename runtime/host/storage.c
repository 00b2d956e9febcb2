/* SPDX-License-Identifier: MIT */
#include "runtime/host/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/host/sysfs.h"

/* mountinfo writes space, tab, newline and backslash as octal escapes. */
static void unescape(char *text)
{
    char *out = text;
    for (const char *in = text; *in != '\0';) {
        unsigned value;
        if (in[0] == '\\' && sscanf(in + 1, "%3o", &value) == 1) {
            *out++ = (char)value;
            in += 4;
        } else {
            *out++ = *in++;
        }
    }
    *out = '\0';
}

/* Finds the mount whose device number is the file's. Several may match (bind mounts): takes the one
 * with the longest mount point that is a prefix of the path. */
static void find_mount(moe_storage *storage, const char *real_path, dev_t device)
{
    char line[2 * PATH_MAX];
    size_t best = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned major_number;
        unsigned minor_number;
        char mount[256];
        char type[32];
        char source[256];
        const char *tail = strstr(line, " - ");
        if (tail == NULL ||
            sscanf(line, "%*s %*s %u:%u %*s %255s", &major_number, &minor_number, mount) != 3 ||
            sscanf(tail + 3, "%31s %255s", type, source) != 2 ||
            makedev(major_number, minor_number) != device) {
            continue;
        }
        unescape(mount);
        size_t size = strlen(mount);
        if (size >= best && strncmp(real_path, mount, size) == 0) {
            best = size;
            snprintf(storage->mount_point, sizeof storage->mount_point, "%s", mount);
            snprintf(storage->file_system, sizeof storage->file_system, "%s", type);
            snprintf(storage->mount_source, sizeof storage->mount_source, "%s", source);
        }
    }
    fclose(file);
}

static uint32_t queue_number(const char *disk, const char *name)
{
    uint64_t value = 0;
    moe_sysfs_read_u64(&value, "%s/queue/%s", disk, name);
    return value > UINT32_MAX ? 0 : (uint32_t)value;
}

/* Reads the block device's directory in /sys. A partition's parent is its disk, which has the
 * queue.
 */
static void read_device(moe_storage *storage, dev_t device)
{
    char link[64];
    char disk[PATH_MAX];
    uint64_t sectors = 0;
    snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major(device), minor(device));
    if (realpath(link, disk) == NULL) {
        return;
    }
    uint64_t partition;
    if (moe_sysfs_read_u64(&partition, "%s/partition", disk)) {
        *strrchr(disk, '/') = '\0';
    }
    storage->has_device = true;
    snprintf(storage->device, sizeof storage->device, "%.63s", strrchr(disk, '/') + 1);
    moe_sysfs_read_line(storage->device_model, sizeof storage->device_model, "%s/device/model",
                        disk);
    storage->device_model[strcspn(storage->device_model, "\n")] = '\0';
    storage->is_nvme = strncmp(storage->device, "nvme", 4) == 0;
    storage->is_rotational = queue_number(disk, "rotational") != 0;
    storage->logical_block_bytes = queue_number(disk, "logical_block_size");
    storage->physical_block_bytes = queue_number(disk, "physical_block_size");
    storage->read_ahead_kb = queue_number(disk, "read_ahead_kb");
    if (moe_sysfs_read_u64(&sectors, "%s/size", disk)) {
        storage->device_bytes = sectors * 512; /* statx counts in this unit, whatever the device's
                                                * sector size */
    }
}

/* Kernels before 6.1 do not report the alignment; whether a file can be opened with O_DIRECT shows
 * on all kernels. */
static void read_direct_io(moe_storage *storage, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    storage->direct_io = fd >= 0;
    if (fd >= 0) {
        close(fd);
    }
#ifdef STATX_DIOALIGN
    struct statx state;
    if (statx(AT_FDCWD, path, 0, STATX_DIOALIGN, &state) == 0 &&
        (state.stx_mask & STATX_DIOALIGN) != 0) {
        storage->direct_memory_align = state.stx_dio_mem_align;
        storage->direct_offset_align = state.stx_dio_offset_align;
        storage->direct_io = storage->direct_io && state.stx_dio_offset_align != 0;
    }
#endif
}

int moe_storage_read(moe_storage *storage, const char *path, moe_error *err)
{
    struct stat state;
    struct stat source;
    char real_path[PATH_MAX];
    memset(storage, 0, sizeof *storage);
    if (stat(path, &state) != 0 || realpath(path, real_path) == NULL) {
        return moe_fail(err, MOE_ERR_IO, "%s: %s", path, strerror(errno));
    }
    find_mount(storage, real_path, state.st_dev);
    /* btrfs, overlays and similar file systems have their own device numbers; the mount's source
     * may name the device. */
    if (major(state.st_dev) != 0) {
        read_device(storage, state.st_dev);
    } else if (stat(storage->mount_source, &source) == 0 && S_ISBLK(source.st_mode)) {
        read_device(storage, source.st_rdev);
    }
    read_direct_io(storage, path);
    return MOE_OK;
}
