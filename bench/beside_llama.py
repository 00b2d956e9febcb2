#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One model, one list of token ids, two engines: moe-offload and llama.cpp, in turn.

    python3 beside_llama.py COMMAND MODEL IDS[,IDS...] [--limits none,60,40,25,15] [--pairs 3]
                            [-p 64] [-n 128] [--repeat 2] [--throttle 1000] [--read-ahead 128]
                            [--out runs.jsonl]
                            [--llama-bench FILE [--llama-options="--repack 0"]]

Needs root, control groups of version 1 or 2 with memory (and, for --throttle, block I/O), and the
Python package llama-cpp-python installed for the Python that runs this, or llama-bench. IDS is a file that
`moe-offload tokenize` wrote; of several each pair takes the next. Nothing here
is needed to build or test moe-offload.

- Both read the same ids: the first -p as a prompt in one batch, the next -n forced one by one. Both
  compute the logits of every forced token, and both keep keys and values in F16.
- Both evaluate up to -b rows in a pass, no more than the prompt has, and set memory aside for that.
- --repeat goes over the same text again in the same process: the first time is cold, the last warm.
- A limit is a share of the model's file. The group is new for every run; page cache counts in it.
  llama.cpp's group is larger by what Python itself takes, so that only the engines are compared.
  moe-offload runs with its defaults: its budget follows the group.
- Before each run the model's pages are dropped from the page cache. The read-ahead is set as
  llama.cpp's mmap likes it (128 KB; moe-offload reads past the page cache) and put back.
- Memory that the run will take is touched before it (see populate()).
- What else ran beside a run is told in cores; a pair with more than --others is done again, at most
  twice, and then left out of the table.
- Times of llama.cpp are taken around llama_decode() alone; what passes between two calls is told.
- With --llama-bench FILE that program runs in place of the package. It draws ids of its own, writes from an empty
  context, and warms up first without telling how long that or opening took: its runs are all warm, also the one in the
  rows called cold. It serves for models with random weights, whose tokens are all alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


# -- llama.cpp, in a process of its own ----------------------------------------------------------

def own_bytes() -> int:
    """Memory of this process that is not a file's."""
    with open("/proc/self/status", encoding="utf-8") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["RssAnon"].split()[0]) * 1024


class Timed:
    """Seconds inside llama.cpp, and outside between the calls."""

    def __init__(self):
        self.inside = self.outside = 0.0
        self.last = None

    def call(self, function, *arguments):
        begun = time.perf_counter()
        if self.last is not None:
            self.outside += begun - self.last
        result = function(*arguments)
        self.last = time.perf_counter()
        self.inside += self.last - begun
        return result


def llama_pass(llama, context, batch, ids, position):
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i] = token
        batch.pos[i] = position + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i + 1 == len(ids)
    return llama.llama_decode, context, batch


def run_llama(given) -> dict:
    import llama_cpp as llama  # not on the way of those who only drive

    @llama.llama_log_callback
    def silent(*_):
        pass

    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    ids = read_ids(given.ids)[:given.p + given.n]
    model_options = llama.llama_model_default_params()
    model_options.n_gpu_layers = 0
    options = llama.llama_context_default_params()
    options.n_ctx = given.p + given.n + 1
    options.n_batch = options.n_ubatch = given.batch
    options.n_threads = options.n_threads_batch = given.threads
    python_bytes = own_bytes()
    begun = time.perf_counter()
    model = llama.llama_model_load_from_file(given.model.encode(), model_options)
    context = llama.llama_init_from_model(model, options)
    open_s = time.perf_counter() - begun
    batch = llama.llama_batch_init(given.batch, 0, 1)
    prompt_s, decode_s, outside = [], [], 0.0
    for _ in range(given.repeat):
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        timed = Timed()
        for first in range(0, given.p, given.batch):
            part = ids[first:min(first + given.batch, given.p)]
            if timed.call(*llama_pass(llama, context, batch, part, first)) != 0:
                sys.exit("llama_decode failed")
        prompt_s.append(timed.inside)
        timed = Timed()
        for i in range(given.n):
            part = ids[given.p + i:given.p + i + 1]
            if timed.call(*llama_pass(llama, context, batch, part, given.p + i)) != 0:
                sys.exit("llama_decode failed")
        decode_s.append(timed.inside)
        outside = max(outside, timed.outside / max(timed.inside, 1e-9))
    return {"open_s": open_s, "first_token_s": prompt_s[0],
            "prompt": [given.p / s for s in prompt_s],
            "decode": [given.n / s for s in decode_s] if given.n else [],
            "outside_share": outside, "python_bytes": python_bytes,
            "system": llama.llama_print_system_info().decode()}


# -- both, in turn --------------------------------------------------------------------------------

def read_ids(path: str) -> list[int]:
    return [int(word) for word in Path(path).read_text(encoding="utf-8").split()]


def write(path: Path, value) -> None:
    path.write_text(str(value), encoding="utf-8")


