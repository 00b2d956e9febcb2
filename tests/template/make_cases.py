# SPDX-License-Identifier: MIT
"""Writes cases.json: the conversations, and the hash of what jinja2 renders of each with each of
the templates/*.jinja (null: it refuses). Needs jinja2 and xxhash."""
import json
import pathlib

import oracle
import xxhash

folder = pathlib.Path(__file__).parent
out = {"now": oracle.NOW, "markup": oracle.MARKUP,
       "conversations": [{"name": n, "messages": m, "tools": t}
                         for n, m, t in oracle.conversations()],
       "settings": list(oracle.settings()), "expected": {}}
for path in sorted((folder / "templates").glob("*.jinja")):
    hashes = []
    for name, variables in oracle.cases():
        text, _ = oracle.render(path.read_bytes().decode(), {**oracle.MARKUP, **variables})
        hashes.append(None if text is None else xxhash.xxh3_64_hexdigest(text.encode()))
    out["expected"][path.name] = hashes
with open(folder / "cases.json", "w", encoding="utf-8") as file:
    json.dump(out, file, ensure_ascii=False, indent=0)
    file.write("\n")
