#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the structure of the library and of the command, and fails where it is not one.

    tests/tidy/structure.py BUILD [LAYERS [SOURCE]]

A room is a source file with the header of its name, or a header alone. An arrow leads from one room
to another when a file of the first includes one of the second, or when its object file in BUILD
names what the second's defines. The first kind shows ties by types, macros and inline functions, the
second those by functions and data, whichever header declares them.

It fails on
    up        an arrow from one folder to another that the row of the first in LAYERS
              (SOURCE/tests/tidy/layers.txt) does not list. The command may besides use whatever a
              public header declares.
    circle    a set of rooms each of which leads to all others by arrows
    circle of folders
              the same for the folders at the top: one that stands inside another of LAYERS counts
              as a part of it

What is not compiled has no arrows of the second kind: the CUDA module, where it is not built.
way_of_row.py tells the way of one row through the rooms.
"""
import os
import re
import shutil
import subprocess
import sys

SOURCES = (".c", ".cpp", ".cu")
HEADERS = (".h", ".cuh")
COMMAND = ("runtime/cli", "runtime/far", "runtime/hub", "runtime/server", "bench", "examples")
DEFINED = set("TDBRVW")


class Tree:
    """The folders of the table and the files in them."""

    def __init__(self, top, layers):
        self.top = top
        self.allowed = {}  # folder: folders; in the order of the table
        with open(layers, encoding="utf-8") as rows:
            for row in rows:
                if re.match(r"[a-z][^:]*:", row):
                    folder, _, names = row.partition(":")
                    self.allowed[folder] = names.split()
        self.files = {}  # path: room
        for folder in self.allowed:
            self.add_folder(folder)
        self.by_name = {}
        for path in self.files:
            self.by_name.setdefault(os.path.basename(path), []).append(path)

    def add_folder(self, folder):
        """A folder's own files; those of runtime/include stand one folder deeper."""
        for at, inner, names in os.walk(os.path.join(self.top, folder)):
            path = os.path.relpath(at, self.top)
            inner[:] = [] if path != "runtime/include" else inner
            sources = {os.path.splitext(n)[0]: n for n in names if n.endswith(SOURCES)}
            for name in names:
                stem, ending = os.path.splitext(name)
                if ending in SOURCES + HEADERS:
                    self.files[f"{path}/{name}"] = f"{path}/{sources.get(stem, name)}"

    def folder(self, room):
        path = os.path.dirname(room)
        return "runtime/include" if path.startswith("runtime/include") else path

    def house(self, folder):
        """The outermost folder of the table in which this one stands."""
        outer = [f for f in self.allowed if folder == f or folder.startswith(f + "/")]
        return min(outer, key=len)

    def included(self, path, name, quoted):
        """The file of the tree that an include means, or None."""
        near = f"{os.path.dirname(path)}/{name}"
        for candidate in [near, name] if quoted else [f"runtime/include/{name}"]:
            if candidate in self.files:
                return candidate
        found = self.by_name.get(name, []) if quoted else []
        return found[0] if len(found) == 1 else None


def include_arrows(tree):
    """Yields (room, room, the header's name)."""
    for path, room in tree.files.items():
        with open(os.path.join(tree.top, path), encoding="utf-8") as text:
            for line in text:
                m = re.match(r'\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', line)
                if m:
                    target = tree.included(path, m.group(1) or m.group(2), bool(m.group(1)))
                    if target is not None and tree.files[target] != room:
                        yield room, tree.files[target], os.path.basename(target)


def room_of_object(tree, name):
    """An object is called folder_folder_name.c.o; its source is the longest end of that which is
    the name of one."""
    while name:
        if name in tree.by_name:
            return tree.files[tree.by_name[name][0]]
        name = name.partition("_")[2]
    return None


def symbol_arrows(tree, build):
    """Yields (room, room, symbol)."""
    objects = []
    for at, inner, names in os.walk(build):
        if at == build:
            inner[:] = [n for n in inner if n not in ("tests", "examples")]
        objects += [os.path.join(at, n) for n in names if n.endswith(".o")]
    if not objects:
        sys.exit(f"there are no object files in {build}")
    defined, taken = {}, set()
    told = subprocess.run(["nm", "-A", *objects], capture_output=True, text=True, check=False)
    for line in told.stdout.splitlines():
        path, _, rest = line.partition(":")
        words = rest.split()
        room = room_of_object(tree, os.path.basename(path)[:-2])
        if room is None or len(words) < 2:
            continue
        if words[-2] in DEFINED:
            defined.setdefault(words[-1], set()).add(room)
        elif words[-2] == "U":
            taken.add((words[-1], room))
    found = {room for rooms in defined.values() for room in rooms}
    sources = {room for room in tree.files.values() if room.endswith(".c")}
    if len(found & sources) < len(sources) / 2:
        sys.exit(f"only {len(found & sources)} of {len(sources)} sources have an object in {build}")
    for symbol, room in sorted(taken):
        for target in defined.get(symbol, ()):
            if target != room:
                yield room, target, symbol


