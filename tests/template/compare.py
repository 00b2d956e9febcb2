# SPDX-License-Identifier: MIT
"""Compares the interpreter with jinja2 over all templates (*.jinja) of a folder, and looks for control
tokens that come from data; or, with --transformers, compares with what that library renders, with
the last message closed and continued:
    compare.py RENDER_LINES FOLDER [NAME] [--transformers]"""
import collections
import json
import pathlib
import subprocess
import sys
import time

import oracle


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, template, variables, now=oracle.NOW, **how):
        asked = {"template": template, "variables": variables, "markup": oracle.MARKUP,
                 "now": now, **how}
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def compare_with_transformers(render, path, counts):
    """Reasoning under all its names, and continue_final_message. Left out is what is more here: parts
    of text for templates that know texts only, and arguments of calls in a string."""
    from transformers.utils.chat_template_utils import render_jinja_template
    template = path.read_bytes().decode()
    counts["templates"] += 1
    for name, variables in oracle.cases():
        if "as text" in name or "parts" in name or "image" in name:
            continue
        more = {k: v for k, v in variables.items() if k not in ("messages", "tools", "documents",
                                                                "continue_final_message")}
        for continues in (False, True):
            try:
                text = render_jinja_template(
                    conversations=[variables["messages"]], tools=variables["tools"],
                    chat_template=template, continue_final_message=continues, **oracle.MARKUP,
                    **more)[0][0]
            except Exception:  # whatever goes wrong is a refusal
                text = None
            answer = render(template, {**more, "messages": variables["messages"],
                                       "tools": variables["tools"], "documents": None},
                            now=int(time.time()), adapt=True, **{"continue": continues})
            same = answer.get("text") == text
            key = "different" if not same else "refused equal" if text is None else "rendered equal"
            counts[("continued: " if continues else "whole: ") + key] += 1
            if not same:
                print(f"{path.name}: {name}: {continues}\n  transformers: {text!r}\n"
                      f"  here: {answer}"[:1500])


def main():
    render = Renderer(sys.argv[1])
    counts = collections.Counter()
    transformers = "--transformers" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--transformers"]
    reasons = collections.Counter()
    for path in sorted(pathlib.Path(sys.argv[2]).glob("*.jinja")):
        if len(sys.argv) > 3 and sys.argv[3] not in path.name:
            continue
        if transformers:
            compare_with_transformers(render, path, counts)
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
        for name, variables in oracle.cases():
            answer = render(template, variables, hostile=True)
            counts["hostile conversations tried"] += 1
            if "error" in answer:
                counts["hostile conversations refused"] += 1
            else:
                for key, count in answer.items():
                    counts["hostile: " + key] += count
                if answer["tokens from data"] + answer["words that count as the template's"]:
                    print(f"{path.name}: {name}: {answer}")
    for key, count in counts.items():
        print(f"{key}: {count}")
    for reason, count in reasons.most_common(40):
        print(count, reason)


main()
