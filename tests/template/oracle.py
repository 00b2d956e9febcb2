# SPDX-License-Identifier: MIT
"""What jinja2 renders with the settings of transformers, and the conversations that templates are
tried with. Needs jinja2."""
import datetime
import functools
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1753358400


class Generation(jinja2.ext.Extension):
    """{% generation %} shows nowhere in the text."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW).strftime(f)
    return env


ENV = environment()
COMPILED = functools.lru_cache(maxsize=4)(ENV.from_string)


def render(template, variables):
    """The text, or None and the reason."""
    try:
        return COMPILED(template).render(**variables), None
    except Exception as error:  # whatever goes wrong is a refusal
        return None, f"{type(error).__name__}: {error}"


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place, \"quoted\" & <marked>.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A city\nor village"},
        "days": {"type": "integer", "enum": [1, 3, 7], "default": 1},
        "unit": {"type": ["string", "null"], "enum": ["°C", "°F"]},
        "at": {"type": "object", "properties": {"lat": {"type": "number", "minimum": -90.0}},
               "required": ["lat"]},
        "list": {"type": "array", "items": {"type": "string"}}},
        "required": ["place"]},
    "return": {"type": "number"}}},
    {"type": "function", "function": {
        "name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]


def call(name, arguments, number=0, as_text=False):
    if as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call0000{number}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def conversations():
    """(name, messages, tools)"""
    def user(text):
        return {"role": "user", "content": text}

    def system(text):
        return {"role": "system", "content": text}

    def answer(text, **more):
        return {"role": "assistant", "content": text, **more}

    yield "question", [user("Hello")], None
    yield "system", [system("Be brief."), user("Hello")], None
    yield "turns", [system(" Be brief. "), user(" Hi \n"), answer(" Hello! "), user("And?\n\n"),
                    answer("Well."), user("Bye")], None
    yield "turns without system", [user("1 + 1?"), answer("2"), user("+ 1?"), answer("3")], None
    yield "empty texts", [system(""), user(""), answer(""), user("x")], None
    yield "no messages", [], None
    yield "unicode", [user("Grüße, 世界 🌍 e\u0301 \u200d\u00a0\u3000 ß ﬁ"),
                      answer("Ünïcödé\u2028line"), user("a\tb\r\nc\\n")], None
    yield "markup", [system("{{ x }} {% if y %} {# z #}"), user("<|im_start|>\n</s>[INST] <b>'\""),
                     answer("{{ bos_token }}"), user("<think>\nx\n</think>\n\ny")], None
    yield "reasoning in the text", [user("q"), answer("<think>\nlong\n</think>\n\nshort"),
                                    user("q2"), answer("<think>only</think> b</think> c")], None
    yield "reasoning field", [user("q"), answer("short", reasoning_content="because\n"),
                              user("q2"), answer("end", reasoning_content="more")], None
    yield "thinking field", [user("q"), answer("short", thinking="because"), user("q2")], None
    yield "two users", [user("a"), user("b")], None
    yield "answer first", [answer("a"), user("b")], None
    yield "system in the middle", [user("a"), answer("b"), system("c"), user("d")], None
    yield "developer", [{"role": "developer", "content": "Do."}, user("a")], None
    yield "odd role", [{"role": "narrator", "content": "Once"}, user("a")], None
    yield "parts", [{"role": "user", "content": [{"type": "text", "text": "one"},
                                                 {"type": "text", "text": " two"}]},
                    answer([{"type": "text", "text": "three"}]), user("four")], None
    yield "image", [{"role": "user", "content": [{"type": "image"},
                                                 {"type": "text", "text": "what?"}]}], None
    yield "tools", [user("Weather?")], TOOLS
    yield "system and tools", [system("Be brief."), user("Weather?")], TOOLS
    yield "no tools in a list", [user("Weather?")], []
    for as_text in (False, True):
        kind = " as text" if as_text else ""
        place = {"place": "Zürich \"x\"", "days": 3, "exact": True, "none": None, "f": 1.5,
                 "deep": {"a": [1, "b"]}}
        yield "calls" + kind, [
            system("s"), user("Weather?"),
            answer("", tool_calls=[call("get_weather", place, 1, as_text)]),
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001",
             "content": "{\"t\": 21.5}"},
            answer("21.5 °C."), user("Thanks")], TOOLS
        yield "two calls" + kind, [
            user("Both?"),
            {"role": "assistant", "content": None,
             "tool_calls": [call("get_weather", {"place": "Bern"}, 1, as_text),
                            call("now", {}, 2, as_text)]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "20"},
            {"role": "tool", "name": "now", "tool_call_id": "call00002", "content": "12:00"}], TOOLS
    yield "call with reasoning", [
        user("w"), answer("I look.", reasoning_content="must look",
                          tool_calls=[call("now", {}, 1)]),
        {"role": "tool", "tool_call_id": "call00001", "content": "12:00"},
        answer("Noon.", reasoning_content="easy"), user("ok")], TOOLS
    yield "call without content", [
        user("w"), {"role": "assistant", "tool_calls": [call("now", {}, 1)]},
        {"role": "tool", "content": {"time": "12:00", "zone": None}}], TOOLS
    yield "result without call", [{"role": "tool", "content": "x"}], None
    yield "no content", [{"role": "user"}], None
    yield "null content", [{"role": "user", "content": None}], None
    yield "long", [m for i in range(12) for m in (user(f"q{i}"), answer(f"a{i}"))], None


MARKUP = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def settings():
    for generation in (True, False):
        yield {"add_generation_prompt": generation}
        for thinking in (True, False):
            yield {"add_generation_prompt": generation, "enable_thinking": thinking,
                   "thinking": thinking}
    yield {"add_generation_prompt": False, "continue_final_message": True}
    yield {"add_generation_prompt": True, "reasoning_effort": "high", "documents": [
        {"title": "T", "text": "Text", "contents": "c"}], "date_string": "26 Jul 2024",
        "custom_tools": None, "builtin_tools": ["code_interpreter"], "xml_tools": None,
        "keep_past_thinking": True, "model_identity": "Me.", "tools_in_user_message": False}


def cases():
    """(name, variables)"""
    for name, messages, tools in conversations():
        for number, more in enumerate(settings()):
            variables = {"messages": messages, "tools": tools, "documents": None}
            variables.update(more)
            yield f"{name}/{number}", variables
