#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a token costs behind ever longer texts: layers with a window, recurrent ones, full ones.

    python3 long_prompts.py COMMAND [--folder /tmp] [--from 1024] [--to 65536] [--out table.md]
                            [--models windows,gpt-oss,recurrent,qwen3.5] [-t 2] [--cpu [--prompts-only]]

Writes small models with random weights (true_shape.py) and runs `bench decode` on each with prompts of
every length, twice as long each time. A prompt's cost at a depth is that of its second half: the
difference of two runs, by the tokens between them. Decoding is measured behind the whole prompt. With --cpu
both are CPU times, and that of decoding is the difference of two runs, of which one writes hardly any; with
--prompts-only too, that one alone runs.

    windows     4 layers, all of which see the last 128 positions
    gpt-oss     4 layers, every other of which does; the others see everything
    recurrent   3 layers of the gated delta rule, none that sees everything
    qwen3.5     these 3, and 1 that does

and, of later models, one layer of each kind, as true_shape.py has them: heads, indexers, pools, windows and
streams are of the true sizes, but there are 8 heads of attention, a width of 512 and 8 small experts. So the
part that grows with the text is as large as in the model, and all else is several times smaller: the ratios
are an upper bound.

    hy4         an indexer over positions, 16 heads of 128
    glm-5.3     channels with decays; an indexer over pools of 4, 32 heads of 128
    qwen3.8     delta rule; an indexer over pools of 4, 4 heads of 128
    deepseek-v4 a window; keys of 4 positions with an indexer, 64 heads of 128; keys of 128 positions
    minimax-m3  blocks of 128 positions, chosen for each of 4 groups of heads
    dots.3      an indexer over positions, 64 heads of 128; a window
    kimi-k3     3 layers of channels with decays; those with latent attention, which see everything, left out

Ratios are to the first depth. Where layers see everything, what decoding (with --prompts-only, a prompt)
costs more than there is theirs: it is told for one of them and 1,000 positions. `planned` is what `plan` says
that the process takes with such a context, `peak` what it took; the rest of the plan is the same at every depth.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
from pathlib import Path

import true_shape

SMALL = dict(embd=512, vocab=2000, context=131072, ff=256, dense=0, experts=8, used=2, ff_exp=256, shared=0,
             heads=8, kv_heads=2, head=64, rot=64)
SMALL_DELTA = dict(heads=8, key_heads=4, dim=64, kernel=4, interval=4)
SMALL_QWEN = SMALL | dict(
    arch="qwen35moe", pre="qwen35", shared=256, qk_norm=True, ffn_norm="post_attention_norm",
    shared_gate=True, delta=SMALL_DELTA,
    keys={"rope.freq_base": 1e7, "rope.dimension_sections": [11, 11, 10, 0], "ssm.conv_kernel": 4,
          "expert_shared_feed_forward_length": 256, "ssm.state_size": 64, "ssm.group_count": 4,
          "ssm.time_step_rank": 8, "ssm.inner_size": 512, "full_attention_interval": 4})
MODELS = {
    "windows": SMALL | dict(arch="llama", pre="qwen2", layers=4,
                            keys={"rope.freq_base": 1e6, "attention.sliding_window": 128}),
    "gpt-oss": SMALL | dict(arch="gpt-oss", pre="gpt-4o", layers=4, qkv_bias=True, sinks=True,
                            ffn_norm="post_attention_norm",
                            keys={"rope.freq_base": 150000.0, "attention.sliding_window": 128}),
    "recurrent": SMALL_QWEN | dict(layers=3),
    "qwen3.5": SMALL_QWEN | dict(layers=4),
}
FULL_LAYERS = {"gpt-oss": 2, "qwen3.5": 1}


def of_shape(name: str, layers: int, keys: dict, **sizes) -> dict:
    """Some layers of a shape of true_shape.py, narrower."""
    whole = true_shape.SHAPES[name]
    kept = {key: value for key, value in whole["keys"].items() if not key.startswith(("ple.", "embedding_length_per"))}
    return whole | dict(layers=layers, embd=512, vocab=2000, context=131072, ff=256, dense=0, experts=8, used=2,
                        ff_exp=256, shared=256, heads=8, table=None, experts_type="Q8_0", keys=kept | keys) | sizes


LATER = {
    "hy4": of_shape("hy4", 1, {}),
    "glm-5.3": of_shape("glm-5.3-flash", 2, {"attention.head_count_kv": [0, 1]}),
    "qwen3.8": of_shape(
        "qwen3.8-flash-next", 2, {"full_attention_interval": 2, "ssm.time_step_rank": 8, "ssm.inner_size": 1024,
                                  "ssm.group_count": 8, "attention.compress_ratios": [0, 4],
                                  "expert_shared_feed_forward_length": 256},
        delta=dict(heads=8, key_heads=8, dim=128, kernel=4, interval=2)),
    "deepseek-v4": of_shape("deepseek-v4-flash", 3, {"attention.compress_ratios": [0, 4, 128], "hash_layer_count": 0},
                            rates=[0, 4, 128], tables=0),
    "minimax-m3": of_shape("minimax-m3", 1, {}),
    "dots.3": of_shape("dots.3-note", 2, {"attention.head_count": [8, 8], "attention.sliding_window_pattern": [0, 1]},
                       inside=[0, 1], wide=dict(heads=8, kv_rank=1024, nope=192, v_dim=128)),
    "kimi-k3": of_shape("kimi-k3", 3, {"attention.head_count_kv": [0, 0, 0], "expert_latent_length": 256,
                                       "attn_res.block_size": 2}, narrow=256, shared=512),
}
MODELS |= LATER
MIB = 1 << 20
FEW = 8  # tokens


