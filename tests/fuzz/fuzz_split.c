/* SPDX-License-Identifier: MIT */
/* A model in up to four files, each of any bytes. The input:
 *
 *     u8 which name is opened | for each part but the last: u16 size, bytes | the last part: the
 * rest
 *
 * Every part has a name for each number of parts that a model could have, so that whatever a part
 * says of itself, the files it asks for are there. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_support.h"

enum { MAX_PARTS = 4 };

static fuzz_file parts[MAX_PARTS];
static char folder[] = "/tmp/moe-fuzz-split.XXXXXX";
static char names[MAX_PARTS * (MAX_PARTS + 1) / 2][64];
static size_t n_names;

static void remove_names(void)
{
    for (size_t i = 0; i < n_names; i++) {
        unlink(names[i]);
    }
    rmdir(folder);
}

static void make_names(void)
{
    fuzz_expect(mkdtemp(folder) != NULL);
    for (int count = 1; count <= MAX_PARTS; count++) {
        for (int part = 1; part <= count; part++) {
            char *name = names[n_names++];
            snprintf(name, sizeof names[0], "%s/m-%05d-of-%05d.gguf", folder, part, count);
            fuzz_expect(symlink(fuzz_file_write(&parts[part - 1], "", 0), name) == 0);
        }
    }
    atexit(remove_names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (n_names == 0) {
        make_names();
    }
    if (size == 0) {
        return 0;
    }
    const char *opened = names[*data % n_names];
    data++;
    size--;
    for (int part = 0; part < MAX_PARTS; part++) {
        size_t length = size;
        if (part < MAX_PARTS - 1 && size >= 2) {
            length = (size_t)(data[0] | data[1] << 8);
            data += 2;
            size -= 2;
            length = length < size ? length : size;
        }
        fuzz_file_write(&parts[part], data, length);
        data += length;
        size -= length;
    }
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    if (moe_gguf_open(&gguf, opened, &err) == MOE_OK) {
        fuzz_check_model(gguf);
    } else {
        fuzz_expect(gguf == NULL && err.message[0] != '\0');
    }
    moe_gguf_close(&gguf);
    return 0;
}
