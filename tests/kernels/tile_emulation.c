/* SPDX-License-Identifier: MIT */
#include "tile_emulation.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static struct {
    uint8_t config[64];
    uint8_t data[TILES][ROWS][ROW_BYTES];
} unit;

static int rows_of(int tile)
{
    return unit.config[48 + tile];
}

static int bytes_of(int tile)
{
    uint16_t bytes;
    memcpy(&bytes, unit.config + 16 + 2 * tile, sizeof bytes);
    return bytes;
}

static void require(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "the matrix unit would refuse: %s\n", what);
        abort();
    }
}

static void require_configured(int tile)
{
    require(unit.config[0] == 1 && tile >= 0 && tile < TILES && rows_of(tile) > 0 &&
                bytes_of(tile) > 0,
            "a tile register without a configuration");
}

void emulated_configure(const void *config)
{
    memcpy(unit.config, config, sizeof unit.config);
    require(unit.config[0] == 1 && unit.config[1] == 0, "the palette");
    for (int tile = 0; tile < TILES; tile++) {
        require(rows_of(tile) <= ROWS && bytes_of(tile) <= ROW_BYTES, "a shape");
        require((rows_of(tile) == 0) == (bytes_of(tile) == 0), "half a shape");
    }
    memset(unit.data, 0, sizeof unit.data);
}

void emulated_release(void)
{
    memset(&unit, 0, sizeof unit);
}

void emulated_zero(int tile)
{
    require_configured(tile);
    memset(unit.data[tile], 0, sizeof unit.data[tile]);
}

void emulated_load(int tile, const void *from, size_t stride)
{
    emulated_zero(tile);
    for (int r = 0; r < rows_of(tile); r++) {
        memcpy(unit.data[tile][r], (const uint8_t *)from + (size_t)r * stride,
               (size_t)bytes_of(tile));
    }
}

void emulated_store(int tile, void *to, size_t stride)
{
    require_configured(tile);
    for (int r = 0; r < rows_of(tile); r++) {
        memcpy((uint8_t *)to + (size_t)r * stride, unit.data[tile][r], (size_t)bytes_of(tile));
    }
}

/* sums[m][n] += a[m][4k .. 4k + 3] . b[k][4n .. 4n + 3], signed bytes. */
void emulated_dot_int8(int sums, int a, int b)
{
    require_configured(sums);
    require_configured(a);
    require_configured(b);
    require(rows_of(a) == rows_of(sums) && bytes_of(b) == bytes_of(sums) &&
                bytes_of(a) == 4 * rows_of(b) && bytes_of(sums) % 4 == 0,
            "shapes that do not fit");
    for (int m = 0; m < rows_of(sums); m++) {
        int32_t row[ROW_BYTES / 4];
        memcpy(row, unit.data[sums][m], sizeof row);
        for (int n = 0; n < bytes_of(sums) / 4; n++) {
            for (int k = 0; k < bytes_of(a); k++) {
                row[n] += (int8_t)unit.data[a][m][k] * (int8_t)unit.data[b][k / 4][4 * n + k % 4];
            }
        }
        memcpy(unit.data[sums][m], row, (size_t)bytes_of(sums));
    }
}
