# SPDX-License-Identifier: MIT
"""Writes the page as a C source: its bytes and their number. Arguments: the page, the source."""
import sys

with open(sys.argv[1], "rb") as page, open(sys.argv[2], "w", encoding="ascii") as out:
    data = page.read()
    out.write('/* SPDX-License-Identifier: MIT */\n#include "server_page.h"\n\n')
    out.write("const char server_page[] = {\n")
    for at in range(0, len(data), 20):
        out.write(",".join(str(b if b < 128 else b - 256) for b in data[at:at + 20]) + ",\n")
    out.write("};\nconst size_t server_page_size = sizeof server_page;\n")
