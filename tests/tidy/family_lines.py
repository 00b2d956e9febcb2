#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts what each family of models takes of the product: the lines of its own, and those elsewhere that name it.

    python3 family_lines.py [FAMILY...] [--root FOLDER] [--most LINES]

Own lines are those of its `moe_family`, and of the functions and macros of that file which it uses, without
comments and empty lines. A line elsewhere names the family by its architecture or its symbol. What a family
shares with others (operations, keys, forms, kernels) is not its own; the last column lists the groups of keys
that no other family has, each of which is read somewhere in runtime/model. --most fails if a family has more
lines than that.
"""
import argparse
import re
import sys
from pathlib import Path

FOLDERS = ("cache", "cpu", "cuda", "offload", "runtime")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def code_of(path):
    """The file without comments and empty lines."""
    text = COMMENT.sub("", path.read_text(encoding="utf-8"))
    return "\n".join(line for line in text.splitlines() if line.strip())


def parts_of(code):
    """What a file defines, each with its lines: functions, macros, families."""
    parts, name, lines = {}, None, []
    for line in code.splitlines():
        if name is None:
            family = re.match(r"const moe_family (moe_family_\w+) =", line)
            macro = re.match(r"#define (\w+)", line)
            function = re.match(r"(?:static )?[\w ]+[ *](\w+)\(", line)
            found = family or macro or function
            if not found:
                continue
            name, lines = found[1], []
            ends_with = None if macro else "}"
        lines.append(line)
        done = not line.endswith("\\") if ends_with is None else re.match(r"};?$", line) or line.endswith("};")
        if done:
            parts[name], name = lines, None
    return parts


def used_by(name, parts):
    """The name, and what it uses of the same file."""
    seen, open_names = set(), [name]
    while open_names:
        at = open_names.pop()
        if at not in seen:
            seen.add(at)
            words = set(re.findall(r"\w+", "\n".join(parts[at])))
            open_names += [other for other in parts if other in words and not other.startswith("moe_family_")]
    return seen


def families_of(root):
    """For each family: architecture, name, own lines, keys, symbol."""
    for path in sorted((root / "runtime" / "families").glob("*.c")):
        parts = parts_of(code_of(path))
        for name in (part for part in parts if part.startswith("moe_family_") and
                     parts[part][0].startswith("const moe_family m")):
            own = [line for part in used_by(name, parts) for line in parts[part]]
            text = "\n".join(own)
            model = re.search(r'\.name = "([^"]+)"', text)
            yield dict(symbol=name.removeprefix("moe_family_"), file=path.name, lines=len(own),
                       architecture=re.search(r'\.architecture = "([^"]+)"', text)[1],
                       name=model[1] if model else "", keys=set(re.findall(r"MOE_KEY_(\w+)", text)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help="architectures; else all")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--most", type=int)
    options = parser.parse_args()
    families = list(families_of(options.root))
    sources = {path: code_of(path) for folder in FOLDERS for kind in ("*.c", "*.h", "*.cu", "*.cuh")
               for path in sorted((options.root / folder).rglob(kind))}
    print("| family | models | own lines | lines elsewhere, files | keys that no other family has |\n|---|---|---|---|---|")
    too_long = []
    for family in families:
        if options.families and family["architecture"] not in options.families:
            continue
        named = re.compile(rf'"{re.escape(family["architecture"])}"|F\({family["symbol"]}\)|moe_family_{family["symbol"]}\b')
        hits = {path: sum(bool(named.search(line)) for line in code.splitlines())
                for path, code in sources.items() if path.name != family["file"]}
        hits = {path: n for path, n in hits.items() if n > 0}
        others = set().union(*(other["keys"] for other in families if other["name"] != family["name"]))
        alone = ", ".join(sorted(family["keys"] - others)).lower().replace("_", " ")
        print(f'| `{family["architecture"]}` | {family["name"]} | {family["lines"]} | {sum(hits.values())}, {len(hits)} | {alone} |')
        if options.most is not None and family["lines"] + sum(hits.values()) > options.most:
            too_long.append(family["architecture"])
    if too_long:
        sys.exit(f"more than {options.most} lines: {', '.join(too_long)}")


if __name__ == "__main__":
    main()
