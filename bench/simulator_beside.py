#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""simulator_beside.py COMMAND [--passes N] [--repeat N]

Cache policies on one trace of routing, simulated by `moe-offload simulate` and by libCacheSim (Python package
libcachesim; 0.3.5 was used), access by access, with the same numbers of slots. Both must count the same misses
for all policies but s3-fifo, where libCacheSim fills an empty cache in another way, lirs, where it also limits how
many keys that have left are remembered, and lecar, which draws. (The package's LRUK counts the misses of SIEVE, so lru-k is not compared.) Prints these, the accesses that
each simulates in a second of processor time, the median of the runs in turn, and the memory for an access.
moe-offload reads the trace once for all policies and sizes, and computes Belady's bound besides;
libCacheSim's Python package reads it once for each."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import libcachesim

LAYERS, EXPERTS = 16, 64  # of the preset olmoe
SHARES = (0.1, 0.25, 0.5)
POLICIES = {"lru": libcachesim.LRU, "sieve": libcachesim.Sieve, "2q": libcachesim.TwoQ,
            "arc": libcachesim.ARC, "lirs": libcachesim.LIRS, "gdsf": libcachesim.GDSF,
            "s3-fifo": libcachesim.S3FIFO, "lecar": libcachesim.LeCaR, "belady": libcachesim.Belady}
MAY_DIFFER = {"s3-fifo", "lirs", "lecar"}
SIZES = [round(share * LAYERS * EXPERTS) for share in SHARES]


def ours(command, trace):
    """Misses by policy and size, accesses, processor seconds, peak bytes."""
    process = subprocess.Popen(
        [command, "simulate", "--trace", trace, "--layers", str(LAYERS), "--experts", str(EXPERTS), "--policy",
         ",".join(POLICIES), "--expert-cache", ",".join(map(str, SIZES)), "--order", "sequential", "--json"],
        stdout=subprocess.PIPE, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{command} simulate: status {process.returncode}")
    rows = json.loads(out)["results"]
    misses = {(row["policy"], row["slots"]): row["misses"] for row in rows}
    return misses, rows[0]["hits"] + rows[0]["misses"], usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def theirs(trace, n):
    begun = time.process_time()
    misses = {}
    for name, policy in POLICIES.items():
        for slots in SIZES:
            reader = libcachesim.TraceReader(trace, libcachesim.TraceType.ORACLE_GENERAL_TRACE,
                                             libcachesim.ReaderInitParam(ignore_obj_size=True))
            ratio, _ = policy(cache_size=slots).process_trace(reader)
            misses[name, slots] = round(ratio * n)
    return misses, time.process_time() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--passes", type=int, default=8000, help="128 accesses each (default 8000)")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    mine, other, differs = [], [], False
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "routing.oracleGeneral")
        subprocess.run([options.command, "analyze", "--synthetic", "olmoe", "-n", str(options.passes), "--export",
                        trace], check=True, stdout=subprocess.DEVNULL)
        for _ in range(options.repeat):
            a, n, seconds, peak = ours(options.command, trace)
            mine.append(seconds)
            b, seconds = theirs(trace, n)
            other.append(seconds)
    print(f"{n} accesses; misses of moe-offload, libCacheSim")
    for (name, slots), misses in a.items():
        same = misses == b[name, slots]
        differs = differs or (not same and name not in MAY_DIFFER)
        print(f"{name:10}{slots:6} slots {misses:12} {b[name, slots]:12}{'' if same else '   differs'}")
    n_all = n * len(POLICIES) * len(SIZES)
    print(f"moe-offload {n_all / statistics.median(mine) / 1e6:.1f}, libCacheSim "
          f"{n_all / statistics.median(other) / 1e6:.1f} million accesses a second of processor time: "
          f"{statistics.median(other) / statistics.median(mine):.2f} times; "
          f"moe-offload's peak is {peak / n:.0f} bytes an access")
    sys.exit(1 if differs else 0)


main()
