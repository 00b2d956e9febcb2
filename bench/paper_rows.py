# SPDX-License-Identifier: MIT
"""The table of the papers' figures beside ours, from what paper_table.sh measured.

    python paper_rows.py OUT

Writes OUT/table.csv and OUT/table.md: source, setting, paper's value, ours, the measurement that it was
taken from (its command is in OUT/NAME.command). A row whose measurement is missing says so.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean

Row = dict[str, str]


class Measurements:
    """The files of one run of paper_table.sh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, name: str) -> list[Row]:
        with (self.folder / f"{name}.csv").open(encoding="utf-8") as lines:
            return list(csv.DictReader(lines))

    def value(self, name: str, key: str) -> float:
        text = (self.folder / f"{name}.json").read_text(encoding="utf-8")
        return float(json.loads(text)[key])


def pick(rows: list[Row], *words: str, cache: str = "", batch: str = "") -> list[Row]:
    """Rows whose configuration has all these words, in order."""
    return [r for r in rows if all(f" {w} " in f" {r['config']} " for w in words)
            and cache in ("", r["cache_percent"]) and batch in ("", r["batch"])]


def number(rows: list[Row], key: str) -> float:
    return float(rows[0][key])


def list_of(rows: list[Row], key: str, form: str = ".2f") -> str:
    return " / ".join(format(float(r[key]), form) for r in rows)


# ---- SpecMoE ----

def policies(m: Measurements) -> str:
    parts = []
    for n in ("8", "16"):
        rows = pick(m.rows("policy"), f"--draft-experts {n}")
        parts.append(f"n={n}: {list_of(rows, 'tau')}")
    return "; ".join(parts)


def pinned(m: Measurements) -> str:
    rows = pick(m.rows("pinned"), "self")
    return f"tau {list_of(rows, 'tau')}; {list_of(rows, 'tokens_per_s', '.0f')} tok/s"


def affinities(m: Measurements) -> str:
    rows = m.rows("affinity")
    random = number(pick(rows, "--affinity random"), "tau")
    kinds = ("output", "weight", "coact", "router", "shuffled", "none", "topk")
    return f"random {random:.2f}; " + ", ".join(
        f"{k} {100 * (number(pick(rows, f'--affinity {k}'), 'tau') / random - 1):+.1f} %"
        for k in kinds)


LINK_CONFIGS = (("overlap", ("off", "--offload overlap")), ("caching", ("off", "--offload caching")),
                ("self K=5", ("self", "static")), ("self survival", ("self --draft-experts",)),
                ("auto", ("auto",)))


def against_baselines(name: str, batch: str) -> Callable[[Measurements], str]:
    def tell(m: Measurements) -> str:
        rows = m.rows(name)
        base = pick(rows, "off --offload on-demand", batch=batch)
        parts = [f"on-demand {number(base, 'tokens_per_s'):.1f} tok/s"]
        for label, words in LINK_CONFIGS:
            row = pick(rows, *words, batch=batch)
            parts.append(f"{label} {number(row, 'ratio'):.2f}x")
        return ", ".join(parts)
    return tell


def matched(m: Measurements) -> str:
    """All configurations over the link that has the papers' ratio with a large batch."""
    rows = m.rows("link-matched")
    base = number(pick(rows, "off --offload on-demand"), "tokens_per_s")
    parts = [f"on-demand {base:.1f} tok/s"]
    for kind in ("overlap", "caching"):
        parts.append(f"{kind} {number(pick(rows, f'off --offload {kind}'), 'ratio'):.2f}x")
    for row in pick(rows, "self"):
        words = row["config"].split()
        n, k = words[words.index("--draft-experts") + 1], words[words.index("--draft-max") + 1]
        parts.append(f"self n={n} K={k} {float(row['ratio']):.2f}x (tau {float(row['tau']):.2f})")
    return ", ".join(parts)


def bytes_cut(name: str, batch: str) -> Callable[[Measurements], str]:
    def tell(m: Measurements) -> str:
        rows = m.rows(name)
        key = "link_mib_per_token"
        base = number(pick(rows, "off --offload on-demand", batch=batch), key)
        caching = number(pick(rows, "off --offload caching", batch=batch), key)
        ours = number(pick(rows, "self", "static", batch=batch), key)
        return (f"{100 * (ours / base - 1):+.1f} % vs on-demand, "
                f"{100 * (ours / caching - 1):+.1f} % vs caching")
    return tell


