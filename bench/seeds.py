#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""seeds.py N [--columns LIST] [--first SEED] -- COMMAND bench ... | COMMAND simulate ...

Runs a command that draws tokens or traces once for each of N seeds (`-s`), and prints its table with the median of every
column and the lowest and highest of it. Rows belong together that agree in all columns of text, and in those of
numbers that are settings (cache_percent, batch, slots, ...). --columns: which figures (default: all that differ).

    python3 bench/seeds.py 5 --columns gain,modelled_mib_per_token -- build/moe-offload bench speculate -m MODEL -f TEXT \\
        --cost bytes -n 64 --temp 1"""
import argparse
import json
import statistics
import subprocess
import sys

SETTINGS = {"cache_percent", "batch", "slots", "cache_share", "threads", "repeat", "layer", "step"}


def rows_of(arguments, seed):
    done = subprocess.run([*arguments, "-s", str(seed), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"seed {seed}: status {done.returncode}: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    rows = next((value for value in told.values() if isinstance(value, list) and value and isinstance(value[0], dict)), None)
    if rows is None:
        sys.exit("the command's JSON has no list of rows")
    return rows


def key_of(row):
    return tuple((name, value) for name, value in row.items() if isinstance(value, (str, bool)) or name in SETTINGS)


def is_figure(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(value):
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def cell(values):
    values = [value for value in values if is_figure(value)]
    if not values:
        return "-"
    if min(values) == max(values):
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def main():
    before, _, command = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int)
    parser.add_argument("--columns")
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(before.split())
    if options.seeds < 2 or not command:
        parser.error("give at least 2 seeds, and a command behind --")
    arguments = sys.argv[sys.argv.index("--") + 1:]
    runs = [rows_of(arguments, options.first + i) for i in range(options.seeds)]
    if any([key_of(row) for row in run] != [key_of(row) for row in runs[0]] for run in runs):
        sys.exit("the rows of two seeds differ in their settings")
    figures = [name for name in runs[0][0] if any(is_figure(row[name]) for row in runs[0]) and name not in SETTINGS]
    if options.columns:
        figures = options.columns.split(",")
        missing = [name for name in figures if name not in runs[0][0]]
        if missing:
            sys.exit(f"no column {', '.join(missing)}; there are {', '.join(runs[0][0])}")
    else:
        figures = [name for name in figures if any(run[i][name] != runs[0][i][name] for run in runs
                                                   for i in range(len(run)))]
    settings = [name for name, _ in key_of(runs[0][0]) if len({row[name] for row in runs[0]}) > 1] or ["-"]
    print(f"{options.seeds} seeds, {options.first} to {options.first + options.seeds - 1}: median (lowest to highest)\n")
    print("| " + " | ".join(settings + figures) + " |\n" + "|---" * (len(settings) + len(figures)) + "|")
    for i, row in enumerate(runs[0]):
        cells = [str(row.get(name, "all")) for name in settings]
        print("| " + " | ".join(cells + [cell([run[i][name] for run in runs]) for name in figures]) + " |")


main()
