#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""option_runs.py COMMAND OPTION-RUNS MODEL [--verbose]

Runs every option of every command with a value of option_runs.c, and those of `run` and `plan` with
every value; with MOE_TEST_WHOLE all of them, with MOE_TEST_SIZE=small a value each, and of the commands that have an
option in common one. A run succeeds, or is refused in words; no signal ends it, it does not hang, and a sanitizer says nothing. Each option has a run
that succeeds, but for those of MAY_BE_REFUSED."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

from option_lines import (BASE, NOT_RUN, arguments, fail, failures, has_workers, judge, lister, prepare, run, small,
                          verbose, whole)

# Options that may be refused with every value.
MAY_BE_REFUSED = {"--plot"} if shutil.which("gnuplot") is None else set()
if not has_workers:
    MAY_BE_REFUSED |= {"--workers", "--worker-compute", "--worker-timeout", "--worker-key"}


def listed():
    """Choices of each command: pairs of the option and all that is given for it."""
    out = subprocess.run([lister, "messages"], capture_output=True, text=True)
    choices = {}
    for line in out.stdout.splitlines():
        words = line.split("\t")
        if words[0] == "choice" and words[1] in NOT_RUN:
            continue
        if words[0] == "choice":
            options = dict(zip(words[2::2], words[3::2]))
            choices.setdefault(words[1], []).append((words[2], options))
        else:
            fail([line], "option_runs")
    if out.returncode != 0 or len(choices) != len(BASE):
        fail(sorted(choices), f"option_runs: {out.returncode}")
    return choices


def tried_by(choices):
    """The commands that try each option: all of those that have it, or one of them."""
    having = {}
    for name, listing in choices.items():
        for option, _ in listing:
            having.setdefault(option, []).append(name)
    if small and not whole:
        for number, (option, names) in enumerate(having.items()):
            having[option] = [names[number % len(names)]]
    return having


def try_each(choices):
    n = 0
    having = tried_by(choices)
    for name, listing in choices.items():
        good = {}
        for option, options in listing:
            if name not in having[option] or \
                    good.get(option) and not whole and (small or name not in ("run", "plan")):
                continue
            begun = time.monotonic()
            given, done = run(name, options, option)
            n += 1
            good[option] = judge(name, given, done) or good.get(option, False)
            if verbose and time.monotonic() - begun > 1:
                print(f"# {time.monotonic() - begun:.1f} s: {' '.join(arguments(name, given))}")
            good[option] = good[option] or "Sanitizer" in done[2]
        for option, succeeded in good.items():
            if not succeeded and (name, option) not in MAY_BE_REFUSED and \
                    option not in MAY_BE_REFUSED:
                fail([name, option], "is refused with every value")
    print(f"{n} command lines, {len(failures)} failed")


with tempfile.TemporaryDirectory() as scratch:
    prepare(scratch)
    if not failures:
        try_each(listed())
    os.chdir("/")
sys.exit(1 if failures else 0)
