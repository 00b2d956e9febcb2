#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program that needs memory, beside a run without --host-memory in the same control group: the
program gets its memory, nobody is killed, tokens go on, and the text is the same. The two go in turns,
a piece of memory and a piece of text, so that neither is done before the other on any machine. A second
run has no other program; in its place the group's limit is lowered by the same pieces, and is kept.

usage: memory_hog.py COMMAND MODEL [--hog MIB] [--step MIB] [--tokens N] [--spare MIB]
Skipped (77) without a memory controller that this user may make groups in."""

import argparse
import fcntl
import json
import mmap
import os
import subprocess
import sys
import threading
import time

MIB = 1 << 20
SKIPPED = 77
PIPE = 4096  # bytes of text that may be written and not yet read: the least that a pipe can hold


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


class Hog:
    """A process in the group that takes memory a step at a time, when told, and holds it."""

    def __init__(self, folder, n_steps, step):
        self.told, tell = os.pipe()
        answer, self.answered = os.pipe()
        self.n_steps = n_steps
        self.n_taken = 0
        self.tell = tell
        self.answer = answer
        self.status = None
        self.child = os.fork()
        if self.child == 0:
            os.close(tell)
            enter(folder)
            held = []
            while os.read(self.told, 1):
                piece = mmap.mmap(-1, step)
                piece.write(b"\x01" * step)
                held.append(piece)
                os.write(self.answered, b"1")
            os._exit(0)
        os.close(self.told)
        os.close(self.answered)

    def take(self):
        """Takes one step more, unless it has all, or was killed."""
        try:
            os.write(self.tell, b"1")
        except BrokenPipeError:
            return
        self.n_taken += len(os.read(self.answer, 1))
        time.sleep(0.02)

    def end(self):
        """Gives the memory back; returns the exit status, and the same if called again."""
        if self.status is None:
            os.close(self.tell)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        return self.status


def run(arguments, folder=None, on_text=None):
    """Returns exit status, text, and log lines with their times. on_text(text) is called with the text
    so far before more of it is read."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=(lambda: enter(folder)) if folder else None)
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE)
    lines = []

    def read_log():
        for line in process.stderr:
            lines.append((time.monotonic(), line.decode(errors="replace").strip()))

    reader = threading.Thread(target=read_log)
    reader.start()
    text = b""
    while piece := os.read(process.stdout.fileno(), 64):
        text += piece
        if on_text:
            on_text(text)
    reader.join()
    return process.wait(), text, lines


class Limit:
    """Lowers the group's limit by a step in place of taking memory, and raises it again at the end."""

    def __init__(self, path, n_steps, step):
        self.path, self.n_steps, self.step, self.n_taken, self.status = path, n_steps, step, 0, None
        with open(path, encoding="ascii") as file:
            self.first = int(file.read())

    def write(self, limit):
        try:
            with open(self.path, "w", encoding="ascii") as file:
                file.write(str(limit))
            return True
        except OSError:
            return False  # v1: the group holds more; the run gives it back while it writes more text

    def take(self):
        wanted = self.first - (self.n_taken + 1) * self.step
        if self.write(wanted):
            with open(self.path, encoding="ascii") as file:
                assert int(file.read()) == wanted
            self.n_taken += 1
        time.sleep(0.02)

    def end(self):
        self.status = 0 if self.status == 0 or self.write(self.first) else 1
        return self.status


def told(lines):
    return any("other programs need memory" in line for _, line in lines)


def beside(o, write, alone, folder, other, what):
    """A run in turns with the hog, or with a falling limit."""
    # Between two steps so much text is read that the last step comes before the last of it is
    # written: what stands in the pipe is written and not yet read.
    first = 20
    share = (len(alone) - first - PIPE - 256) // (o.hog // o.step)
    assert share > 0, f"{len(alone)} bytes of text are too few for {o.hog} MiB"
    began = time.monotonic()
    times = []

    def take_turns(text):
        while other.n_taken < min(other.n_steps, (len(text) - first) // share):
            before = other.n_taken
            other.take()
            if other.n_taken == before:
                return  # it was killed, or the limit is not lowered before there is more text
            times.append(time.monotonic())
        if other.n_taken == other.n_steps:
            other.end()

    status, text, lines = run([o.command, *write], folder, take_turns)
    got = other.n_taken == other.n_steps
    for moment, line in lines:
        print(f"{moment - began:8.2f} s {line}")
    print(f"{what} {other.n_taken * o.step} of {o.hog} MiB in {times[-1] - times[0]:.2f} s, in turns with "
          f"{share * other.n_steps} of {len(alone)} bytes of text; exit {status}")
    assert got and other.end() == 0, "the other program was killed, or the limit was not kept"
    assert status == 0, "the run failed, or was killed"
    assert text == alone, "the text differs"
    assert told(lines), "no slots were given back"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--hog", type=int, default=48, help="MiB that the other program takes")
    parser.add_argument("--step", type=int, default=2, help="MiB that it takes at a time")
    parser.add_argument("--spare", type=int, default=16, help="MiB of the limit beyond all needs")
    parser.add_argument("--tokens", type=int, default=3000)
    o = parser.parse_args()
    made = make_group()
    if made is None:
        print("no control group can be made here: skipped")
        return SKIPPED
    folder, limit_file, _ = made
    try:
        options = ["-m", o.model, "-c", "4096", "-b", "64", "-t", "1"]
        write = ["run", *options, "-p", "Once upon a time", "-n", str(o.tokens), "--temp", "0",
                 "--ignore-eos"]
        plan = json.loads(subprocess.check_output([o.command, "plan", *options, "--json"]))
        needs = plan["memory"]["total_bytes"] if "memory" in plan else plan["total_bytes"]
        # An eighth of what is available stays free, so the limit leaves an eighth more.
        limit = (needs + o.spare * MIB) // MIB * 8 // 7 * MIB
        with open(f"{folder}/{limit_file}", "w", encoding="ascii") as file:
            file.write(str(limit))
        status, alone, _ = run([o.command, *write])
        assert status == 0, status

        what = f"limit {limit // MIB} MiB, needs {needs // MIB} MiB"
        beside(o, write, alone, folder, Hog(folder, o.hog // o.step, o.step * MIB), f"{what}; the other program took")
        beside(o, write, alone, folder, Limit(f"{folder}/{limit_file}", o.hog // o.step, o.step * MIB),
               f"{what}; the limit was lowered by")
    finally:
        os.rmdir(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