def bytes_growth(m: Measurements) -> str:
    """Bytes of one iteration of the whole batch, B=256 over B=1."""
    parts = []
    for label, words in (("self", ("self", "static")), ("on-demand", ("off --offload on-demand",)),
                         ("caching", ("off --offload caching",))):
        one = pick(m.rows("link-small"), *words, batch="1")
        many = pick(m.rows("link-large"), *words, batch="256")
        key = "link_mib_per_token"
        growth = (number(many, key) * 256 * number(many, "tokens_per_iteration")
                  / (number(one, key) * number(one, "tokens_per_iteration")))
        parts.append(f"{label} {growth:.1f}x")
    return ", ".join(parts)


def width_cost(m: Measurements) -> str:
    def seconds(rows: int) -> float:
        return rows / m.value(f"width-link-{rows}", "tokens_per_s")
    large = pick(m.rows("link-large"), "off --offload on-demand")
    step = {r["batch"]: float(r["batch"]) / float(r["tokens_per_s"]) for r in large}
    return (f"T(9)/T(1) {seconds(9) / seconds(1):.2f} (B=1); "
            f"T(256)/T(32) {step['256'] / step['32']:.2f} (other sequences' rows)")


# ---- Cascade ----

TEXTS = ("gsm8k", "shakespeare", "python")


def by_text(m: Measurements, prefix: str) -> list[Row]:
    return [{**r, "text": t} for t in TEXTS for r in m.rows(f"{prefix}-{t}")]


def worst_by_clock(m: Measurements) -> str:
    rows = by_text(m, "length")
    parts = []
    for label, words in (("K=1", ("--draft-max 1",)), ("K=2", ("--draft-max 2",)),
                         ("K=3", ("static", "--draft-max 3")), ("cascade", ("cascade",)),
                         ("survival", ("survival",)), ("auto", ("auto",))):
        worst = min(pick(rows, *words), key=lambda r: float(r["ratio"]))
        parts.append(f"{label} {100 * (1 - float(worst['ratio'])):.0f} %")
    return ", ".join(parts)


def modelled_ratios(m: Measurements) -> dict[str, list[float]]:
    """By configuration: modelled speed against plain decoding, a value for each text and cache."""
    ratios: dict[str, list[float]] = {}
    base = 0.0
    for row in by_text(m, "modelled"):
        cost = float(row["modelled_mib_per_token"])
        base = cost if row["config"].startswith("off") else base
        ratios.setdefault(row["config"].replace(" --cost bytes", ""), []).append(base / cost)
    return ratios


def worst_modelled(m: Measurements) -> str:
    short = {"ngram --length-control ": "", "--length-control ": "", "static --draft-max ": "K=",
             " --draft-max 3": ""}
    parts = []
    for config, ratios in modelled_ratios(m).items():
        if config == "off":
            continue
        for old, new in short.items():
            config = config.replace(old, new)
        parts.append(f"{config}: {100 * (1 - min(ratios)):+.1f} % (mean {mean(ratios):.3f}x)")
    return "; ".join(parts)


# ---- MoE-Spec, BuddyMoE ----

BUDGETS = (8, 16, 24, 32, 40, 48, 56)


def budget(mode: str, key: str, factor: float, form: str) -> Callable[[Measurements], str]:
    def tell(m: Measurements) -> str:
        return " / ".join(format(factor * m.value(f"budget-{b}-{mode}", key), form) for b in BUDGETS)
    return tell


def budget_speed(m: Measurements) -> str:
    rows = m.rows("budgets")
    base = pick(rows, "self")[0]
    parts = [f"none: tau {float(base['tau']):.2f}, {float(base['experts_per_pass']):.0f} experts"]
    for b in BUDGETS:
        row = pick(rows, f"--expert-budget {b}")[0]
        speed = float(row["tokens_per_s"]) / float(base["tokens_per_s"])
        parts.append(f"B={b}: {speed:.2f}x, tau {float(row['tau']):.2f}")
    return "; ".join(parts)


def trees(m: Measurements) -> str:
    rows = m.rows("trees")
    return "; ".join(
        f"{n}: tau {number(pick(rows, f'--tree {n}'), 'tau'):.2f}"
        f", {number(pick(rows, f'--tree {n}'), 'ratio'):.2f}x"
        f" ({number(pick(rows, f'--tree {n}', '--expert-budget 32'), 'ratio'):.2f}x at B=32)"
        for n in (3, 7, 15, 31, 63, 127, 255, 511))


