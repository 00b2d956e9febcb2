# SPDX-License-Identifier: MIT
"""coverage_table.py [--files] BUILD: adds up what gcov says of a build and prints it by folder.

A line counts as run when any object that holds it ran it; headers are counted once. Only files of
the product are told: what lies under runtime, cache, offload, cpu and cuda."""
import json
import os
import shutil
import subprocess
import sys

PRODUCT = ("runtime/", "cache/", "offload/", "cpu/", "cuda/")


def merge_counts(build):
    """Adds up build/counts/*, a folder a test, next to the objects. Returns how many were lost."""
    merged, lost, n = None, 0, 0
    counts = os.path.join(build, "counts")
    for test in sorted(os.listdir(counts)):
        source = counts + "/" + test + build
        if not os.path.isdir(source):
            continue
        if merged is None:
            merged = source
            continue
        n += 1
        target = f"{counts}/merged{n}"
        done = subprocess.run(["gcov-tool", "merge", merged, source, "-o", target],
                              capture_output=True, check=False)
        if done.returncode != 0 or done.stderr:
            lost += 1
            shutil.rmtree(target, ignore_errors=True)
            continue
        if os.path.basename(merged).startswith("merged"):
            shutil.rmtree(merged)
        merged = target
    if merged is not None:
        shutil.copytree(merged, build, dirs_exist_ok=True)
    return lost


def read_counts(build):
    """{file: {line number: times it ran}}, files as seen from the source folder."""
    source = os.path.dirname(build)
    # Objects that never ran have no counts yet, but their notes say which lines there are.
    notes = [os.path.join(at, name) for at, _, names in os.walk(build) for name in names
             if name.endswith(".gcno") and ".p" in at and "/tests/" not in at]
    lines = {}
    for first in range(0, len(notes), 40):
        answer = subprocess.run(["gcov", "--json-format", "--stdout"] + notes[first:first + 40],
                                cwd=build, capture_output=True, text=True, errors="replace",
                                check=False)
        for document in answer.stdout.splitlines():
            if not document.startswith("{"):
                continue
            for file in json.loads(document)["files"]:
                path = os.path.relpath(os.path.join(build, file["file"]), source)
                if path.startswith(PRODUCT):
                    known = lines.setdefault(path, {})
                    for line in file["lines"]:
                        number = line["line_number"]
                        known[number] = known.get(number, 0) + line["count"]
    return lines


def print_row(name, counts):
    ran, all_lines = counts
    print(f"{name:44} {all_lines:8} {ran:8} {100.0 * ran / all_lines:7.1f} %")


def main():
    with_files = "--files" in sys.argv
    build = os.path.abspath(sys.argv[-1])
    lost = merge_counts(build)
    if lost > 0:
        print(f"{lost} tests left counts that gcov-tool cannot read; they are not in the table")
    lines = read_counts(build)
    if not lines:
        sys.exit("coverage: no counts found; did the tests run?")
    folders, total = {}, [0, 0]
    print(f"{'folder':44} {'lines':>8} {'ran':>8} {'share':>9}")
    for path in sorted(lines):
        ran = sum(1 for count in lines[path].values() if count > 0)
        for counts in (folders.setdefault(os.path.dirname(path), [0, 0]), total):
            counts[0] += ran
            counts[1] += len(lines[path])
        if with_files:
            print_row(path, (ran, len(lines[path])))
    for folder in sorted(folders):
        print_row(folder + "/", folders[folder])
    print_row("all", total)


main()
