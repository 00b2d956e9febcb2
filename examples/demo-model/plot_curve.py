#!/usr/bin/env python3
"""Draws the training curve: `python3 plot_curve.py curve.csv curve.png`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from data import DOMAINS


def main(source: Path, target: Path) -> None:
    with source.open(newline="") as file:
        rows = list(csv.DictReader(file))
    tokens = [int(row["tokens"]) / 1e6 for row in rows]
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name in DOMAINS:
        axis.plot(tokens, [float(row[f"{name}_bits_per_byte"]) for row in rows], label=name)
    axis.set(xlabel="tokens trained, millions", ylabel="held-out bits per byte")
    axis.grid(alpha=0.3)
    loss_axis = axis.twinx()
    loss_axis.plot(tokens, [float(row["train_nats_per_token"]) for row in rows], "k:", alpha=0.6)
    loss_axis.set_ylabel("training loss, nats per token (dotted)")
    axis.legend()
    figure.savefig(target, dpi=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
