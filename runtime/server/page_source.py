# SPDX-License-Identifier: MIT
"""Writes the page as a C source: one file, into which its style sheet and scripts are put, and a policy
(Content-Security-Policy) that lets run these and nothing else. Arguments: the page, the C source, and a
file for a list of what was read (a depfile). The page names its parts as any page does."""
import base64
import hashlib
import os
import re
import sys

page_path, source_path, list_path = sys.argv[1:]
parts = [page_path]


def read(name):
    path = os.path.join(os.path.dirname(page_path), name)
    parts.append(path)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert not re.search(r"</(script|style)|<!--", text), f"{name} would end the element it stands in"
    return text


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


with open(page_path, encoding="utf-8") as file:
    page = file.read()
SHEET, SCRIPT = r'<link rel="stylesheet" href="([^"]*)">', r'<script src="([^"]*)"></script>\n'
style = "\n" + "".join(read(name) for name in re.findall(SHEET, page))
script = '\n"use strict";\n' + "".join(read(name) for name in re.findall(SCRIPT, page))
page = re.sub(SHEET, lambda _: f"<style>{style}</style>", page)
page = re.sub(f"(?:{SCRIPT})+", lambda _: f"<script>{script}</script>\n", page)
policy = (f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; connect-src "
          "'self'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'")

data = page.encode()
with open(source_path, "w", encoding="ascii") as out:
    out.write('/* SPDX-License-Identifier: MIT */\n#include "server_page.h"\n\n')
    out.write("const char server_page[] = {\n")
    for at in range(0, len(data), 20):
        out.write(",".join(str(b if b < 128 else b - 256) for b in data[at:at + 20]) + ",\n")
    out.write("};\nconst size_t server_page_size = sizeof server_page;\n")
    out.write(f'const char server_page_policy[] = "{policy}";\n')
with open(list_path, "w", encoding="utf-8") as out:
    out.write(f"{source_path}: {' '.join(parts)}\n")
