"""The three training domains, their held-out parts, and an endless batch stream over them.

Domains: grade-school mathematics (GSM8K's training split), Shakespeare, Python source. They are
mixed by bytes seen, not by tokens, since a token of Shakespeare is shorter than one of
mathematics; evenly if not told otherwise. The held-out part is chosen by a hash or by position, never by a random state, so it
is the same in every run.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tokenizer import DemoTokenizer

DOMAINS = ("gsm8k", "shakespeare", "python")
HELD_OUT_SHARE = 0.05
SHAKESPEARE_BLOCKS = 10
SHORTEST_FILE = 64
EXCLUDED_FOLDERS = {"test", "tests", "idlelib", "idle_test", "site-packages", "dist-packages",
                    "__pycache__"}


@dataclass
class Document:
    """One unit of text. `answer` is set for GSM8K, where `text` is the question."""
    text: str
    answer: str | None = None
    name: str = ""

    def plain(self) -> str:
        if self.answer is None:
            return self.text
        return f"Question: {self.text}\nAnswer: {self.answer}"


@dataclass
class Split:
    train: list[Document] = field(default_factory=list)
    held_out: list[Document] = field(default_factory=list)


def _hash_share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def read_gsm8k(path: Path) -> Split:
    """Problems with the calculator annotations (`<<48/2=24>>`) removed from the answers."""
    split = Split()
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            answer = re.sub(r"<<[^>]*>>", "", record["answer"])
            document = Document(record["question"].strip(), answer.strip())
            held_out = _hash_share(document.text) < HELD_OUT_SHARE
            (split.held_out if held_out else split.train).append(document)
    return split


def read_shakespeare(path: Path) -> Split:
    """Ten contiguous blocks, evenly spread, are held out; cuts fall between speeches."""
    speeches = path.read_text(encoding="utf-8").split("\n\n")
    total = sum(len(s) + 2 for s in speeches)
    period = total / SHAKESPEARE_BLOCKS
    runs: list[tuple[bool, list[str]]] = []
    position = 0
    for speech in speeches:
        phase = (position % period) / period
        held_out = 0.5 <= phase < 0.5 + HELD_OUT_SHARE
        if not runs or runs[-1][0] != held_out:
            runs.append((held_out, []))
        runs[-1][1].append(speech)
        position += len(speech) + 2
    split = Split()
    for held_out, run in runs:
        document = Document("\n\n".join(run) + "\n")
        (split.held_out if held_out else split.train).append(document)
    return split


def read_python(stdlib: Path) -> Split:
    """The standard library's sources, whole files, without near-duplicates.

    Many files are generated from one template (the character-set tables above all). A file half
    of whose distinct lines stand in files already taken is left out, of both parts.
    """
    split = Split()
    known: set[str] = set()
    for path in sorted(stdlib.rglob("*.py")):
        relative = path.relative_to(stdlib)
        if EXCLUDED_FOLDERS & set(relative.parts[:-1]):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines = {line.strip() for line in text.splitlines()}
        if len(text) < SHORTEST_FILE or len(lines & known) > len(lines) / 2:
            continue
        known |= lines
        held_out = _hash_share(str(relative)) < HELD_OUT_SHARE
        document = Document(text, name=relative.as_posix())
        (split.held_out if held_out else split.train).append(document)
    return split


def read_domains(data: Path, stdlib: Path) -> dict[str, Split]:
    return {
        "gsm8k": read_gsm8k(data / "gsm8k-train.jsonl"),
        "shakespeare": read_shakespeare(data / "tinyshakespeare.txt"),
        "python": read_python(stdlib),
    }


def tokenizer_texts(splits: dict[str, Split]) -> list[str]:
    """Training text in about equal bytes per domain, so that no domain owns the merges."""
    texts = {name: [d.plain() for d in split.train] for name, split in splits.items()}
    size = {name: sum(map(len, part)) for name, part in texts.items()}
    target = max(size.values())
    return [text for name, part in texts.items()
            for text in part * max(1, round(target / size[name]))]


def encode_document(document: Document, tokenizer: DemoTokenizer, as_chat: bool) -> list[int]:
    if document.answer is not None and as_chat:
        return tokenizer.encode_chat(document.text, document.answer)
    return [*tokenizer.encode(document.plain()), tokenizer.endoftext]


class EncodedDomain:
    """A domain's documents as token ids; GSM8K problems in both forms."""

    def __init__(self, documents: list[Document], tokenizer: DemoTokenizer):
        chat_capable = bool(documents) and documents[0].answer is not None
        forms = (False, True) if chat_capable else (False,)
        self.forms = [[np.array(encode_document(d, tokenizer, form), dtype=np.uint16)
                       for d in documents] for form in forms]

    def stream(self, rng: np.random.Generator | None) -> np.ndarray:
        """All documents end to end; shuffled, with forms drawn at random, if `rng` is given."""
        count = len(self.forms[0])
        order = np.arange(count) if rng is None else rng.permutation(count)
        form = np.arange(count) if rng is None else rng.integers(0, 1 << 30, count)
        return np.concatenate([self.forms[form[i] % len(self.forms)][i] for i in order])


class MixedStream:
    """Sequences from the three domains, bytes seen in proportion to `mix` (None: evenly); its
    state is integers."""

    def __init__(self, encoded: dict[str, EncodedDomain], byte_length: np.ndarray, seed: int,
                 mix: dict[str, float] | None = None):
        self.encoded = encoded
        self.mix = mix or dict.fromkeys(encoded, 1.0)
        self.byte_length = byte_length
        self.seed = seed
        self.state = {name: {"epoch": 0, "offset": 0, "bytes": 0} for name in encoded}
        self._streams: dict[str, tuple[int, np.ndarray]] = {}

    def _epoch_stream(self, name: str) -> np.ndarray:
        epoch = self.state[name]["epoch"]
        cached = self._streams.get(name)
        if cached is None or cached[0] != epoch:
            rng = np.random.default_rng([self.seed, DOMAINS.index(name), epoch])
            stream = self.encoded[name].stream(rng)
            # A different phase each epoch: windows never cut the text at the same places.
            cached = (epoch, np.roll(stream, -int(rng.integers(len(stream)))))
            self._streams[name] = cached
        return cached[1]

    def begin_mix(self) -> None:
        """Counts from here on: a new mix need not make up for what the old one saw."""
        for state in self.state.values():
            state["bytes"] = 0

    def sequence(self, length: int) -> np.ndarray:
        """`length` + 1 tokens from the domain that is furthest behind its share of the bytes."""
        name = min(self.mix, key=lambda n: self.state[n]["bytes"] / self.mix[n])
        state = self.state[name]
        parts, missing = [], length + 1
        while missing > 0:
            stream = self._epoch_stream(name)
            part = stream[state["offset"]:state["offset"] + missing]
            parts.append(part)
            missing -= len(part)
            state["offset"] += len(part)
            if state["offset"] >= len(stream):
                state["epoch"] += 1
                state["offset"] = 0
        tokens = np.concatenate(parts).astype(np.int64)
        state["bytes"] += int(self.byte_length[tokens[1:]].sum())
        return tokens

    def batch(self, rows: int, length: int) -> np.ndarray:
        return np.stack([self.sequence(length) for _ in range(rows)])

    def epochs_seen(self) -> dict[str, float]:
        return {n: s["epoch"] + s["offset"] / len(self._epoch_stream(n))
                for n, s in self.state.items()}
