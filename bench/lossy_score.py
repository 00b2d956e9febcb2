# SPDX-License-Identifier: MIT
"""What buddies.py and low_bit.py share: perplexity and expert bytes of a text under a lossy mode.

Prefetch and warm start are off, so that no clock is in the figures: every run gives the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess


def comma_list(text: str) -> list[str]:
    return text.split(",") if text else []


def parser(description: str, caches: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("command")
    made.add_argument("model")
    made.add_argument("texts", type=comma_list)
    made.add_argument("--caches", default=caches, type=comma_list,
                      help="per cent of the experts' bytes")
    return made


def score(command: str, model: str, text: str, cache: str, lossy: list[str], *, chunk: int = 512,
          rows: int = 1, more: tuple[str, ...] = ()) -> dict:
    """The JSON of `perplexity`, or {"why": its error}. rows: tokens a pass. lossy: options of a
    lossy mode, or none."""
    words = [command, "perplexity", "-m", model, "-f", text, "-c", str(chunk), "-b", str(rows),
             "-t", "1", "--expert-cache", f"{cache}%", "--prefetch", "off", "--warm-start", "off",
             "--json", *lossy, *more]
    if lossy:
        words += ["--quality-share", "1e-9"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"why": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout)


def kib_a_token(result: dict) -> float:
    return result["bytes_demand"] / result["evaluated_tokens"] / 1024
