#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws comments, paragraphs and commit subjects by a seed, for a reader who did not write them.

It prints a comment with the lines below it, as a reader meets it. The reader marks each item "understood at
the first reading" or not; the aim is nine of ten (CONTRIBUTING.md).

    tests/docs/draw_prose.py . --seed 1 [--comments 60] [--paragraphs 15] [--subjects 40]
"""
import argparse
import pathlib
import random
import re
import subprocess

PRODUCT = ("runtime/", "offload/", "cuda/", "cpu/", "cache/")
LINES_BELOW = 6
LEAST_WORDS = 6


def tracked(root, endings):
    names = subprocess.check_output(["git", "-C", root, "ls-files"], text=True).split("\n")
    return [name for name in names if name.endswith(endings)]


def comments_of(root):
    found = []
    for name in tracked(root, (".c", ".h", ".cu", ".cuh")):
        if not name.startswith(PRODUCT):
            continue
        lines = (pathlib.Path(root) / name).read_text().split("\n")
        at = 0
        while at < len(lines):
            if not lines[at].lstrip().startswith("/*") or "SPDX" in lines[at]:
                at += 1
                continue
            end = at
            while "*/" not in lines[end]:
                end += 1
            if len(" ".join(lines[at:end + 1]).split()) >= LEAST_WORDS:
                found.append((f"{name}:{at + 1}", "\n".join(lines[at:end + 1 + LINES_BELOW])))
            at = end + 1
    return found


def paragraphs_of(root):
    found = []
    for name in tracked(root, (".md",)):
        text = (pathlib.Path(root) / name).read_text()
        text = re.sub(r"(```|~~~).*?\1", "", text, flags=re.S)
        for paragraph in re.split(r"\n\s*\n", text):
            if not paragraph.lstrip().startswith(("#", "|", "<")) and len(paragraph.split()) >= 20:
                found.append((name, paragraph.strip()))
    return found


def subjects_of(root, newest):
    log = subprocess.check_output(["git", "-C", root, "log", "--format=%h %s", f"-{newest}"], text=True)
    return [tuple(line.split(" ", 1)) for line in log.strip().split("\n")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--comments", type=int, default=60)
    parser.add_argument("--paragraphs", type=int, default=15)
    parser.add_argument("--subjects", type=int, default=40)
    parser.add_argument("--newest", type=int, default=400, help="subjects are of so many newest commits")
    wanted = parser.parse_args()
    draw = random.Random(wanted.seed)
    for title, found, n in (("comment", comments_of(wanted.root), wanted.comments),
                            ("paragraph", paragraphs_of(wanted.root), wanted.paragraphs),
                            ("subject", subjects_of(wanted.root, wanted.newest), wanted.subjects)):
        for number, (where, text) in enumerate(draw.sample(found, min(n, len(found))), 1):
            print(f"== {title} {number}: {where}\n{text}\n")


if __name__ == "__main__":
    main()
