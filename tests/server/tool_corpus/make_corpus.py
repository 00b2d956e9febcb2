# SPDX-License-Identifier: MIT
"""Writes corpus.json: what models write when they call tools, in the syntax that their families
publish, and what has to be read out of it. With the folder of sglang's package as an argument
(`pip download sglang`, unpacked) each text also gets what that package's parsers make of it."""
import json
import os
import sys

TOOLS = [
    ("get_weather", "The weather of a place.", {"city": {"type": "string"}, "days": {"type": "integer"}},
     ["city", "days"]),
    ("add_item", "Adds to a list.", {
        "text": {"type": "string"}, "done": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["a b", "c"]}}, ["text", "kind"]),
    ("ping", "Says whether anybody is there.", {}, []),
    ("plan_trip", "Plans a trip.", {
        "stops": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object", "properties": {
            "deep": {"type": "boolean"}, "level": {"type": "number"}, "note": {"type": "string"}}},
        "limit": {"type": "number"}}, ["stops"]),
]
WEATHER = ("get_weather", {"city": "Zürich", "days": 3})
ITEM = ("add_item", {"text": "milk \"fresh\", it's\nand </b> [x] {y}", "done": True, "kind": "c"})
PING = ("ping", {})
TRIP = ("plan_trip", {"stops": ["Bern", "Genf \\ 2"],
                      "options": {"deep": False, "level": 0.5, "note": "a: b, c"}, "limit": -2})
CODE = ("add_item", {"text": "def f(x):\n    return {'a': [x, \"b\"], \"c\": '<d>'}\n" * 4, "kind": "a b"})
CALLS = {"one": [WEATHER], "two": [WEATHER, ITEM], "none": [PING], "nested": [TRIP], "long": [CODE],
         "three": [PING, WEATHER, TRIP]}


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def as_json(calls, open_, close, between="", name="name", key="arguments"):
    return between.join(open_ + '{"%s": "%s", "%s": %s}' % (name, n, key, dump(a)) + close
                        for n, a in calls)


def text_of(value):
    return value if isinstance(value, str) else dump(value)


def by_tags(calls, open_, after_name, key, value, close, end, between="\n"):
    return between.join(open_ + n + after_name + "".join(
        key + k + value + text_of(v) + close for k, v in a.items()) + end for n, a in calls)


def hermes(calls):
    return as_json(calls, "<tool_call>\n", "\n</tool_call>", "\n")


def coder(calls):
    return by_tags(calls, "<tool_call>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n",
                   "</function>\n</tool_call>")


