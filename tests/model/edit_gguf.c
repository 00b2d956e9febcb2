/* SPDX-License-Identifier: MIT */
/* edit_gguf IN OUT EDIT...: gguf_edit.h for scripts. */
#include <stdio.h>

#include "tests/model/gguf_edit.h"

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: edit_gguf IN OUT EDIT...\n", stderr);
        return 2;
    }
    return gguf_edit(argv[1], argv[2], (const char *const *)argv + 3, (size_t)argc - 3) == 0 ? 0
                                                                                             : 1;
}
