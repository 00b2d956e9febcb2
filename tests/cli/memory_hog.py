#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program that needs memory, beside a run without --host-memory in the same control group: the
program gets its memory, nobody is killed, tokens go on, and the text is the same.

usage: memory_hog.py COMMAND MODEL [--hog MIB] [--step MIB] [--tokens N] [--spare MIB]
Skipped (77) without a memory controller that this user may make groups in."""

import argparse
import json
import mmap
import os
import subprocess
import sys
import threading
import time

MIB = 1 << 20
SKIPPED = 77


def make_group():
    """Returns the group's folder and the names of its files, or None."""
    name = f"moe-hog-{os.getpid()}"
    v1 = "/sys/fs/cgroup/memory"
    v2 = "/sys/fs/cgroup"
    try:
        if os.path.isdir(v1):
            os.mkdir(f"{v1}/{name}")
            return f"{v1}/{name}", "memory.limit_in_bytes", "memory.usage_in_bytes"
        with open(f"{v2}/cgroup.subtree_control", encoding="ascii") as file:
            if "memory" in file.read().split():
                os.mkdir(f"{v2}/{name}")
                return f"{v2}/{name}", "memory.max", "memory.current"
    except OSError:
        pass
    return None


def enter(folder):
    with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
        file.write("0")


def hog(folder, n_bytes, step):
    """Takes memory step by step, in a process of its own; returns whether it got all."""
    child = os.fork()
    if child == 0:
        enter(folder)
        held = []
        for _ in range(n_bytes // step):
            piece = mmap.mmap(-1, step)
            piece.write(b"\x01" * step)
            held.append(piece)
            time.sleep(0.02)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run(arguments, folder=None, on_text=None):
    """Returns exit status, text, log lines with their times, and the times of pieces of text."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=(lambda: enter(folder)) if folder else None)
    lines = []

    def read_log():
        for line in process.stderr:
            lines.append((time.monotonic(), line.decode(errors="replace").strip()))

    reader = threading.Thread(target=read_log)
    reader.start()
    text = b""
    times = []
    while piece := os.read(process.stdout.fileno(), 4096):
        text += piece
        times.append(time.monotonic())
        if on_text:
            on_text(text)
    reader.join()
    return process.wait(), text, lines, times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--hog", type=int, default=68, help="MiB that the other program takes")
    parser.add_argument("--step", type=int, default=1, help="MiB that it takes every 20 ms")
    parser.add_argument("--spare", type=int, default=16, help="MiB of the limit beyond all needs")
    parser.add_argument("--tokens", type=int, default=2000)
    o = parser.parse_args()
    made = make_group()
    if made is None:
        print("no control group can be made here: skipped")
        return SKIPPED
    folder, limit_file, usage_file = made
    try:
        options = ["-m", o.model, "-c", "2048", "-b", "64", "-t", "1"]
        write = ["run", *options, "-p", "Once upon a time", "-n", str(o.tokens), "--temp", "0",
                 "--ignore-eos"]
        plan = json.loads(subprocess.check_output([o.command, "plan", *options, "--json"]))
        needs = plan["memory"]["total_bytes"] if "memory" in plan else plan["total_bytes"]
        # An eighth of what is available stays free, so the limit leaves an eighth more.
        limit = (needs + o.spare * MIB) // MIB * 8 // 7 * MIB
        with open(f"{folder}/{limit_file}", "w", encoding="ascii") as file:
            file.write(str(limit))
        status, alone, _, _ = run([o.command, *write])
        assert status == 0, status

        outcome = {}
        began = threading.Event()

        def take():
            began.wait()
            outcome["began"] = time.monotonic()
            outcome["got"] = hog(folder, o.hog * MIB, o.step * MIB)
            outcome["ended"] = time.monotonic()

        taker = threading.Thread(target=take)
        taker.start()
        status, beside, lines, times = run([o.command, *write], folder,
                                           lambda text: len(text) > 20 and began.set())
        began.set()
        taker.join()
        told = [t for t, line in lines if "other programs need memory" in line]
        for moment, line in lines:
            print(f"{moment - outcome['began']:8.2f} s {line}")
        during = sum(outcome["began"] <= t <= outcome["ended"] for t in times)
        print(f"limit {limit // MIB} MiB, needs {needs // MIB} MiB; the other program took "
              f"{o.hog} MiB in {outcome['ended'] - outcome['began']:.2f} s: {outcome['got']}; "
              f"{during} pieces of text meanwhile; exit {status}")
        assert outcome["got"], "the other program was killed"
        assert status == 0, "the run failed, or was killed"
        assert beside == alone, "the text differs"
        assert told, "no slots were given back"
        assert during > 0, "no text was written meanwhile"
    finally:
        os.rmdir(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
