#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""option_triples.py COMMAND OPTION-TRIPLES MODEL [--verbose] [--seed N] [--from N] [--lines N]

Runs `run` with every three of its options together, each with up to two values and without it: the
lines of option_triples.c, a covering array of strength 3. By day it runs so many of them (LINES), with
MOE_TEST_WHOLE all. Failures are: an end by a signal, a hang, a
sanitizer's report; a refusal that is not one of REFUSED; a text that another one than the options of
TEXT has changed; and an option that was accepted and has no effect (EFFECTS)."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from option_lines import arguments, execute, fail, failures, judge, lister, prepare, verbose, whole

LINES = 12

# What may change the text. The same line without all others is the plain run.
TEXT = {"-p", "-f", "--raw", "--chat", "-cnv", "-st", "--system", "--chat-template",
        "--chat-template-kwargs", "--think", "--continue", "--history", "-n", "-c", "-s", "--temp",
        "--top-k", "--top-p", "--min-p", "--repeat-penalty", "--presence-penalty",
        "--frequency-penalty", "--logit-bias", "--grammar", "--json-schema", "--ignore-eos", "--kv",
        "--float-gemm", "--override-kv"}
LOSSY = ("--expert-budget", "--buddy", "--low-bit")

# What the engine refuses though the parser does not, because it depends on the model, the device or the
# sidecar: an option and its value ("*": any) that excludes or needs another one. The refusal names both.
REFUSED = (
    ("--device-memory", "*", "needs", "--device", "sim:memory=300M,link=16GB/s", "no memory of its own"),
    ("--host-compute", "on", "needs", "--device", "sim:memory=300M,link=16GB/s", "in host memory anyway"),
    ("--low-bit", "on", "needs", "--expert-cache", "50%", "all experts fit in memory"),
    ("--low-bit", "on", "excludes", "--device", "sim:memory=300M,link=16GB/s", "by the CPU alone"),
    ("--lookahead", "*", "excludes", "--policy", "*", "looks at the past alone"),
    ("--think", "on", "needs", "--chat-template", "./template.jinja", "has no switch"),
    ("--draft-pin", "hot-global", "excludes", "--calibration", "none", "needs a calibration"),
    ("--expert-budget-mode", "static,truncate", "excludes", "--calibration", "none",
     "needs a calibration"),
    ("--override-kv", "*", "excludes", "--calibration", "cal.gguf", "make it another model"),
    ("--override-kv", "*", "excludes", "--warm-start", "on", "make it another one"),
    ("--override-kv", "*", "excludes", "--buddy", "on", "make it another one"),
    ("--override-kv", "*", "excludes", "--affinity", "output", "make it another one"),
    ("--override-kv", "*", "excludes", "--draft-pin", "hot-global", "make it another one"),
    ("--override-kv", "*", "excludes", "--expert-budget-mode", "static,truncate", "make it another one"),
)
# Values in place of "*", and what else the option needs.
VALUE_OF = {"--device-memory": "100M", "--lookahead": "1", "--policy": "lru",
            "--override-kv": "general.name=str:other"}
ALSO = {"--affinity": {"--speculate": "self", "--expert-cache": "50%"},
        "--draft-pin": {"--speculate": "self", "--draft-experts": "8", "--expert-cache": "50%"},
        "--expert-budget-mode": {"--expert-budget": "8"}, "--buddy": {"--expert-cache": "50%"}}


def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def is_lossy(given):
    return any(given.get(name, "off") != "off" for name in LOSSY)


def with_base(given):
    """With what every line has, unless it has its own."""
    base = {"-m": "model.gguf"}
    turns = {"--system", "--chat-template", "--chat-template-kwargs", "--think"} & set(given)
    if "--history" in given and "-cnv" not in given:
        base["-cnv"] = "-"
    elif not {"-p", "-f", "-cnv", "--history"} & set(given):
        base["-p"] = "once upon a time"
    if turns and not {"--chat", "-st", "-cnv"} & set(given) and "-cnv" not in base:
        base["--chat"] = "-"
    if "-n" not in given:
        base["-n"] = "8"
    if "--temp" not in given:
        base["--temp"] = "0.8" if {"--top-k", "--top-p", "--min-p"} & set(given) or \
            given.get("--acceptance") == "rejection" else "0"
    if "-s" not in given:
        base["-s"] = "5"
    return {**base, **given}


