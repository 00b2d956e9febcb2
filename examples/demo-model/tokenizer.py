"""The demo model's own byte-level BPE tokenizer.

4,096 ids: 256 bytes, the learned merges, and three control tokens at the end. Text is split by
exactly the regular expression that GGUF engines know as the `qwen2` pre-tokenizer, so that any of
them produces the same ids. There is no Unicode normaliser: those engines have none either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], path: Path) -> None:
    """Learn the merges from `texts` and write a `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE - len(CONTROL_TOKENS):
        raise ValueError("too little text for the full vocabulary")
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    tokenizer.save(str(path))


class DemoTokenizer:
    """Encodes plain text (control tokens are never parsed out of it) and knows byte lengths."""

    def __init__(self, path: Path):
        self.definition = json.loads(Path(path).read_text(encoding="utf-8"))
        self.inner = Tokenizer.from_file(str(path))
        self.inner.encode_special_tokens = True
        vocab = self.inner.get_vocab()
        self.tokens = [""] * len(vocab)
        for token, token_id in vocab.items():
            self.tokens[token_id] = token
        self.endoftext, self.im_start, self.im_end = (vocab[t] for t in CONTROL_TOKENS)
        # One character of a byte-level token stands for one byte; control tokens count as none.
        self.byte_length = np.array(
            [0 if t in CONTROL_TOKENS else len(t) for t in self.tokens], dtype=np.int64)

    @property
    def merges(self) -> list[str]:
        """Merge rules in order of priority, each as `left right`."""
        pairs = self.definition["model"]["merges"]
        return [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def encode_chat(self, user: str, assistant: str | None = None) -> list[int]:
        """One ChatML exchange; without `assistant`, a prompt that waits for the answer."""
        newline = self.encode("\n")
        ids = [self.im_start, *self.encode("user\n" + user), self.im_end, *newline,
               self.im_start, *self.encode("assistant\n")]
        if assistant is not None:
            ids += [*self.encode(assistant), self.im_end, *newline]
        return ids
