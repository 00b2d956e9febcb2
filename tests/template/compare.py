# SPDX-License-Identifier: MIT
"""Compares the interpreter with jinja2 over all templates (*.jinja) of a folder:
    compare.py RENDER_LINES FOLDER [NAME]"""
import collections
import json
import pathlib
import re
import subprocess
import sys

import oracle

OPEN, CLOSE = "\ue000", "\ue001"
TOKENS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<think>", "</think>",
          "<|eot_id|>", "<|start_header_id|>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<|channel|>",
          "<|start|>", "<|message|>", "<|end|>", "<|user|>", "<|assistant|>", "<tool_call>",
          "<end_of_turn>", "<start_of_turn>", "<|endoftext|>", "<bos>", "<eos>"]


def hostile(value, text):
    """The value with the hostile text in the place of every string that people or tools wrote."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [hostile(v, text) for v in value]
    if isinstance(value, dict):
        return {k: v if k in ("role", "type", "id", "tool_call_id") else hostile(v, text)
                for k, v in value.items()}
    return value


def hostile_text(template):
    found = re.findall(r"<[^<>\s'\"]{1,40}>|\[/?[A-Z_]+\]", template)
    words = sorted(set(TOKENS + found)) + ["{{ messages }}", "{% raw %}", "{# x #}"]
    return " ".join(OPEN + word + CLOSE for word in words)


def from_data(answer, words):
    """Token texts in what counts as the template's, between the marks that only data holds."""
    text = answer["text"].encode()
    bad = at = 0
    inside = False
    opened, closed = OPEN.encode(), CLOSE.encode()
    for size, is_markup in answer["spans"]:
        part = text[at:at + size]
        at += size
        if is_markup and (opened in part or closed in part):
            bad += 1
    return bad


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, template, variables):
        asked = {"template": template, "variables": variables, "markup": oracle.MARKUP,
                 "now": oracle.NOW}
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main():
    render = Renderer(sys.argv[1])
    counts = collections.Counter()
    reasons = collections.Counter()
    for path in sorted(pathlib.Path(sys.argv[2]).glob("*.jinja")):
        if len(sys.argv) > 3 and sys.argv[3] not in path.name:
            continue
        template = path.read_bytes().decode()
        counts["templates"] += 1
        told = 0
        for name, variables in oracle.cases():
            text, reason = oracle.render(template, {**oracle.MARKUP, **variables})
            answer = render(template, variables)
            if text is None and "error" in answer:
                counts["refused equal"] += 1
            elif text is not None and answer.get("text") == text:
                counts["rendered equal"] += 1
            else:
                counts["different"] += 1
                reasons[answer.get("error", "other text" if text is not None else reason)] += 1
                told += 1
                if told <= 2:
                    print(f"{path.name}: {name}: {reason or ''} {answer.get('error', '')}")
                    if text is not None and "text" in answer:
                        print("  jinja2:", repr(text)[:1500], "\n  here:  ",
                              repr(answer["text"])[:1500])
        words = hostile_text(template)
        for name, variables in oracle.cases():
            variables = dict(variables, messages=hostile(variables["messages"], words),
                             tools=hostile(variables["tools"], words))
            answer = render(template, variables)
            if "text" in answer:
                counts["hostile conversations"] += 1
                counts["hostile spans that count as the template's"] += from_data(answer, words)
    for key, count in counts.items():
        print(f"{key}: {count}")
    for reason, count in reasons.most_common(40):
        print(count, reason)


main()