def statistics(done):
    """Of a line with --json: the object, else None."""
    for line in done[2].splitlines():
        if line.startswith("{"):
            return json.loads(done[2][done[2].index("{"):])
    return None


def drafts(s):
    return s["drafted"] + s["lookahead_passes"]


# An option, its value ("*": any), and what the statistics show if it acts; `given` has the others. What is
# looked at depends on no time.
EFFECTS = (
    ("-t", "*", lambda s, given: s["threads"] == int(given["-t"])),
    ("-c", "64", lambda s, given: s["context"] == 64),
    ("-n", "*", lambda s, given: s["decode_tokens"] <= int(given["-n"]) or "-cnv" in given),
    ("-s", "*", lambda s, given: s["seed"] == int(given["-s"])),
    ("--device", "sim:memory=300M,link=16GB/s", lambda s, given: s["simulated"]),
    ("--device", "cpu", lambda s, given: not s["simulated"]),
    ("--kernels", "*", lambda s, given: given["--kernels"] in ("native",) or
     s["kernels"].startswith(given["--kernels"])),
    ("--policy", "*", lambda s, given: s["policy"] == given["--policy"]),
    ("--io", "uring", lambda s, given: "io_uring" in s["io"]),
    ("--io", "threads", lambda s, given: "pread" in s["io"]),
    ("--io", "sync", lambda s, given: "sync" in s["io"]),
    ("--host-memory", "400M", lambda s, given: s["memory_budget_bytes"] == 400 << 20),
    ("--prefetch", "off", lambda s, given: s["prefetches"] == 0),
    ("--speculate", "off", lambda s, given: s["drafted"] == 0),
    ("--lookahead-overlap", "off", lambda s, given: s["lookahead_passes"] > 0 or s["decode_tokens"] < 2),
    ("--host-compute", "off", lambda s, given: s["host_computed"] == 0),
    ("--expert-budget", "*", lambda s, given: s["lossy"] or s["decode_tokens"] < 2),
    ("--buddy", "on", lambda s, given: s["lossy"] or s["decode_tokens"] < 2),
    ("--low-bit", "on", lambda s, given: s["lossy"] or s["decode_tokens"] < 2),
)


def check_effects(words, given, done):
    s = statistics(done)
    if "--json" in given and s is None:
        fail(words, "--json prints no statistics", done)
    if "--quiet" in given and re.sub(r"(?m)^LOSSY.*\n", "", done[2]) != "":
        fail(words, "--quiet is not quiet", done)
    for name, written in (("--trace", "out.jsonl"), ("--checksums", "sums")):
        if given.get(name) == written and not os.path.exists(written) and s is not None and \
                s["decode_tokens"] > 0 and (name == "--trace" or given.get("--calibration") == "none"):
            fail(words, f"{name} writes nothing", done)
    if s is not None and s["lossy_replaced"] + s["lossy_dropped"] > s["lossy_picks"]:
        fail(words, "more of the routers' choices are replaced and dropped than there were", done)
    for name, value, acts in EFFECTS if s is not None else ():
        if name in given and value in ("*", given[name]) and not acts(s, given):
            fail(words, f"{name} {given[name]} has no effect", done)


class Plain:
    """Texts of the lines without what must not change them."""

    def __init__(self):
        self.texts = {}

    def text(self, given):
        words = {k: v for k, v in given.items() if k in TEXT or k == "-m"}
        key = tuple(sorted(words.items()))
        if key not in self.texts:
            done = clean_run({**words, "--speculate": "off", "--calibration": "none",
                              "--checksums": "none"})
            self.texts[key] = done[1] if done[0] == 0 else None
            if done[0] != 0:
                fail(arguments("run", words), "the plain run fails", done)
        return self.texts[key]


