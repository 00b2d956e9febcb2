#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/tokenizer/cases/chat.json: conversations as the models' own templates render them.

Run by hand when a template is added (the tests need neither Python nor these packages):
    pip install tokenizers jinja2
    make_chat.py TOKENIZERS_FOLDER TEMPLATES_FOLDER

TOKENIZERS_FOLDER holds qwen3/ and deepseek-v3/, each with tokenizer.json and tokenizer_config.json;
TEMPLATES_FOLDER holds NAME.jinja, the chat_template of a model of that name, for the others. All
are rendered with <|endoftext|> as BOS and EOS, which is what the vocabulary in data/ has; the first
two also with their own, and with the ids.
"""
import json
import pathlib
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

OUT = pathlib.Path(__file__).parent / "cases" / "chat.json"

S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    [(U, "Hello")],
    [(S, "You are terse."), (U, "Hello, wie geht's?\n")],
    [(U, "Hello"), (A, "Hi there"), (U, "Who are you")],
    [(S, "You are a helpful assistant"), (U, "Hello"), (A, "Hi there"), (U, "Who are you"),
     (A, "   I am an assistant   "), (U, "Another question")],
    [(U, "1+1?"), (A, "<think>\nEasy.\n</think>\n\n2"), (U, "我想在apple工作1314151天～ 🚀")],
    [(U, "Say nothing."), (A, "")],
    [(S, "Überall"), (U, "x = [i for i in range(10)]\n\n"), (A, "A list:\n\n    0..9\n")],
    [(U, "")],
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def raise_exception(message):
        raise ValueError(message)

    env.globals["raise_exception"] = raise_exception
    return env


def token_text(config, key):
    token = config.get(key)
    return token["content"] if isinstance(token, dict) else token or ""


def render(template, turns, bos, eos, opened):
    messages = [{"role": role, "content": text} for role, text in turns]
    return environment().from_string(template).render(
        messages=messages, add_generation_prompt=opened, bos_token=bos, eos_token=eos,
        enable_thinking=False)


def cases_of(name, template, bos, eos, tokenizer=None):
    for turns in CONVERSATIONS:
        # A turn of the assistant is not followed by another: templates differ in what they do then.
        opened = turns[-1][0] == U
        try:
            text = render(template, turns, bos, eos, opened)
        except ValueError:
            continue  # a template without a system's turn
        case = {"template": name, "turns": turns, "open": opened, "text": text}
        if tokenizer:
            case["ids"] = tokenizer.encode(text, add_special_tokens=False).ids
        yield case


def main():
    tokenizers, templates = map(pathlib.Path, sys.argv[1:3])
    cases = []
    for name, folder in (("qwen3", "qwen3"), ("deepseek3", "deepseek-v3")):
        config = json.loads((tokenizers / folder / "tokenizer_config.json").read_text())
        tokenizer = Tokenizer.from_file(str(tokenizers / folder / "tokenizer.json"))
        cases += cases_of(name, config["chat_template"], "<|endoftext|>", "<|endoftext|>")
        cases += cases_of(name, config["chat_template"], token_text(config, "bos_token"),
                          token_text(config, "eos_token"), tokenizer)
    for path in sorted(templates.glob("*.jinja")):
        cases += cases_of(path.stem, path.read_text(), "<|endoftext|>", "<|endoftext|>")
    OUT.write_text("[\n" + ",\n".join(
        json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
