#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench decode reads the tokens that --tokens-from names, and says so.

    bench_tokens.py COMMAND MODEL

With a file the tokens are forced one by one. What the model would have chosen at each of them is in
tokens_xxh128, and must be what `logits` gives for the same ids, hashed by xxhsum. Without xxhsum the
test is skipped.
"""

import array
import json
import shutil
import subprocess
import sys
import tempfile

N_PROMPT, N_DECODE = 12, 9
failures = []


def check(good, what):
    if not good:
        failures.append(what)


def bench(command, model, *options):
    done = subprocess.run([command, "bench", "decode", "-m", model, "-p", str(N_PROMPT), "-n",
                           str(N_DECODE), "--repeat", "2", "--json", *options], check=True,
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def choices_hash(command, model, ids, path):
    """Of the likeliest token after each id from the prompt's last on."""
    subprocess.run([command, "logits", "-m", model, "--tokens", " ".join(map(str, ids)), "-o", path,
                    "--quiet"], check=True)
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[8:10], "little")
    values = array.array("f", data[10 + size:])
    n_vocab = len(values) // len(ids)
    chosen = array.array("i")
    for i in range(N_PROMPT - 1, len(ids)):
        row = values[i * n_vocab:(i + 1) * n_vocab]
        chosen.append(row.index(max(row)))
    hashed = subprocess.run(["xxhsum", "-H128"], input=chosen.tobytes(), check=True,
                            stdout=subprocess.PIPE)
    return hashed.stdout.split()[0].decode()


def main():
    if shutil.which("xxhsum") is None:
        sys.exit(77)
    command, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        ids = [(7 * i * i + 3 * i + 5) % 256 for i in range(2 * (N_PROMPT + N_DECODE))]
        path = f"{work}/ids.txt"
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(map(str, ids)) + "\n")
        forced = bench(command, model, "--tokens-from", path)
        wanted = choices_hash(command, model, ids[:N_PROMPT + N_DECODE], f"{work}/logits.npy")
        check(forced["tokens_xxh128"] == wanted, "the forced tokens are not what the model read")
        check(forced["tokens_from"] == "file" and forced["forced"], "a file is not told")
        check(forced["tokens_file"] == path, "the file's name is not told")
        check(len(forced["results"][1]["tokens_per_s_runs"]) == 2, "repetitions are not told")
        check([len(r["cpu_s_runs"]) for r in forced["results"]] == [2, 2], "the CPU time of repetitions is not told")
        check(min(r["cpu_s_runs"][0] for r in forced["results"]) > 0, "a repetition took no CPU time")
        check(forced["open_s"] > 0 and forced["first_token_s"] > 0, "no time of opening")
        two = bench(command, model, "--tokens-from", path, "--parallel", "2")
        check(two["tokens_xxh128"] == wanted, "the first of two sequences reads other tokens")

    greedy = bench(command, model)
    check(greedy["tokens_from"] == "greedy" and not greedy["forced"], "greedy is not told")
    check(greedy["kv_bytes_read_per_token"] > 0, "the bound leaves keys and values out")
    rand = bench(command, model, "--tokens-from", "random", "-s", "3")
    check(rand["tokens_from"] == "random" and rand["forced"], "random is not told")
    check(rand["tokens_xxh128"] != greedy["tokens_xxh128"], "random tokens are greedy ones")
    sampled = [bench(command, model, "--tokens-from", "sampled", "-s", s) for s in ("3", "3", "4")]
    check(sampled[0]["tokens_from"] == "sampled" and not sampled[0]["forced"], "sampled: not told")
    check(sampled[0]["tokens_xxh128"] == sampled[1]["tokens_xxh128"], "a seed draws two texts")
    check(sampled[0]["tokens_xxh128"] != sampled[2]["tokens_xxh128"], "two seeds draw one text")
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
