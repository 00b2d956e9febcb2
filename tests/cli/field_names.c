/* SPDX-License-Identifier: MIT */
/* Prints the command's version of a library message, its only argument. */
#include <stdio.h>

#include "runtime/cli_base/cli_library_words.h"

int main(int argc, char **argv)
{
    char words[1024];
    char few[8];
    if (argc != 2) {
        return 2;
    }
    cli_library_words(argv[1], words, sizeof words);
    cli_library_words(argv[1], few, sizeof few);
    puts(words);
    for (int i = 0; i < 7 && words[i] != '\0'; i++) {
        if (few[i] != words[i]) {
            return 1;
        }
    }
    return few[7 < sizeof few ? 7 : 0] == '\0' || words[0] == '\0' ? 0 : 1;
}
