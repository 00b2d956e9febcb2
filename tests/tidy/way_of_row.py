#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the way of one row: through which files a reader goes who follows the calls of a step.

    tests/tidy/way_of_row.py BUILD [SOURCE [FUNCTION [FOLDER...]]]

The walk is depth-first: from FUNCTION (moe_step) into each function that it calls or names, in the
order of the machine code in BUILD's object files, each function once. Constant tables that a function
names are followed; what is called through a pointer in a structure (a device's operations, a pass's
hooks) is not. Branches are all taken, but the walk does not enter the FOLDERs: with runtime/draft and
runtime/lossy it is the way of a row without speculation and lossy modes. The optimizer has put small
static functions into their callers, which changes no file.

    stay    functions one after the other that stand in one file
    rooms   the files that are entered
    climb   from one stay to the next, when that is in a file which had been left before (often a
            return to the caller), or in a folder that stands higher in SOURCE/tests/tidy/layers.txt
    arrow   from a file to another of which it names a function
    upward  an arrow into a folder that stands higher, or into a file that had to be passed to come
            to the arrow's beginning, so that the two files stand in a circle; a call upward is a
            function named along such an arrow

A climb is what a reader does who comes back from a callee. A call upward is what a layer must not do.

An older commit is told by a build of it, with this script of today.
"""
import os
import re
import subprocess
import sys


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Object:
    """An object file: its functions, what each names, and what its constant tables name."""

    def __init__(self, path):
        self.names = {}  # function: names in order
        self.defines = set()
        self.starts = {}  # (section, offset): function
        self.tables = []  # (section, begin, end, name)
        self.in_data = []  # (section, offset, name)
        self.read_symbols(path)
        self.read_data(path)
        self.read_code(path)

    def read_symbols(self, path):
        for line in output_of("objdump", "-t", path).splitlines():
            m = re.match(r"([0-9a-f]+) (.).{5}([FO]) (\S+)\t([0-9a-f]+) +(?:\.hidden )?(\S+)$", line)
            if not m:
                continue
            value, binding, kind, section, size, name = m.groups()
            at = int(value, 16)
            if kind == "F":
                self.starts[section, at] = name
            else:
                self.tables.append((section, at, at + int(size, 16), name))
            if binding in "gw":
                self.defines.add(name)

    def read_data(self, path):
        section = ""
        for line in output_of("objdump", "-r", path).splitlines():
            m = re.match(r"RELOCATION RECORDS FOR \[(.*)\]", line)
            if m:
                section = m.group(1)
                continue
            m = re.match(r"([0-9a-f]+) R_\S+\s+([^\s+-]+)(?:([+-])0x([0-9a-f]+))?", line)
            if m and section.startswith((".data", ".rodata")):
                name = self.function_at(m.group(2), int(m.group(4) or "0", 16)) or m.group(2)
                self.in_data.append((section, int(m.group(1), 16), name))

    def function_at(self, section, offset):
        return self.starts.get((section, offset))

    def table(self, name):
        """The names in the constant of that name."""
        for section, begin, end, table in self.tables:
            if table == name:
                return [n for s, at, n in self.in_data if s == section and begin <= at < end]
        return []

    def table_at(self, section, offset):
        for s, begin, end, name in self.tables:
            if s == section and begin <= offset < end:
                return self.table(name)
        return []

    def read_code(self, path):
        function = None
        for line in output_of("objdump", "-dr", "--no-show-raw-insn", path).splitlines():
            m = re.match(r"[0-9a-f]+ <([^>]+)>:", line)
            if m:
                function = m.group(1).split(".")[0]
                self.names.setdefault(function, [])
                continue
            if function is None:
                continue
            names = self.names[function]
            m = re.search(r"R_X86_64_\S+\s+([^\s+-]+)(?:([+-])0x([0-9a-f]+))?", line)
            if m and m.group(1).startswith("."):
                offset = int(m.group(3) or "0", 16) * (-1 if m.group(2) == "-" else 1) + 4
                names += self.table_at(m.group(1), offset)
                found = self.function_at(m.group(1), offset)
                names += [found.split(".")[0]] if found else []
            elif m:
                names.append(m.group(1))
            else:
                for name in re.findall(r"<([A-Za-z_]\w*)[^>]*>", line):
                    if name != function:
                        names.append(name)


def folders_of(layers):
    with open(layers, encoding="utf-8") as rows:
        return [row.split(":")[0] for row in rows if re.match(r"[a-z][^:]*:", row)]


def sources_of(top, folders):
    """Name: folder. Names are unique in the tree."""
    sources = {}
    for folder in folders:
        path = os.path.join(top, folder)
        for name in os.listdir(path) if os.path.isdir(path) else []:
            if name.endswith((".c", ".cpp")):
                sources[name] = folder
    return sources


def objects_of(build, sources):
    """Source name: Object. An object is called folder_folder_name.c.o."""
    objects = {}
    for folder, _, names in os.walk(build):
        if os.path.relpath(folder, build).split(os.sep)[0] in ("tests", "examples"):
            continue
        for name in names:
            source = name[:-2] if name.endswith(".o") else ""
            while source and source not in sources:
                source = source.partition("_")[2]
            if source and source not in objects:
                objects[source] = Object(os.path.join(folder, name))
    return objects


def walk(objects, start, sources, left_out):
    """[(file, function)] in the order of first visits, and {file: {other file: functions named}}."""
    home = {name: file for file, o in objects.items() for name in o.defines
            if sources[file] not in left_out}
    seen, way = set(), []
    arrows = {}
    stack = [(home[start], start)]
    while stack:
        file, name = stack.pop()
        if (file, name) in seen:
            continue
        seen.add((file, name))
        if name in objects[file].names:
            way.append((file, name))
            called = objects[file].names[name]
        else:
            called = objects[file].table(name)
        for other in reversed(called):
            if other in objects[file].names:
                stack.append((file, other))
            elif other in home:
                stack.append((home[other], other))
        for other in called:
            if other not in objects[file].names and home.get(other, file) != file:
                arrows.setdefault(file, {}).setdefault(home[other], set()).add(other)
    return way, arrows


def upward(arrows, start, rank):
    """The arrows that run upward: (file, file, functions named). rank: of a file's folder."""
    found, done, passed = [], set(), []
    work = [(start, iter(arrows.get(start, {})))]
    passed.append(start)
    while work:
        file, others = work[-1]
        for other in others:
            if other in passed or rank(other) > rank(file):
                found.append((file, other, arrows[file][other]))
            if other not in passed and other not in done:
                work.append((other, iter(arrows.get(other, {}))))
                passed.append(other)
                break
        else:
            done.add(work.pop()[0])
            passed.pop()
    return found