def circles_of(arrows):
    """The strongly connected sets of more than one, by Tarjan's algorithm without recursion."""
    graph = {}
    for start, end in arrows:
        graph.setdefault(start, []).append(end)
        graph.setdefault(end, [])
    number, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in sorted(graph):
        work = [(root, iter(graph[root]))] if root not in number else []
        while work:
            node, ends = work[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                stack.append(node)
                on_stack.add(node)
            for end in ends:
                if end not in number:
                    work.append((end, iter(graph[end])))
                    break
                if end in on_stack:
                    low[node] = min(low[node], number[end])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    on_stack -= set(stack[at:])
                    del stack[at:]
    return found


def tell_circles(arrows, what):
    circles = circles_of(arrows)
    for circle in circles:
        print(f"{what} of {len(circle)}:")
        for (start, end), names in sorted(arrows.items()):
            if start in circle and end in circle:
                more = f" and {len(names) - 4} more" if len(names) > 4 else ""
                print(f"    {start} -> {end} ({', '.join(sorted(names)[:4])}{more})")
    return len(circles)


def public_names(tree):
    names = set()
    for path in tree.files:
        if path.startswith("runtime/include/"):
            with open(os.path.join(tree.top, path), encoding="utf-8") as text:
                names |= set(re.findall(r"\b(moe_\w+) *\(", text.read()))
    return names


def tell_up(tree, arrows, public):
    n_up = 0
    for (start, end), names in sorted(arrows.items()):
        first, second = tree.folder(start), tree.folder(end)
        if first == second or second in tree.allowed[first] or second == "runtime/include":
            continue
        if first.startswith(COMMAND):
            names = names - public
        if names:
            print(f"up: {start} -> {end} ({', '.join(sorted(names)[:4])})")
            n_up += 1
    return n_up


def tell_folders(tree, arrows):
    files, inside, out, into = {}, {}, {}, {}
    for room in set(tree.files.values()):
        files[tree.folder(room)] = files.get(tree.folder(room), 0) + 1
    for start, end in arrows:
        first, second = tree.folder(start), tree.folder(end)
        if first == second:
            inside[first] = inside.get(first, 0) + 1
        else:
            out[first] = out.get(first, 0) + 1
            into[second] = into.get(second, 0) + 1
    print(f"{'folder':22} {'rooms':>5}  {'inside':>6} {'out':>6} {'in':>6}")
    for folder in reversed(tree.allowed):
        if folder in files:
            print(f"{folder:22} {files[folder]:5}  {inside.get(folder, 0):6} "
                  f"{out.get(folder, 0):6} {into.get(folder, 0):6}")
    return sum(files.values()), sum(out.values())


def main():
    if shutil.which("nm") is None:
        sys.exit(77)
    here = os.path.dirname(os.path.realpath(__file__))
    build = os.path.realpath(sys.argv[1])
    top = os.path.realpath(sys.argv[3]) if len(sys.argv) > 3 else os.path.join(here, "../..")
    layers = sys.argv[2] if len(sys.argv) > 2 else os.path.join(top, "tests/tidy/layers.txt")
    tree = Tree(top, layers)
    arrows = {}
    for start, end, name in [*include_arrows(tree), *symbol_arrows(tree, build)]:
        arrows.setdefault((start, end), set()).add(name)
    public = public_names(tree)
    houses = {}
    for (start, end), names in arrows.items():
        first, second = tree.house(tree.folder(start)), tree.house(tree.folder(end))
        names = names - public if first.startswith(COMMAND) else names
        if first != second and second != "runtime/include" and names:
            houses.setdefault((first, second), set()).update(names)
    n_rooms, n_between = tell_folders(tree, arrows)
    n_up = tell_up(tree, arrows, public)
    n_circles = tell_circles(arrows, "circle")
    n_circles += tell_circles(houses, "circle of folders")
    print(f"{n_rooms} rooms, {len(arrows)} arrows, {n_between} of them between folders, {n_up} up, "
          f"{n_circles} circles")
    sys.exit(n_up + n_circles > 0)


main()
