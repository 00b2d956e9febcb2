/* SPDX-License-Identifier: MIT */
#include "runtime/host/sysfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_file(char *out, size_t size, const char *path)
{
    size_t have = 0;
    out[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    while (have + 1 < size) {
        ssize_t got = read(fd, out + have, size - 1 - have);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        have += (size_t)got;
    }
    close(fd);
    out[have] = '\0';
    return have > 0;
}

static bool read_formatted(char *out, size_t size, const char *path_format, va_list args)
{
    char path[PATH_MAX];
    int length = vsnprintf(path, PATH_MAX, path_format, args);
    out[0] = '\0';
    return length >= 0 && length < PATH_MAX && read_file(out, size, path);
}

bool moe_sysfs_read(char *out, size_t size, const char *path_format, ...)
{
    va_list args;
    va_start(args, path_format);
    bool is_read = read_formatted(out, size, path_format, args);
    va_end(args);
    return is_read;
}

bool moe_sysfs_read_line(char *out, size_t size, const char *path_format, ...)
{
    va_list args;
    va_start(args, path_format);
    bool is_read = read_formatted(out, size, path_format, args);
    va_end(args);
    out[strcspn(out, "\n")] = '\0';
    return is_read;
}

static bool parse_u64(const char *text, uint64_t *value)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    unsigned long long parsed = strtoull(text, &end, 10);
    if (errno != 0) {
        return false;
    }
    *value = parsed;
    return true;
}

bool moe_sysfs_read_u64(uint64_t *value, const char *path_format, ...)
{
    char text[64];
    va_list args;
    va_start(args, path_format);
    bool is_read = read_formatted(text, sizeof text, path_format, args);
    va_end(args);
    return is_read && parse_u64(text, value);
}

bool moe_sysfs_find_u64(const char *text, const char *key, uint64_t *value)
{
    size_t key_size = strlen(key);
    for (const char *line = text; line != NULL;) {
        if (strncmp(line, key, key_size) == 0) {
            const char *number = line + key_size;
            number += strspn(number, " \t");
            return parse_u64(number, value);
        }
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    return false;
}
