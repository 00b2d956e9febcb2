# SPDX-License-Identifier: MIT
"""Texts to measure the demo model on: held-out parts of its three domains, and some training text
to calibrate with.

    python held_out_texts.py DATA OUT [--stdlib FOLDER]

DATA is the folder of the training text (../shared/data/text beside the repository); needs what
examples/demo-model/requirements.txt names. Writes, in OUT: each domain's held-out text; `mixed`, 50 kB of
each; `lossy`, 4 kB of each; `routing`, 2 kB; `width`, 1 kB; `smoke`, the same;
`calibrate`, 60 kB of each domain's training text.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "demo-model"))

from data import DOMAINS, Document, read_domains  # noqa: E402


def join(documents: list[Document], size: int | None = None) -> str:
    """Whole, or the first so many characters."""
    texts = [d.plain() for d in documents]
    total = sum(map(len, texts))
    if size is None or size >= total:
        return "\n\n".join(texts) + "\n"
    parts, left = [], size
    for text in texts:
        parts.append(text[:left])
        left -= len(parts[-1])
        if left <= 0:
            break
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="held-out texts of the demo model")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    domains = read_domains(given.data, given.stdlib)
    files = {name: join(domains[name].held_out) for name in DOMAINS}
    for name, size in (("mixed", 50000), ("lossy", 4000), ("routing", 2000), ("width", 1000)):
        files[name] = "".join(join(domains[d].held_out, size) for d in DOMAINS)
    files["smoke"] = files["width"]
    files["calibrate"] = "".join(join(domains[d].train, 60000) for d in DOMAINS)
    for name, text in files.items():
        (given.out / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
