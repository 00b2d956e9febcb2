#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A file on a slow drive, and a part of it on a fast one (--disk-cache FOLDER:SIZE): how many bytes come from the
slow drive while a text is written, by the size of the part. Counts bytes, which do not depend on the machine's speed.

    partial_copy.py COMMAND MODEL [--ram 25%] [--shares 30,50,70,90,100] [--tokens 200]

For each size a first run fills the part with the experts that it uses; then a second one, with another prompt, is
counted. Both keep so many of the experts in memory as --ram says."""
import argparse
import os
import re
import subprocess
import sys
import tempfile

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def run(o, source, prompt, folder):
    """Bytes that came from the slow drive, and the text."""
    done = subprocess.run([o.command, "run", *source, "-p", prompt, "-n", str(o.tokens), "--temp", "0.8", "-s", "1",
                           "--ignore-eos", "-c", "1024", "--expert-cache", o.ram, "--speculate", "off", "--prefetch", "off",
                           "--warm-start", "off"], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        sys.exit(done.stderr)
    came = re.search(r"([\d.]+) (\w+) came from ", done.stderr)
    return float(came[1]) * UNITS[came[2]] if came else 0.0, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", type=os.path.abspath)
    parser.add_argument("model", type=os.path.abspath)
    parser.add_argument("--ram", default="25%")
    parser.add_argument("--shares", default=[30, 50, 70, 90, 100], type=lambda text: [int(s) for s in text.split(",")])
    parser.add_argument("--tokens", type=int, default=200)
    o = parser.parse_args()
    size, texts = os.path.getsize(o.model), set()
    print(f"{size / 1e6:.0f} MB, {o.ram} of the experts in memory, {o.tokens} tokens")
    print("| part on the fast drive, % | first run, MB from the slow drive | second run | KB a token |")
    print("|---|---|---|---|")
    for share in o.shares:
        with tempfile.TemporaryDirectory() as folder:
            source = ("-m", o.model, "--disk-cache", f"part:{size * share // 100 if share < 100 else size}")
            first, _ = run(o, source, "Once upon a time", folder)
            second, text = run(o, source, "Tom has 5 pens. He buys 7 more.", folder)
            texts.add(text)
            print(f"| {share} | {first / 1e6:.1f} | {second / 1e6:.1f} | {second / 1e3 / o.tokens:.0f} |", flush=True)
    if len(texts) != 1:
        sys.exit("the texts differ")


if __name__ == "__main__":
    main()
