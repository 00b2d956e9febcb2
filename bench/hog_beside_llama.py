#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program that needs memory (the hog) beside a run, in one control group: moe-offload without
--host-memory, whose cache gives slots back, beside llama.cpp, whose page cache the kernel takes. For
each: how long the hog waited for its memory, and how fast text was written before and after.

usage: hog_beside_llama.py COMMAND LLAMA-COMPLETION MODEL [--limit MIB] [--hog MIB] [--tokens N] [--pairs N]
Needs a memory controller that this user may make groups in. Runs take turns; medians are printed. The
model's pages are dropped from the page cache before each run: pages that an earlier group has read would
cost the next one nothing."""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cli"))
from memory_hog import MIB, Hog, enter, make_group  # noqa: E402

from beside_llama import drop_pages  # noqa: E402


def read_counter(folder, files, name):
    """A counter of the group: of v1's memory.stat and memory.failcnt, or of v2's."""
    for file in files:
        try:
            with open(f"{folder}/{file}", encoding="ascii") as lines:
                for line in lines:
                    if line.startswith(name + " "):
                        return int(line.split()[1])
        except OSError:
            pass
    return 0


def run(arguments, o):
    """One run with the hog in a new group. Returns a dictionary of figures."""
    drop_pages(o.model)
    folder, limit_file, _ = make_group()
    try:
        with open(f"{folder}/{limit_file}", "w", encoding="ascii") as file:
            file.write(str(o.limit * MIB))
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   stdin=subprocess.DEVNULL, preexec_fn=lambda: enter(folder))
        step = 32
        hog = Hog(folder, o.hog // step, step * MIB)
        times, waits = [], []  # when text came, with how many bytes it then had; the hog's steps
        size, held = 0, time.monotonic()
        while piece := os.read(process.stdout.fileno(), 4096):
            size += len(piece)
            times.append((time.monotonic(), size))
            if size > o.first and hog.n_taken < hog.n_steps:
                before, began = hog.n_taken, time.monotonic()
                hog.take()
                waits.append(time.monotonic() - began - 0.02)
                if hog.n_taken == before:
                    break  # it was killed
                held = time.monotonic()
        status = process.wait()
        faults = read_counter(folder, ["memory.stat"], "pgmajfault")
        got = hog.end() == 0
        if got and hog.n_taken < hog.n_steps:
            sys.exit(f"{arguments[0]}: the text ended before the other program had its memory: give more --tokens")
        after = [t for t in times if t[0] > held]
        before = [t for t in times if o.first // 4 < t[1] <= o.first]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)

        def speed(part):
            return (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0]) if len(part) > 2 else float("nan")

        return {"got its memory": got, "exit": status, "hog's longest wait, ms": 1000 * max(waits, default=0),
                "hog's waits in all, ms": 1000 * sum(waits), "bytes of text/s before": speed(before),
                "bytes of text/s after": speed(after), "major faults": faults,
                "CPU s": used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime}
    finally:
        os.rmdir(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("llama")
    parser.add_argument("model")
    parser.add_argument("--limit", type=int, default=1700, help="MiB of the group")
    parser.add_argument("--hog", type=int, default=960, help="MiB that the other program takes")
    parser.add_argument("--first", type=int, default=300, help="bytes of text before the hog begins")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=3)
    o = parser.parse_args()
    both = ["-m", o.model, "-c", "1024", "-t", "2", "-p", "Once upon a time", "-n", str(o.tokens), "--temp", "0",
            "--ignore-eos"]
    engines = {"moe-offload": [o.command, "run", *both, "--quiet", "--speculate", "off"],
               "llama.cpp": [o.llama, *both, "-no-cnv", "--no-warmup"]}
    figures = {name: [] for name in engines}
    for _ in range(o.pairs):
        for name, arguments in engines.items():
            figures[name].append(run(arguments, o))
            print(name, figures[name][-1], file=sys.stderr, flush=True)
    print(f"group {o.limit} MiB, file {os.path.getsize(o.model) // MIB} MiB, hog {o.hog} MiB, {o.pairs} pairs")
    for key in figures["moe-offload"][0]:
        row = [[f[key] for f in figures[name]] for name in engines]
        shown = [str(all(v)) if isinstance(v[0], bool) else f"{statistics.median(v):.0f}" for v in row]
        print(f"{key:26}", *(f"{name}: {value:8}" for name, value in zip(engines, shown)))


if __name__ == "__main__":
    main()