def deepseek3(calls):
    return "<｜tool▁calls▁begin｜>" + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dump(a)}\n```<｜tool▁call▁end｜>"
        for n, a in calls) + "<｜tool▁calls▁end｜>"


def deepseek31(calls):
    return "<｜tool▁calls▁begin｜>" + "".join(
        f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dump(a)}<｜tool▁call▁end｜>" for n, a in calls) + \
        "<｜tool▁calls▁end｜>"


def dsml(calls, section, space=""):
    def argument(key, value):
        is_text = str(isinstance(value, str)).lower()
        return (f'<｜DSML｜{space}parameter name="{key}" string="{is_text}">{text_of(value)}'
                f"</｜DSML｜{space}parameter>")

    return f"<｜DSML｜{section}>\n" + "".join(
        f'<｜DSML｜{space}invoke name="{n}">\n' + "\n".join(argument(k, v) for k, v in a.items()) +
        f"\n</｜DSML｜{space}invoke>\n" for n, a in calls) + f"</｜DSML｜{section}>"


def deepseek32(calls):
    return dsml(calls, "function_calls")


def deepseek4(calls):
    return dsml(calls, "tool_calls")


def kimi(calls):
    return "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dump(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)) + "<|tool_calls_section_end|>"


def python_value(value):
    if isinstance(value, str):
        return dump(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(python_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(k)}: {python_value(v)}" for k, v in value.items()) + "}"
    return repr(value)


def pythonic(calls):
    return "[" + ", ".join(n + "(" + ", ".join(f"{k}={python_value(v)}" for k, v in a.items()) + ")"
                           for n, a in calls) + "]"


def gemma_value(value):
    if isinstance(value, str):
        return '<|"|>' + value + '<|"|>'
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{gemma_value(v)}" for k, v in value.items()) + "}"
    return dump(value)


def gemma(calls):
    return "".join(f"<|tool_call>call:{n}{gemma_value(a)}<tool_call|>" for n, a in calls)


def command(calls):
    return "<|START_ACTION|>[\n" + ",\n".join(
        '    {"tool_call_id": "%d", "tool_name": "%s", "parameters": %s}' % (i, n, dump(a))
        for i, (n, a) in enumerate(calls)) + "\n]<|END_ACTION|>"


def harmony(calls):
    return "".join("<|start|>assistant<|channel|>commentary to=functions.%s <|constrain|>json"
                   "<|message|>%s<|call|>" % (n, dump(a)) for n, a in calls)[len("<|start|>assistant"):]


def minimax2(calls):
    return "<minimax:tool_call>\n" + by_tags(
        calls, '<invoke name="', '">\n', '<parameter name="', '">', "</parameter>\n", "</invoke>") + \
        "\n</minimax:tool_call>"


def minimax3(calls):
    mark = "]<]minimax[>["
    return f"{mark}<tool_call>\n" + "".join(
        f'{mark}<invoke name="{n}">' + "".join(
            f"{mark}<{k}>{text_of(v)}{mark}</{k}>" for k, v in a.items()) + f"{mark}</invoke>\n"
        for n, a in calls) + f"{mark}</tool_call>"


def hunyuan3(calls):
    return "<tool_calls:opensource>\n" + by_tags(
        calls, "<tool_call:opensource>", "<tool_sep:opensource>\n", "<arg_key:opensource>",
        "</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n",
        "</tool_call:opensource>") + "\n</tool_calls:opensource>"


def hunyuan4(calls, line=""):
    """As vLLM 0.33 tells it (hy_v4_tool_parser, structural_tag_registry): no separators, and a suffix that
    is the checkpoint's. sglang's parser also takes Hy3's lines."""
    s = ":6124c78e"
    return f"<tool_calls{s}>{line}" + by_tags(
        calls, f"<tool_call{s}>", line, f"<arg_key{s}>", f"</arg_key{s}>{line}<arg_value{s}>",
        f"</arg_value{s}>{line}", f"</tool_call{s}>{line}", "") + f"</tool_calls{s}>"


HUNYUAN4 = [f"<{end}{name}:6124c78e>" for name in ("think", "tool_calls", "tool_call", "arg_key", "arg_value")
            for end in ("", "/")]


def glm(calls):
    return by_tags(calls, "<tool_call>", "\n", "<arg_key>", "</arg_key>\n<arg_value>",
                   "</arg_value>\n", "</tool_call>")


def kimi_ids(calls):
    return [f"functions.{n}:{i}" for i, (n, _) in enumerate(calls)]


def glm47(calls):
    return by_tags(calls, "<tool_call>", "", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</tool_call>",
                   "")


def kimi3(calls):
    """As mlx-lm 0.32.2's and sglang 0.5.23's parsers read it: values of type string are texts, others JSON."""
    def attribute(text):
        return text.replace("&", "&amp;").replace('"', "&quot;")

    def type_of(value):
        kinds = {bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}
        return kinds.get(type(value), "number")

    return "<|open|>tools<|sep|>" + "".join(
        f'<|open|>call tool="{n}" index="{i}"<|sep|>' + "".join(
            f'<|open|>argument key="{attribute(k)}" type="{type_of(v)}"<|sep|>{text_of(v)}'
            "<|close|>argument<|sep|>" for k, v in a.items()) + "<|close|>call<|sep|>"
        for i, (n, a) in enumerate(calls, 1)) + "<|close|>tools<|sep|>"


# What Kimi-K3 may also write: arguments as one object, keys with signs that are replaced, no marks behind the
# last argument's, a type that is not the schema's.
KIMI3_MORE = [
    ("block", '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
     '{"city": "<|close|> \\u00e9", "days": 3}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
     [("get_weather", {"city": "<|close|> é", "days": 3})]),
    ("key", '<|open|>tools<|sep|><|open|>call tool="ping" index="12"<|sep|><|open|>argument key="a &quot;b&quot; &amp;lt; c" '
     'type="null"<|sep|>null<|close|>argument<|sep|><|open|>argument key="d" type="boolean"<|sep|>false<|close|>argument'
     "<|sep|><|close|>call<|sep|><|close|>tools<|sep|>", [("ping", {'a "b" &lt; c': None, "d": False})]),
    ("types", '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" '
     'type="number"<|sep|>8001<|close|>argument<|sep|><|open|>argument key="days" type="string"<|sep|> 3 <|close|>argument'
     "<|sep|><|close|>call<|sep|><|close|>tools<|sep|>", [("get_weather", {"city": 8001, "days": " 3 "})]),
    ("ends early", '<|open|>tools<|sep|><|open|>call tool="ping" index="1"<|sep|><|close|>call<|sep|>', [PING]),
]


# Family: template; how it writes calls; more: further texts and their calls; thinks: the marks of its
# reasoning; opens: the prompt begins it; frame: what the model writes behind its answer (before calls) and
# at the end; kwargs: of the template; ids: those that the model writes; parser: sglang's; vocabulary: the
# tokens that the parser asks for.
FAMILIES = {
    "qwen3": dict(template="qwen3", write=hermes, thinks=("<think>\n", "\n</think>\n\n"),
                  parser=("qwen25_detector", "Qwen25Detector")),
    "qwen3-coder": dict(template="qwen3-coder", write=coder,
                        parser=("qwen3_coder_detector", "Qwen3CoderDetector")),
    "glm-4.6": dict(template="glm-4.6", write=glm, thinks=("<think>", "</think>\n"),
                    parser=("glm4_moe_detector", "Glm4MoeDetector")),
    "glm-4.7": dict(template="glm-4.7-flash", opens=True, thinks=("", "</think>"), write=glm47,
                    parser=("glm47_moe_detector", "Glm47MoeDetector")),
    "glm-5.3-flash": dict(template="glm-5.3-flash", opens=True, thinks=("", "</think>"), write=glm47,
                          parser=("glm47_moe_detector", "Glm47MoeDetector")),
    "deepseek-v3": dict(template="deepseek-v3", write=deepseek3,
                        parser=("deepseekv3_detector", "DeepSeekV3Detector")),
    "deepseek-v3.1": dict(template="deepseek-v3.1", write=deepseek31,
                          parser=("deepseekv31_detector", "DeepSeekV31Detector")),
    "deepseek-v3.2": dict(template="own/deepseek-v3.2", write=deepseek32,
                          parser=("deepseekv32_detector", "DeepSeekV32Detector")),
    "deepseek-v4": dict(template="deepseek-v4", write=deepseek4,
                        parser=("deepseekv4_detector", "DeepSeekV4Detector")),
    "deepseek-v4-thinks": dict(template="deepseek-v4", opens=True, thinks=("", "</think>"), write=deepseek4,
                               kwargs={"thinking": True},
                               parser=("deepseekv4_detector", "DeepSeekV4Detector")),
    "deepseek-v4.1": dict(template="own/deepseek-v4.1", opens=True, thinks=("", "</think>"),
                          write=lambda c: dsml(c, " calls", " "),
                          parser=("deepseekv41_detector", "DeepSeekV41Detector")),
    "kimi-k2": dict(template="own/kimi-k2", write=kimi, ids=kimi_ids,
                    parser=("kimik2_detector", "KimiK2Detector")),
    "kimi-k2-ids": dict(template="own/kimi-k2-ids", write=kimi, ids=kimi_ids),
    "kimi-k3": dict(template="kimi-k3", opens=True, more=KIMI3_MORE, thinks=("", "<|close|>think<|sep|><|open|>response<|sep|>"),
                    write=kimi3, frame=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
                    parser=("kimik3_detector", "KimiK3Detector")),
    "kimi-k3-answers": dict(template="kimi-k3", kwargs={"thinking": False}, write=kimi3,
                            frame=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
                            parser=("kimik3_detector", "KimiK3Detector")),
    "gemma-4": dict(template="own/gemma-4", write=gemma,
                    thinks=("<|channel>thought\n", "<channel|>"),
                    parser=("gemma4_detector", "Gemma4Detector")),
    "lfm2": dict(template="own/lfm2", parser=("lfm2_detector", "Lfm2Detector"), json="list",
                 write=lambda c: "<|tool_call_start|>" + pythonic(c) + "<|tool_call_end|>"),
    "llama-4": dict(template="own/llama-4", write=pythonic, bare=True,
                    parser=("pythonic_detector", "PythonicDetector")),
    "llama-4-tags": dict(template="own/llama-4", parser=("pythonic_detector", "PythonicDetector"),
                         write=lambda c: "<|python_start|>" + pythonic(c) + "<|python_end|>"),
    "llama-4-json": dict(template="own/llama-4", bare=True,
                         write=lambda c: as_json(c, "", "", key="parameters")),
    "llama-3.1": dict(template="own/llama-3.1", bare=True,
                      write=lambda c: as_json(c, "", "", "; ", key="parameters")),
    "llama-3.1-tag": dict(template="own/llama-3.1",
                          write=lambda c: "<|python_tag|>" + as_json(c, "", "", "; ", key="parameters"),
                          parser=("llama32_detector", "Llama32Detector")),
    "granite-3.3": dict(template="granite-3.3",
                        write=lambda c: "<|tool_call|>[" + as_json(c, "", "", ", ") + "]"),
    "granite-3.3-tag": dict(template="granite-3.3",
                            write=lambda c: "<tool_call>[" + as_json(c, "", "", ", ") + "]"),
    "granite-4": dict(template="own/hermes", write=hermes),
    "mistral-small-3.2": dict(template="mistral-small-3.2", write=lambda c: "".join(
        f"[TOOL_CALLS]{n}[ARGS]{dump(a)}" for n, a in c),
        parser=("mistral_detector", "MistralDetector")),
    "mistral-small-3.2-ids": dict(
        template="mistral-small-3.2", ids=lambda c: [f"abcdefgh{i}" for i in range(len(c))],
        write=lambda c: "".join(f"[TOOL_CALLS]{n}[CALL_ID]abcdefgh{i}[ARGS]{dump(a)}"
                                for i, (n, a) in enumerate(c))),
    "mistral-nemo": dict(
        template="mistral-nemo", ids=lambda c: [f"abcdefgh{i}" for i in range(len(c))],
        write=lambda c: "[TOOL_CALLS][" + ", ".join(
            '{"name": "%s", "arguments": %s, "id": "abcdefgh%d"}' % (n, dump(a), i)
            for i, (n, a) in enumerate(c)) + "]", parser=("mistral_detector", "MistralDetector")),
    "minimax-m2": dict(template="minimax-m2", opens=True, thinks=("", "\n</think>\n\n"),
                       write=minimax2, parser=("minimax_m2", "MinimaxM2Detector")),
    "minimax-m3": dict(template="own/minimax-m3", write=minimax3, flat=True),
    "seed-oss": dict(template="seed-oss", thinks=("<seed:think>", "</seed:think>"), write=lambda c: by_tags(
        c, "<seed:tool_call>\n<function=", ">\n", "<parameter=", ">", "</parameter>\n",
        "</function>\n</seed:tool_call>")),
    "step-3.5": dict(template="step-3.5", opens=True, thinks=("", "\n</think>\n"), write=coder,
                     parser=("qwen3_coder_detector", "Qwen3CoderDetector")),
    "hunyuan-3": dict(template="own/hunyuan-3", write=hunyuan3),
    "hunyuan-4": dict(template="own/hunyuan-4", opens=True, thinks=("", "</think:6124c78e>"), write=hunyuan4,
                      parser=("hunyuan_detector", "HunyuanDetector"), vocabulary=HUNYUAN4),
    "hunyuan-4-lines": dict(template="own/hunyuan-4", opens=True, thinks=("", "</think:6124c78e>"),
                            write=lambda c: hunyuan4(c, "\n"),
                            parser=("hunyuan_detector", "HunyuanDetector"), vocabulary=HUNYUAN4),
    "qwen3.8": dict(template="qwen3.8", opens=True, thinks=("", "\n</think>\n\n"), write=coder,
                    parser=("qwen3_coder_detector", "Qwen3CoderDetector")),
    "ling-3": dict(template="own/ling-3", thinks=("<think>", "</think>"), write=glm,
                   parser=("ling3_detector", "Ling3Detector")),
    "ling-3-dense": dict(template="own/ling-3", thinks=("<think>", "</think>"), write=glm47,
                         parser=("ling3_detector", "Ling3Detector")),
    "apertus": dict(template="own/apertus", write=lambda c: "<|tools_prefix|>[" + ", ".join(
        '{"%s": %s}' % (n, dump(a)) for n, a in c) + "]<|tools_suffix|>",
        parser=("apertus2509_detector", "Apertus2509Detector")),
    "command": dict(template="own/command", write=command,
                    ids=lambda c: [str(i) for i in range(len(c))],
                    thinks=("<|START_THINKING|>", "<|END_THINKING|>")),
    "functionary-3.1": dict(template="functionary-v3.1", write=lambda c: "".join(
        f"<function={n}>{dump(a)}</function>" for n, a in c)),
    "gpt-oss": dict(template="gpt-oss", write=harmony, channels=True, single=True),
}


def cases_of(name):
    """Case: what the model writes, and what it says beside calls, thinks and calls."""
    family = FAMILIES[name]
    write, thinks = family["write"], family.get("thinks", ("", ""))
    first = "" if not family.get("opens") else "Hm." + thinks[1]
    behind, last = family.get("frame", ("", ""))
    cases = []

    def add(case, text, calls, content="", reasoning="", **more):
        ids = family["ids"](calls) if "ids" in family else None
        cases.append(dict(case=case, text=text, content=content, reasoning=reasoning,
                          calls=[[n, a] for n, a in calls], ids=ids, **more))

    for case, calls in CALLS.items():
        if (family.get("single") and len(calls) > 1) or (family.get("flat") and TRIP in calls):
            continue
        add(case, first + behind + write(calls) + last, calls, reasoning="Hm." if first else "")
    if family.get("channels"):
        add("thought", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" +
            write([WEATHER]), [WEATHER], reasoning="Hm.")
        add("preamble", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" +
            write([WEATHER]), [WEATHER], content="I look.")
        add("answer", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
            "<|channel|>final<|message|>It rains.", [], content="It rains.", reasoning="Hm.")
        return cases
    for case, text, calls in family.get("more", []):
        add(case, first + behind + text, calls, reasoning="Hm." if first else "")
    add("prose", first + "I look. " + behind + write([WEATHER]) + last, [WEATHER], content="I look.",
        reasoning="Hm." if first else "")
    add("prose two", first + "I look.\n\n" + behind + write([WEATHER, ITEM]) + last, [WEATHER, ITEM],
        content="I look.", reasoning="Hm." if first else "")
    if thinks[1] and not first:
        add("thought", thinks[0] + "Hm. {x}" + thinks[1] + write([WEATHER]), [WEATHER],
            reasoning="Hm. {x}")
    plain = "a < b, [x] {y} and <tool"
    add("plain", first + plain + behind + last, [], content=plain, reasoning="Hm." if first else "")
    cut = write([WEATHER])[:len(write([WEATHER])) * 2 // 3]
    add("cut", first + behind + cut, [], content=cut, reasoning="Hm." if first else "", cut=True)
    if "{" not in write([PING])[1:] and not family.get("bare"):
        return cases
    if "city\"" in write([WEATHER]):
        broken = write([WEATHER]).replace('"city":', '"city"')
        add("broken", first + broken, [], content=broken, reasoning="Hm." if first else "", cut=True)
    return cases


def tools():
    return [{"type": "function", "function": {
        "name": name, "description": text, "parameters": {
            "type": "object", "properties": properties, "required": required}}}
        for name, text, properties, required in TOOLS]


def load_parsers(folder):
    """The package's modules without what they do not need here."""
    import types
    from typing import Any, Optional
    from pydantic import BaseModel
    sys.path.insert(0, folder)

    class Function(BaseModel):
        description: Optional[str] = None
        name: str
        parameters: Any = None
        strict: bool = False

    class Tool(BaseModel):
        type: str = "function"
        function: Function

    class Off:
        def __getattr__(self, name):
            return types.SimpleNamespace(get=lambda: False)

    for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(folder, name.replace(".", "/"))]
        sys.modules[name] = module
    protocol = types.ModuleType("sglang.srt.entrypoints.openai.protocol")
    protocol.Tool, protocol.ToolChoice = Tool, object
    sys.modules[protocol.__name__] = protocol
    xgrammar = types.ModuleType("xgrammar")
    xgrammar.__getattr__ = lambda name: object
    xgrammar.__path__ = []
    sys.modules["xgrammar"] = sys.modules["xgrammar.structural_tag"] = xgrammar
    environ = types.ModuleType("sglang.srt.environ")
    environ.envs = Off()
    sys.modules[environ.__name__] = environ
    return [Tool(**tool) for tool in tools()]


class Vocabulary:
    def __init__(self, tokens):
        self.tokens = {token: i for i, token in enumerate(tokens)}

    def get_vocab(self):
        return self.tokens


def ask_parser(family, known, text):
    import importlib
    try:
        module, name = family["parser"]
        make = getattr(importlib.import_module("sglang.srt.function_call." + module), name)
        parser = make(Vocabulary(family["vocabulary"])) if "vocabulary" in family else make()
        found = parser.detect_and_parse(text, known)
        return {"text": found.normal_text or "",
                "calls": [[c.name, json.loads(c.parameters)] for c in found.calls]}
    except Exception as error:  # what it refuses is a result, too
        return {"error": type(error).__name__}


def written(families):
    """The file: a case a line."""
    parts = []
    for name, family in families.items():
        cases = ",\n".join(dump(case) for case in family["cases"])
        head = {"template": family["template"], **({"kwargs": family["kwargs"]} if "kwargs" in family else {})}
        parts.append(f'{dump(name)}: {dump(head)[:-1]}, "cases": [\n{cases}]}}')
    return '{"tools": ' + dump(tools()) + ',\n"families": {\n' + ",\n".join(parts) + "}}\n"


def main():
    known = load_parsers(sys.argv[1]) if len(sys.argv) > 1 else None
    families = {}
    for name, family in FAMILIES.items():
        cases = cases_of(name)
        for case in cases:
            rest = case["text"].partition(family["thinks"][1])[2] if family.get("opens") else case["text"]
            if known is not None and "parser" in family and (rest != case["text"] or
                                                             not case["reasoning"]):
                case["sglang"] = ask_parser(family, known, rest)
        families[name] = dict(family, cases=cases)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus.json")
    with open(path, "w", encoding="utf-8") as out:
        out.write(written(families))


if __name__ == "__main__":
    main()