def buddy(key: str, factor: float, form: str) -> Callable[[Measurements], str]:
    paper = "rho=3,alpha=0.95,weight=inherit"
    labels = (("16 buddies", f"{paper},max=16"), ("2", f"{paper},max=2"),
              ("own weights", "rho=3,alpha=0.95,max=16,weight=own"),
              ("random", "rho=3,random,max=16,weight=inherit"))

    def tell(m: Measurements) -> str:
        exact = format(factor * m.value("width-memory-1", key), form)
        return f"exact {exact}; " + "; ".join(
            f"{label} " + " / ".join(format(factor * m.value(f"buddy-{c}-{s}", key), form)
                                     for c in ("75", "50", "37.5")) for label, s in labels)
    return tell


def buddy_speed(m: Measurements) -> str:
    parts = []
    for cache in ("75.0", "50.0", "37.5"):
        off, buddies, random = pick(m.rows("buddies"), "off", cache=cache)
        change = 100 * (number([buddies], "link_mib_per_token")
                        / number([off], "link_mib_per_token") - 1)
        parts.append(f"{number([off], 'tokens_per_s'):.0f} -> {number([buddies], 'tokens_per_s'):.0f} "
                     f"({number([buddies], 'ratio'):.2f}x; random {number([random], 'ratio'):.2f}x; "
                     f"bytes {change:+.0f} %)")
    return ", ".join(parts)


# ---- Routing ----

def routing(measure: str, indices: tuple[str, ...], form: str) -> Callable[[Measurements], str]:
    """The mean over layers."""
    def tell(m: Measurements) -> str:
        rows = m.rows("routing")
        return " / ".join(
            format(mean(float(r["value"]) for r in rows
                        if r["measure"] == measure and r["index"] == i and r["layer"] != "mean"),
                   form) for i in indices)
    return tell


def amdahl(m: Measurements) -> str:
    def ratio(kind: str) -> float:
        return (4 / m.value(f"width-{kind}-4", "tokens_per_s")
                * m.value(f"width-{kind}-1", "tokens_per_s"))
    return f"{ratio('memory'):.2f} all in memory, {ratio('link'):.2f} on-demand over the link"


