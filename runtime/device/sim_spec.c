/* SPDX-License-Identifier: MIT */
#include "runtime/device/sim_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define EXAMPLE            "sim:memory=2G,link=16GB/s,latency=10us"
#define DEFAULT_LATENCY_NS 10000u

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit memory_units[] = {
    {"", 1},   {"K", 1024.0}, {"M", 1048576.0}, {"G", 1073741824.0}, {"T", 1099511627776.0},
    {NULL, 0},
};
static const unit link_units[] = {{"GB/s", 1e9}, {"MB/s", 1e6}, {NULL, 0}};
static const unit latency_units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {NULL, 0}};

typedef struct part {
    const char *name;
    const unit *units;
    const char *what;
    double smallest, largest;
} part;

enum { PART_MEMORY, PART_LINK, PART_LATENCY, PART_COUNT };

static const part parts[PART_COUNT] = {
    [PART_MEMORY] = {"memory", memory_units, "a size such as 2G or 512M", 1, 0x1p50},
    [PART_LINK] = {"link", link_units, "a speed such as 16GB/s or 500MB/s", 1e3, 1e15},
    [PART_LATENCY] = {"latency", latency_units, "a time such as 10us, 500ns or 1ms", 0, 1e10},
};

bool moe_sim_spec_is(const char *text)
{
    return strncmp(text, "sim", 3) == 0 && (text[3] == ':' || text[3] == '\0');
}

static int refuse_value(const part *p, const char *value, size_t size, moe_error *err)
{
    return moe_fail(err, MOE_ERR_ARGUMENT, "simulated device: %s must be %s, not '%.*s'", p->name,
                    p->what, (int)size, value);
}

static int parse_value(const part *p, const char *value, size_t size, uint64_t *out, moe_error *err)
{
    char text[64];
    if (size == 0 || size >= sizeof text || value[0] < '0' || value[0] > '9') {
        return refuse_value(p, value, size, err);
    }
    memcpy(text, value, size);
    text[size] = '\0';
    char *end;
    double number = strtod(text, &end);
    for (const unit *u = p->units; u->name != NULL; u++) {
        double scaled = number * u->factor;
        if (strcmp(end, u->name) == 0 && scaled >= p->smallest && scaled <= p->largest) {
            *out = (uint64_t)llround(scaled);
            return MOE_OK;
        }
    }
    return refuse_value(p, value, size, err);
}

static int find_part(const char *name, size_t size)
{
    for (int i = 0; i < PART_COUNT; i++) {
        if (strlen(parts[i].name) == size && memcmp(parts[i].name, name, size) == 0) {
            return i;
        }
    }
    return -1;
}

int moe_sim_spec_parse(moe_sim_spec *out, const char *text, moe_error *err)
{
    uint64_t values[PART_COUNT] = {0, 0, DEFAULT_LATENCY_NS};
    bool given[PART_COUNT] = {false};
    const char *next = text[3] == ':' ? text + 4 : text + 3;
    while (*next != '\0') {
        size_t size = strcspn(next, ",");
        size_t name_size = strcspn(next, "=,");
        int p = find_part(next, name_size);
        if (p < 0 || name_size == size) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "simulated device: '%.*s' is not memory=, link= or latency=; write %s",
                            (int)size, next, EXAMPLE);
        }
        if (given[p]) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "simulated device: %s is given twice",
                            parts[p].name);
        }
        MOE_TRY(
            parse_value(&parts[p], next + name_size + 1, size - name_size - 1, &values[p], err));
        given[p] = true;
        next += size;
        next += *next == ',';
    }
    for (int i = 0; i < PART_LATENCY; i++) {
        if (!given[i]) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "simulated device: no %s=; write %s",
                            parts[i].name, EXAMPLE);
        }
    }
    *out = (moe_sim_spec){values[PART_MEMORY], values[PART_LINK], values[PART_LATENCY]};
    return MOE_OK;
}
