#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""policy_rows.py COMMAND [--trace NAME=FILE]... [--synthetic LIST] [--seeds N] [--sizes LIST]

A row for every built-in cache policy: hit rates on recorded traces, and on generated ones as the median of several seeds
with the lowest and the highest (`moe-offload analyze --help` has the presets; `kimi` and `flame` have the geometry of
those models, and coefficients of another one). Every run starts with an empty cache, one pool for all layers. Reads no
clock. Policies that need a calibration have one on the first fifth of the trace, which then does not count, in a table
of their own. `random` and `lecar` draw from the seed, so recorded traces have several rows for them, too."""
import argparse
import json
import statistics
import subprocess

CALIBRATED = "hot-global"


def simulate(command, source, sizes, seed, more=()):
    """Hit rates in percent by policy and size, and the trace's words."""
    done = subprocess.run([command, "simulate", *source, "--expert-cache", sizes, "-s", str(seed), "--json", *more],
                          check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    rates = {}
    for row in told["results"]:
        rates.setdefault(row["policy"], []).append(100 * row["hit_rate"])
    words = f"{told['n_tokens']} tokens, {told['n_layer']} layers, {told['n_expert_used']} of {told['n_expert']} experts"
    return rates, words


def cell(values):
    """The median, and how far the others are from it."""
    if max(values) - min(values) < 0.05:
        return f"{values[0]:.1f}"
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table(command, title, sources, options):
    """sources: (arguments, seed) of each run."""
    runs = [simulate(command, source, options.sizes, seed) for source, seed in sources]
    calibrated = [simulate(command, source, options.sizes, seed,
                           ["--calibrate", "20", "--policy", f"{CALIBRATED},lfru,belady"]) for source, seed in sources]
    print(f"\n{title}: {runs[0][1]}" + (f", {len(runs)} seeds" if len(runs) > 1 else ""))
    print("\n| policy | " + " | ".join(size.rstrip("%") for size in options.sizes.split(",")) + " |")
    print("|---" * (1 + len(options.sizes.split(","))) + "|")
    for name, results in [*((p, runs) for p in runs[0][0]), *((p, calibrated) for p in calibrated[0][0])]:
        label = f"`{name}`" + (", calibrated" if results is calibrated else "")
        columns = zip(*(rates[name] for rates, _ in results))
        print(f"| {label} | " + " | ".join(cell(column) for column in columns) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--trace", action="append", default=[], help="NAME=FILE of a recorded trace")
    parser.add_argument("--synthetic", default="olmoe,kimi,flame")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=150, help="of each of four prompts of a generated trace (default 150)")
    parser.add_argument("--sizes", default="5%,10%,25%,50%")
    options = parser.parse_args()
    for given in options.trace:
        name, _, path = given.partition("=")
        table(options.command, name, [(["--trace", path], seed) for seed in range(options.seeds)], options)
    for preset in filter(None, options.synthetic.split(",")):
        source = ["--synthetic", preset, "-n", str(options.tokens), "--prompts", "4"]
        table(options.command, f"generated, {preset}", [(source, seed) for seed in range(options.seeds)], options)


main()