# Source, setting, the paper's value, ours, the measurement.
TABLE: list[tuple[str, str, str, Callable[[Measurements], str], str]] = [
    ("SpecMoE", "tau at gamma=10: random / hot-global / hot-temporal (B=64)",
     "6.812 / 7.220 / 7.265", policies, "policy.csv"),
    ("SpecMoE", "n = k, 2k, 4k, 6k (paper 1k, 2k, 4k, 8k)",
     "tau 6.929 / 7.265 / 7.620 / 7.819; 116.4 / 123.0 / 121.3 / 117.2 tok/s", pinned,
     "pinned.csv"),
    ("SpecMoE", "tau against random routing (n=2k)", "+7.23 %", affinities, "affinity.csv"),
    *[("SpecMoE", f"throughput against on-demand, B={b}", p, against_baselines(f, str(b)), f"{f}.csv")
      for b, p, f in ((1, "", "link-small"), (8, "", "link-small"), (32, "", "link-large"),
                      (256, "4.30x (Mixtral at most 2.17x, Scout 1.42x)", "link-large"))],
    ("SpecMoE", "the same, B=256, GSM8K, a link 50 times as slow as the products of 32 rows",
     "4.30x", matched, "link-matched.csv"),
    ("SpecMoE", "bytes over the link, B=256", "-76.73 % vs on-demand, -71.89 % vs caching",
     bytes_cut("link-large", "256"), "link-large.csv"),
    ("SpecMoE", "bytes over the link, B=1", "", bytes_cut("link-small", "1"), "link-small.csv"),
    ("SpecMoE", "bytes growth B 1 to 256", "SpecMoE 10.96x, on-demand 45.28x, caching 50.97x",
     bytes_growth, "link-*.csv"),
    *[("SpecMoE", f"experts on NVMe, B={b}", "mean 2.25x, caching 1.29x, overlap 1.05x",
       against_baselines("ssd", str(b)), "ssd.csv") for b in (1, 8, 32)],
    ("SpecMoE", "skewness", "NLLB .84, Mixtral .32, Scout .59", routing("skewness", ("0",), ".2f"),
     "routing.csv"),
    ("SpecMoE", "lambda at gamma=8", "about 6 at B=1, 2 at B=32", width_cost, "width-link-*.json"),
    ("Cascade", "worst slow-down by the clock, 3 texts x 2 caches, n-grams",
     "K=1/2/3 26/38/54 %, Cascade 5 %", worst_by_clock, "length-*.csv"),
    ("Cascade", "worst slow-down (and mean gain) by modelled costs, 3 texts x 3 caches; ablations",
     "back-off 14 % to 5 %; t=2 +13 %, S=32 +4 %, chosen +20 %", worst_modelled,
     "modelled-*.csv"),
    ("MoE-Spec", "mass kept, B=8..56 by 8, router, 63 tokens a pass", "93 % at B=32",
     budget("router,truncate", "lossy_mass_kept", 100, ".1f"), "budget-*.json"),
    *[("MoE-Spec", f"error of the experts' output in %, B=8..56, {mode}", paper,
       budget(mode, "lossy_output_error", 100, ".2f"), "budget-*.json")
      for mode, paper in (("router,truncate", "3.2 % at B=32"), ("oracle,truncate", "3.2 % at B=24"),
                          ("static,truncate", ""), ("router,substitute", ""))],
    *[("MoE-Spec", f"perplexity, B=8..56, {mode}", "",
       budget(mode, "perplexity", 1, ".2f"), "budget-*.json")
      for mode in ("router,substitute", "router,truncate", "static,substitute", "static,truncate",
                   "oracle,truncate")],
    ("MoE-Spec", "next-token accuracy in %, B=8..56, router,substitute", "",
     budget("router,substitute", "accuracy", 100, ".1f"), "budget-*.json"),
    ("MoE-Spec", "speed and tau of a tree of 63 by budget", "+6 % (OLMoE) to +27 %; tau -1.4 %",
     budget_speed, "budgets.csv"),
    ("MoE-Spec", "trees of 3 to 511 nodes, speed against plain decoding", "", trees, "trees.csv"),
    ("MoE-Spec", "co-activation concentration (mean of layers)", "10-33x, mean 23x (OLMoE)",
     routing("concentration", ("0",), ".1f"), "routing.csv"),
    ("BuddyMoE", "next-token accuracy in %, cache 75 / 50 / 37.5 %", "-5.4 % relative at its best",
     buddy("accuracy", 100, ".1f"), "buddy-*.json"),
    ("BuddyMoE", "perplexity, cache 75 / 50 / 37.5 %", "", buddy("perplexity", 1, ".2f"),
     "buddy-*.json"),
    ("BuddyMoE", "tok/s, cache 75 / 50 / 37.5 %, link bytes",
     "34.23->36.75, 28.56->30.21, 24.78->27.33; bytes -20 %", buddy_speed, "buddies.csv"),
    ("Cohere", "overlap at 1..4 tokens", ".381/.329/.301/.299 (k=8 of 128)",
     routing("overlap", ("1", "2", "3", "4"), ".3f"), "routing.csv"),
    ("Cohere", "overlap, independent", ".118", routing("overlap_independent", ("1",), ".3f"),
     "routing.csv"),
    ("Cohere", "unique experts at 4 tokens: measured", "20.36", routing("unique", ("4",), ".2f"),
     "routing.csv"),
    ("Cohere", "unique experts at 4 tokens: independent", "25.4",
     routing("unique_independent", ("4",), ".2f"), "routing.csv"),
    ("Cohere", "T(4)/T(1)", "1.25 measured, 1.46 by Amdahl", amdahl, "width-*.json"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder of paper_table.sh's measurements")
    measured = Measurements(parser.parse_args().out)
    lines = []
    for source, setting, paper, ours, name in TABLE:
        try:
            text = ours(measured)
        except (OSError, KeyError, IndexError, ValueError, ZeroDivisionError) as problem:
            text = f"not measured ({type(problem).__name__}: {problem})"
        lines.append((source, setting, paper, text, name))
    head = ("source", "setting", "paper", "ours", "measurement")
    with (measured.folder / "table.csv").open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([head, *lines])
    with (measured.folder / "table.md").open("w", encoding="utf-8") as out:
        for line in (head, ("---",) * len(head), *lines):
            out.write("| " + " | ".join(line) + " |\n")


if __name__ == "__main__":
    main()