def clean_run(given):
    for made in ("out.jsonl", "sums"):
        if os.path.exists(made):
            os.remove(made)
    return execute(arguments("run", given))


def try_line(given, plain):
    done = clean_run(given)
    words = arguments("run", given)
    if not judge("run", given, done):
        if done[0] in (1, 2):
            fail(words, "is refused, and REFUSED does not say so", done)
        return
    check_effects(words, given, done)
    # With BLAS the last bits depend on how many rows a product has.
    if is_lossy(given) or given.get("--acceptance") == "rejection" or \
            given.get("--float-gemm") == "blas":
        return
    wanted = plain.text(given)
    if wanted is not None and done[1] != wanted:
        fail(words, f"another text: {done[1]!r}, not {wanted!r}", done)


def try_refused():
    """Each pair of REFUSED is refused, with the words and both names."""
    for name, value, kind, other, other_value, words in REFUSED:
        given = {name: VALUE_OF.get(name, "-") if value == "*" else value}
        if kind == "excludes":
            given[other] = VALUE_OF.get(other, "-") if other_value == "*" else other_value
        given = with_base({**ALSO.get(name, {}), **ALSO.get(other, {}), **given})
        done = clean_run(given)
        told = (done[2].strip().splitlines() or [""])[-1]
        if done[0] not in (1, 2) or re.search(words, told) is None or name not in told or other not in told:
            fail(arguments("run", given), f"is not refused with {words!r}, and both names", done)


def listed():
    with open("forbidden", "w") as file:
        for row in REFUSED:
            file.write("\t".join(row[:5]) + "\n")
    out = subprocess.run([lister, "messages", option("--seed", "1"), "forbidden"], capture_output=True,
                         text=True)
    lines, refused, counts = [], [], None
    for line in out.stdout.splitlines():
        words = line.split("\t")
        options = dict(zip(words[1::2], words[2::2]))
        if words[0] == "line":
            lines.append(options)
        elif words[0] == "refused":
            refused.append(options)
        else:
            counts = words[1:]
    if out.returncode != 0 or counts is None:
        fail([lister], f"ends with {out.returncode}")
    return lines, refused, counts


def main():
    lines, refused, counts = listed()
    most = int(option("--lines", len(lines) if whole else LINES))
    first = int(option("--from", 0))
    plain = Plain()
    try_refused()
    for options in refused:
        done = clean_run(with_base(options))
        if done[0] != 2 or sum(name in done[2] for name in options) < 2:
            fail(arguments("run", options), "three that are refused: two are not named", done)
    for number, options in enumerate(lines[first:first + most]):
        begun = time.monotonic()
        try_line(with_base(options), plain)
        if verbose:
            print(f"# line {first + number}: {time.monotonic() - begun:.2f} s", flush=True)
    print(f"{counts[0]} options, {len(lines)} lines for {counts[1]} triples, {counts[2]} more are refused; "
          f"{min(most, len(lines) - first)} lines run, {len(failures)} failures")


with tempfile.TemporaryDirectory() as scratch:
    prepare(scratch)
    shutil.copy("cal.gguf", "model.moe-cal.gguf")
    shutil.copy("cal.gguf.moe-lowbit.gguf", "model.moe-lowbit.gguf")
    # Sidecars of a far model are in its folder of the cache.
    execute(["run", "-m", "model.gguf", "-p", "once", "-n", "1", "--disk-cache", "far"])
    for cached in glob.glob("far/file/*/model.gguf"):
        for kind in ("cal", "lowbit"):
            shutil.copy(f"model.moe-{kind}.gguf", os.path.dirname(cached))
    if not failures:
        main()
    os.chdir("/")
sys.exit(1 if failures else 0)
