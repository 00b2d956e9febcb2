#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The table of bench/results/schemas.md: JSON-Schema-Test-Suite by keyword, held here and by the
packages llguidance and xgrammar, as far as they are installed. Arguments: schema_lines of the build,
the folder of the suite (its tests/draft2020-12). xgrammar needs torch, which its grammars do not use:
where that is not installed, names stand in for it. A schema is taken or refused; a number of valid or
invalid values that are accepted is of those of the schemas that are taken."""
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types

from schema_score import FORMATS, Lines, ordered


class Llguidance:
    def __init__(self):
        import llguidance
        self.kind, self.tokenizer = llguidance.LLMatcher, llguidance.LLTokenizer("byte")

    def ask(self, schema, texts):
        try:
            grammar = self.kind.grammar_from_json_schema(json.dumps(schema))
        except ValueError as error:
            return "refused", str(error), ""
        if self.kind(self.tokenizer, grammar).is_error():
            return "refused", self.kind(self.tokenizer, grammar).get_error(), ""
        judged = ""
        for text in texts:
            matcher, data = self.kind(self.tokenizer, grammar), list(text.encode())
            judged += "y" if matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting() else "n"
        return "held", "", judged


class StandIn(types.ModuleType):
    """A module whose every name is a new class or function."""
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {}) if name[0].isupper() or name in ("dtype", "device") else lambda *_, **__: None
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) \
            if name.split(".")[0] in ("torch", "transformers") else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


class Xgrammar:
    def __init__(self):
        import tvm_ffi  # noqa: F401  before the stand-ins: it uses torch where that is there
        sys.meta_path.append(StandIns())
        import xgrammar
        from xgrammar import testing
        self.grammar, self.accepts = xgrammar.Grammar, testing._is_grammar_accept_string

    def ask(self, schema, texts):
        try:
            grammar = self.grammar.from_json_schema(json.dumps(schema), strict_mode=False)
            return "held", "", "".join("y" if self.accepts(grammar, text) else "n" for text in texts)
        except Exception as error:  # its own kinds, by version
            return "refused", str(error), ""


def score(engine, groups):
    """held, dropped, refused; invalid accepted of; valid accepted of."""
    n = {"held": 0, "dropped": 0, "refused": 0}
    counts = [0, 0, 0, 0]
    for group in groups:
        texts = [json.dumps(ordered(t["data"], group["schema"]), ensure_ascii=False) for t in group["tests"]]
        status, _, judged = engine.ask(group["schema"], texts)
        n[status] += 1
        for test, one in zip(group["tests"], judged if status == "held" else ""):
            at = 2 if test["valid"] else 0
            counts[at] += one == "y"
            counts[at + 1] += 1
    return [*n.values(), *counts]


def main():
    engines = {"here": Lines(sys.argv[1])}
    for name, kind in (("llguidance", Llguidance), ("xgrammar", Xgrammar)):
        try:
            engines[name] = kind()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    print("| keyword | " + " | ".join(f"{n}: held | dropped | refused | invalid in | valid in" if n == "here" else
                                     f"{n}: taken | refused | invalid in | valid in" for n in engines) + " |")
    print("|---|" + "---|" * (5 + 4 * (len(engines) - 1)))
    sums = {name: [0] * 7 for name in engines}
    files = sorted(f for f in os.listdir(sys.argv[2]) if f.endswith(".json"))
    for file_name in files + [os.path.join("optional/format", f) for f in FORMATS] + [None]:
        cells = []
        if file_name is not None:
            with open(os.path.join(sys.argv[2], file_name), encoding="utf-8") as file:
                groups = json.load(file)
        for name, engine in engines.items():
            row = sums[name] if file_name is None else score(engine, groups)
            if file_name is not None:
                sums[name] = [a + b for a, b in zip(sums[name], row)]
            cells += [str(row[0]), str(row[1]), str(row[2])] if name == "here" else [str(row[0]), str(row[2])]
            cells += [f"{row[3]} of {row[4]}", f"{row[5]} of {row[6]}"]
        label = "**all**" if file_name is None else os.path.basename(file_name)[:-5]
        print(f"| {label} | " + " | ".join(cells) + " |")


main()