def main():
    build = os.path.realpath(sys.argv[1])
    here = os.path.dirname(os.path.realpath(__file__))
    top = os.path.realpath(sys.argv[2]) if len(sys.argv) > 2 else os.path.join(here, "../..")
    start = sys.argv[3] if len(sys.argv) > 3 else "moe_step"
    folders = folders_of(os.path.join(top, "tests/tidy/layers.txt"))
    sources = sources_of(top, folders)
    way, arrows = walk(objects_of(build, sources), start, sources, sys.argv[4:])
    stays, entered, climbs = 0, set(), 0
    last = None
    for file, name in way:
        if file == last:
            continue
        note = ""
        if file in entered:
            note = "climb: back"
        elif last and folders.index(sources[file]) > folders.index(sources[last]):
            note = "climb: up"
        climbs += note != ""
        stays += 1
        entered.add(file)
        last = file
        print(f"{stays:3}. {sources[file] + '/' + file:42} {name:36} {note}")
    n_folders = len({sources[file] for file in entered})
    print(f"{start}: {len(way)} functions, rooms {len(entered)} (in {n_folders} folders), "
          f"stays {stays}, climbs {climbs}")
    up = upward(arrows, way[0][0], lambda file: folders.index(sources[file]))
    for file, other, names in up:
        print(f"upward: {file} -> {other} ({', '.join(sorted(names))})")
    print(f"arrows {sum(map(len, arrows.values()))}, upward {len(up)}, "
          f"calls upward {sum(len(names) for _, _, names in up)}")


main()