def write_model(name: str, folder: Path) -> Path:
    path = folder / f"long-{name}.gguf"
    true_shape.SHAPES[name] = MODELS[name]
    options = argparse.Namespace(experts_type="Q8_0", type="Q8_0", layers=None, vocabulary=None, table_rows=None)
    true_shape.write(true_shape.Shape(name, options), str(path), 1, True)
    return path


def bench(command: str, path: Path, depth: int, n: int, budget: int,
          options: argparse.Namespace) -> tuple[dict, float]:
    """What `bench decode` prints, and the CPU seconds that it took."""
    args = [command, "bench", "decode", "-m", path, "-p", depth, "-n", n, "-t", options.threads,
            "--tokens-from", "random", "--repeat", options.repeat, "--host-memory", budget, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = subprocess.run([str(a) for a in args], check=True, capture_output=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(text), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def sizes_of(plan: dict, found: dict) -> dict:
    return {"kv": plan["kv_cache_bytes"], "planned": plan["total_bytes"], "peak": found["peak_rss_bytes"]}


def run(command: str, path: Path, depth: int, options: argparse.Namespace) -> dict:
    """The budget is what the plan says, and 1 MiB: `bench` then does not measure the memory's bandwidth, for
    which it would take 512 MiB."""
    written = 256 + depth // 16  # more behind a long prompt, whose cost varies by more
    plan = json.loads(subprocess.run(
        [command, "plan", "-m", str(path), "-c", str(depth + written + 1), "-t", str(options.threads),
         "--speculate", "off", "--json"], check=True, capture_output=True).stdout)
    budget = plan["total_bytes"] + MIB
    if options.prompts_only:
        found, cpu_s = bench(command, path, depth, FEW, budget, options)
        return sizes_of(plan, found) | {"prompt_s": cpu_s / options.repeat}
    found, cpu_s = bench(command, path, depth, written, budget, options)
    result = sizes_of(plan, found)
    if options.cpu:
        prompt_s = bench(command, path, depth, FEW, budget, options)[1]
        return result | {"prompt_s": prompt_s / options.repeat,
                         "decode_ms": 1e3 * (cpu_s - prompt_s) / (written - FEW) / options.repeat}
    speeds = {r["test"]: r["tokens_per_s_max"] for r in found["results"]}
    return result | {"prompt_s": depth / speeds["prompt"], "decode_ms": 1e3 / speeds["decode"]}


def measure(name: str, options: argparse.Namespace) -> list[str]:
    path = write_model(name, Path(options.folder))
    rows, first, depth = [], None, options.first
    before = (depth // 2, run(options.command, path, depth // 2, options)["prompt_s"])
    while depth <= options.last:
        found = run(options.command, path, depth, options)
        prompt_ms = 1e3 * (found["prompt_s"] - before[1]) / (depth - before[0])
        before = (depth, found["prompt_s"])
        first = first or (prompt_ms, found.get("decode_ms"), depth)
        decode = ["", ""]
        if not options.prompts_only:
            decode = [f"{found['decode_ms']:.3f}", f"{found['decode_ms'] / first[1]:.2f}"]
        of_full = ""
        if name in FULL_LAYERS and depth > first[2]:
            more = prompt_ms - first[0] if options.prompts_only else found["decode_ms"] - first[1]
            # A prompt's second half lies behind three quarters of the depth, on average.
            share = 0.75 if options.prompts_only else 1.0
            of_full = f"{1e6 * more / (share * (depth - first[2]) * FULL_LAYERS[name]):.1f}"
        rows.append(f"| {name} | {depth:,} | {prompt_ms:.3f} | {prompt_ms / first[0]:.2f} | "
                    f"{decode[0]} | {decode[1]} | {of_full} | "
                    f"{found['kv'] / MIB:.2f} | {found['planned'] / MIB:.1f} | {found['peak'] / MIB:.1f} |")
        print(rows[-1], flush=True)
        depth *= 2
    path.unlink()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--from", type=int, default=1024, dest="first")
    parser.add_argument("--to", type=int, default=65536, dest="last")
    parser.add_argument("--repeat", type=int, default=1,
                        help="the fastest of so many runs counts, of CPU times the mean")
    parser.add_argument("--cpu", action="store_true",
                        help="CPU time, of one thread best (-t 1): for a machine that others use, too")
    parser.add_argument("--prompts-only", action="store_true", help="with --cpu: decode next to nothing")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.prompts_only and not options.cpu:
        parser.error("--prompts-only goes with --cpu")
    lines = ["| model | depth | prompt, ms a token | ratio | decode, ms a token | ratio | µs of a full layer for "
             "1,000 positions | KV cache and states, MiB | planned, MiB | peak, MiB |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for name in options.models.split(","):
        lines += measure(name, options)
    if options.out:
        Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