class Group:
    """A control group for one run: a limit on memory, and on what the disk reads a second."""

    def __init__(self, limit: int | None, throttle: int | None, device: str):
        self.paths = []
        name = f"beside-{os.getpid()}"
        one = (GROUPS / "memory").is_dir()
        if limit is not None:
            self._make(GROUPS / "memory" / name if one else GROUPS / name)
            write(self.paths[-1] / ("memory.limit_in_bytes" if one else "memory.max"), limit)
        if throttle is not None:
            if one:
                self._make(GROUPS / "blkio" / name)
                write(self.paths[-1] / "blkio.throttle.read_bps_device", f"{device} {throttle}")
            else:
                self._make(GROUPS / name)
                write(self.paths[-1] / "io.max", f"{device} rbps={throttle}")

    def _make(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        if path not in self.paths:
            self.paths.append(path)

    def enter(self) -> None:
        for path in self.paths:
            write(path / "cgroup.procs", os.getpid())

    def remove(self) -> None:
        for path in self.paths:
            for _ in range(50):  # a dead process's pages may take a moment
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


def drop_pages(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def disk_reads(device: str) -> int:
    sectors = Path(f"/sys/dev/block/{device}/stat").read_text(encoding="utf-8").split()[2]
    return int(sectors) * 512


def busy_seconds() -> float:
    """Of all cores, since the machine started, without waiting for the disk."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _, _, irq, soft, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def populate(n_bytes: int) -> None:
    """Has a process touch huge pages and give them back. A virtual machine may lend its free memory
    to the host, and who touches that first waits up to 20 times as long as else; neither engine
    should wait for what the other's run left to the host."""
    if os.fork() == 0:
        memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, n_bytes, 4096):
            memory[at] = 1
        os._exit(0)
    os.wait()


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_in(group: Group, command: list[str], given) -> tuple[dict, str]:
    drop_pages(given.model)
    populate(given.populate_bytes)
    before = disk_reads(given.device)
    begun, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    try:
        done = subprocess.run(command, preexec_fn=group.enter, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
    finally:
        group.remove()
    read = disk_reads(given.device) - before
    # What else ran meanwhile, in cores: a run beside which much did says nothing.
    busy, own = busy_seconds() - busy, own_seconds() - own
    others = max(0.0, busy - own) / (time.monotonic() - begun)
    if done.returncode != 0:
        return {"failed": f"{done.returncode}: {done.stderr[-300:]}", "disk_bytes": read,
                "others": others}, ""
    return {"disk_bytes": read, "others": others, "cpu_s": own}, done.stdout


def run_ours(given, limit, ids) -> dict:
    command = [given.command, "bench", "decode", "-m", given.model, "-p", str(given.p), "-n",
               str(given.n), "-t", str(given.threads), "-b", str(given.batch),
               "--repeat", str(given.repeat), "--tokens-from", ids, "--calibration", "none",
               "--json",
               *given.options.split()]
    group = Group(limit, given.throttle_bytes, given.device)
    row, text = run_in(group, command, given)
    if text:
        found = json.loads(text)
        results = {r["test"]: r["tokens_per_s_runs"] for r in found["results"]}
        row |= {"open_s": found["open_s"], "first_token_s": found["first_token_s"],
                "prompt": results["prompt"], "decode": results.get("decode", []),
                "choices": found["tokens_xxh128"], "peak_rss": found["peak_rss_bytes"],
                "hits": found["expert_hits"], "misses": found["expert_misses"],
                "read": found["bytes_read_disk"], "kernels": found["kernels"],
                "share": found.get("decode_share_of_bound")}
    return row


def run_llama_bench(given, limit) -> dict:
    command = [given.llama_bench, "-m", given.model, "-p", str(given.p), "-n", str(given.n),
               "-t", str(given.threads), "-b", str(given.batch), "-ub", str(given.batch),
               "-r", str(given.repeat), "-o", "json", *given.llama_options.split()]
    row, text = run_in(Group(limit, given.throttle_bytes, given.device), command, given)
    for found in json.loads(text) if text else []:
        row["decode" if found["n_gen"] > 0 else "prompt"] = found["samples_ts"]
    return row


def run_theirs(given, limit, ids, allowance) -> dict:
    if given.llama_bench:
        return run_llama_bench(given, limit)
    command = [sys.executable, __file__, given.command, given.model, ids, "--alone", "-p",
               str(given.p), "-n", str(given.n), "-t", str(given.threads), "-b", str(given.batch),
               "--repeat", str(given.repeat)]
    group = Group(None if limit is None else limit + allowance, given.throttle_bytes, given.device)
    row, text = run_in(group, command, given)
    return row | (json.loads(text) if text else {})


def figure(half: dict, key: str, index: int | None) -> float:
    value = half.get(key)
    if key == "both_s" and "open_s" in half:
        value = half["open_s"] + half["first_token_s"]
    if value is None or value == []:
        return float("nan")
    return value if index is None else value[index]


def is_quiet(row: dict, given) -> bool:
    return max(row[half].get("others", 0.0) for half in ("ours", "theirs")) <= given.others


def print_table(runs: list[dict], repeat: int) -> None:
    """Medians over the pairs; the ratio is the median of the pairs' ratios, above 1 where
    moe-offload is faster."""
    print("| limit | what | moe-offload | llama.cpp | ratio | smallest | largest | pairs |")
    print("|---|---|---|---|---|---|---|---|")
    whats = [("open, s", "open_s", None), ("first token after that, s", "first_token_s", None),
             ("both, s", "both_s", None),
             ("prompt, cold, tokens/s", "prompt", 0), ("decode, cold, tokens/s", "decode", 0)]
    if repeat > 1:
        whats += [("prompt, warm, tokens/s", "prompt", -1),
                  ("decode, warm, tokens/s", "decode", -1)]
    for limit in dict.fromkeys(r["limit"] for r in runs):
        for name, key, index in whats:
            pairs = [(figure(r["ours"], key, index), figure(r["theirs"], key, index))
                     for r in runs if r["limit"] == limit]
            pairs = [(a, b) for a, b in pairs if a == a and b == b]
            if not pairs:
                told = any("prompt" in r[half] for r in runs for half in ("ours", "theirs"))
                print(f"| {limit} | {name} | {'not told' if told else 'failed'} | | | | | 0 |")
                continue
            ratios = [b / a if key.endswith("_s") else a / b for a, b in pairs]
            print(f"| {limit} | {name} | {statistics.median(a for a, _ in pairs):.2f} "
                  f"| {statistics.median(b for _, b in pairs):.2f} "
                  f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} "
                  f"| {len(pairs)} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", help="build/moe-offload")
    parser.add_argument("model")
    parser.add_argument("ids", help="a file of token ids")
    parser.add_argument("--limits", default="none,60,40,25,15", help="%% of the model's file")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("-p", type=int, default=64, help="prompt tokens")
    parser.add_argument("-n", type=int, default=128, help="forced tokens")
    parser.add_argument("-b", "--batch", type=int, help="rows of a pass (default: -p, at most 512)")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--throttle", type=float, help="MB/s that the disk gives at most")
    parser.add_argument("--read-ahead", type=int, default=128, help="KB, while this runs")
    parser.add_argument("--options", default="", help="more for moe-offload, between blanks")
    parser.add_argument("--others", type=float, default=0.15,
                        help="cores that may be busy with something else")
    parser.add_argument("--out", help="every run is appended here, a JSON object a line")
    parser.add_argument("--llama-bench", help="this program in place of the package")
    parser.add_argument("--llama-options", default="", help="more for it, between blanks")
    parser.add_argument("--alone", action="store_true", help="llama.cpp in this process, as JSON")
    given = parser.parse_args()
    number = os.stat(given.model).st_dev
    given.device = f"{os.major(number)}:{os.minor(number)}"
    given.batch = given.batch or min(given.p, 512)
    given.throttle_bytes = int(given.throttle * 1e6) if given.throttle else None
    return given


def main() -> None:
    given = parse_arguments()
    if given.alone:
        print(json.dumps(run_llama(given)))
        return
    read_ahead = Path(f"/sys/dev/block/{given.device}/queue/read_ahead_kb")
    kept = read_ahead.read_text(encoding="utf-8").strip()
    size = os.path.getsize(given.model)
    runs = []
    write(read_ahead, given.read_ahead)
    try:
        probe = [sys.executable, "-c", "import sys, llama_cpp; sys.path.insert(0, sys.argv[1]); "
                 "import beside_llama; print(beside_llama.own_bytes())",
                 str(Path(__file__).resolve().parent)]
        allowance = 0 if given.llama_bench else int(
            subprocess.run(probe, check=True, stdout=subprocess.PIPE).stdout)
        for limit in given.limits.split(","):
            n_bytes = None if limit == "none" else int(size * float(limit) / 100)
            for pair in range(given.pairs):
                ids = given.ids.split(",")[pair % (given.ids.count(",") + 1)]
                row = {"limit": limit, "pair": pair, "ids": ids, "model": given.model, "p": given.p,
                       "n": given.n, "throttle": given.throttle, "allowance": allowance}
                halves = [("ours", lambda b=n_bytes, i=ids: run_ours(given, b, i)),
                          ("theirs", lambda b=n_bytes, i=ids: run_theirs(given, b, i, allowance))]
                for _ in range(3):
                    given.populate_bytes = (n_bytes or size) + (768 << 20)
                    for name, run in halves if pair % 2 == 0 else halves[::-1]:
                        row[name] = run()
                        print(limit, name, {k: v for k, v in row[name].items() if k != "system"},
                              file=sys.stderr)
                    if is_quiet(row, given):
                        break
                runs.append(row)
                if given.out:
                    with open(given.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
    finally:
        write(read_ahead, kept)
    print_table([row for row in runs if is_quiet(row, given)], given.repeat)


if __name__ == "__main__":
    main()
