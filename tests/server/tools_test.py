# SPDX-License-Identifier: MIT
"""Tools over HTTP, with the chat templates of many models. The grammar of a request makes the demo
model write what such a model would, and the server has to tell the calls from it; and where a call
is required, what the demo model writes by itself has to be one. Arguments: the command, a model, the
folder of templates."""
import json
import os
import sys
import tempfile

from serving import FORCED, SMALL, Server

command, model, folder = sys.argv[1:4]
only = sys.argv[4:]
if not only and SMALL:
    only = ["qwen3", "qwen3-coder", "deepseek-v3.1", "mistral-nemo"]  # under sanitizers, four forms
failed = 0
n_checks = 0

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}}},
    {"type": "function", "function": {
        "name": "add-item", "description": "Adds to a list.",
        "parameters": {"type": "object", "properties": {
            "text": {"type": "string"}, "done": {"type": "boolean"},
            "kind": {"type": "string", "enum": ["a b", "c"]}}, "required": ["text", "kind"]}}}]
ONE = [("get_weather", {"city": "Zürich", "days": 3})]
TWO = ONE + [("add-item", {"text": "milk \"fresh\"\nand </b> [x] {y}", "done": True, "kind": "c"})]


def as_json(calls, open_, close, between="", key="arguments"):
    return between.join(open_ + json.dumps({"name": n, key: a}, ensure_ascii=False) + close
                        for n, a in calls)


def by_tags(calls, open_, after_name, key, value, close, end, between="\n"):
    def text(v):
        return v if isinstance(v, str) else json.dumps(v)
    return between.join(open_ + n + after_name + "".join(
        key + k + value + text(v) + close for k, v in a.items()) + end for n, a in calls)


def deepseek31(calls):
    return "<｜tool▁calls▁begin｜>" + "".join(
        f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{json.dumps(a)}<｜tool▁call▁end｜>"
        for n, a in calls) + "<｜tool▁calls▁end｜>"


def deepseek3(calls):
    return "<｜tool▁calls▁begin｜>" + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{json.dumps(a)}\n```"
        "<｜tool▁call▁end｜>" for n, a in calls) + "<｜tool▁calls▁end｜>"


def kimi(calls):
    return "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{json.dumps(a)}"
        "<|tool_call_end|>" for i, (n, a) in enumerate(calls)) + "<|tool_calls_section_end|>"


def hermes(calls):
    return as_json(calls, "<tool_call>\n", "\n</tool_call>", "\n")


def qwen_coder(calls):
    return by_tags(calls, "<tool_call>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n",
                   "</function>\n</tool_call>")


# Template: how its model writes calls; whether the template has more than one in a turn.
FORMATS = {
    "qwen3": (hermes, True),
    "qwq": (hermes, True),
    "qwen3-coder": (qwen_coder, True),
    "step-3.5": (qwen_coder, True),
    "glm-4.6": (lambda c: by_tags(c, "<tool_call>", "\n", "<arg_key>", "</arg_key>\n<arg_value>",
                                  "</arg_value>\n", "</tool_call>"), True),
    "glm-4.7-flash": (lambda c: by_tags(c, "<tool_call>", "", "<arg_key>", "</arg_key><arg_value>",
                                        "</arg_value>", "</tool_call>", ""), True),
    "deepseek-v3.1": (deepseek31, True),
    "deepseek-v3": (deepseek3, True),
    "mistral-small-3.2": (lambda c: "".join(
        f"[TOOL_CALLS]{n}[CALL_ID]abcdefgh{i}[ARGS]{json.dumps(a)}"
        for i, (n, a) in enumerate(c)), True),
    "mistral-nemo": (lambda c: "[TOOL_CALLS][" + ", ".join(
        json.dumps({"name": n, "arguments": a, "id": f"abcdefgh{i}"})
        for i, (n, a) in enumerate(c)) + "]", True),
    "minimax-m2": (lambda c: "<minimax:tool_call>\n" + by_tags(
        c, '<invoke name="', '">\n', '<parameter name="', '">', "</parameter>\n", "</invoke>") +
        "\n</minimax:tool_call>", True),
    "seed-oss": (lambda c: by_tags(c, "<seed:tool_call>\n<function=", ">\n", "<parameter=", ">",
                                   "</parameter>\n", "</function>\n</seed:tool_call>"), True),
    "functionary-v3.1": (lambda c: "".join(f"<function={n}>{json.dumps(a)}</function>"
                                           for n, a in c), True),
    "kimi-like": (kimi, True),
    "llama-like": (lambda c: as_json(c, "", "", key="parameters"), False),
    "dots-like": (lambda c: "<dots_function_call>\n" + by_tags(
        c, '<invoke name="', '">\n', '<parameter name="', '">', "</parameter>\n", "</invoke>") +
        "\n</dots_function_call>", True),
}

# Templates in the form of Kimi-K2's, which writes ids, of Llama 3.1's, which takes one call, and with dots.3's calls.
OWN = {
    "kimi-like": """{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for message in messages -%}<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>{{ message.content or '' }}
{%- if message.tool_calls -%}<|tool_calls_section_begin|>{%- for call in message.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>
{%- endfor -%}<|tool_calls_section_end|>{%- endif -%}<|im_end|>{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}""",
    "llama-like": """{%- if tools %}{{ tools | tojson }}{% endif %}{%- for message in messages %}
{%- if message.tool_calls %}{%- if message.tool_calls | length != 1 %}{{ raise_exception("one call") }}{% endif %}
{%- set call = message.tool_calls[0].function %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
{%- else %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}{% endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "dots-like": """{%- if tools %}<|system|>{{ tools | tojson }}<|endofsystem|>{% endif %}{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content or '' }}{%- if message.tool_calls %}{{ '<dots_function_call>' }}
{%- for call in message.tool_calls %}{{ '\\n<invoke name="' + call.function.name + '">' }}
{%- for key, value in call.function.arguments.items() %}
{{- '\\n<parameter name="' + key + '">' }}{{ value if value is string else value | tojson }}{{ '</parameter>' }}{% endfor %}
{{- '\\n</invoke>' }}{% endfor %}{{ '\\n</dots_function_call>' }}{% endif %}<|endof{{ message.role }}|>
{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
}


def check(what, holds, shown=""):
    global failed, n_checks
    n_checks += 1
    if not holds:
        failed += 1
        print(f"FAIL {what}: {shown!r}"[:1500])


def forced(text):
    """A grammar of this one text."""
    return "root ::= " + json.dumps(text, ensure_ascii=False)


def body(**fields):
    return dict({"messages": [{"role": "user", "content": "What is new?"}], "tools": TOOLS,
                 "temperature": 0}, **fields)


def calls_of(message):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message.get("tool_calls") or []]


def streamed(events):
    """Content, calls and the reason of the end out of a stream's deltas."""
    content, calls, reason = "", {}, None
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else []:
            delta = choice["delta"]
            content += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                known = calls.setdefault(call["index"], {"id": call.get("id"), "function": {
                    "name": call["function"].get("name"), "arguments": ""}})
                known["function"]["arguments"] += call["function"]["arguments"]
            reason = choice["finish_reason"] or reason
    return content, [calls[i] for i in sorted(calls)], reason


# What models write first whose template has opened their reasoning.
THOUGHT = {name: "Hm.</think>" for name in ("qwq", "step-3.5", "glm-4.7-flash", "minimax-m2")}


def told(server, name, text, calls, content, streams=False, **fields):
    """The calls and the content are told from this text, whole and, if wanted, streamed."""
    asked = body(grammar=forced(THOUGHT.get(name, "") + text), max_tokens=2000, **fields)
    status, answer = server.post("/v1/chat/completions", asked)
    check(f"{name}: status", status == 200, answer)
    if status != 200:
        return
    choice = answer["choices"][0]
    message = choice["message"]
    check(f"{name}: calls of {text!r}", calls_of(message) == calls, choice)
    check(f"{name}: content of {text!r}", (message["content"] or "") == content, choice)
    check(f"{name}: reason", choice["finish_reason"] == ("tool_calls" if calls else "stop"), choice)
    ids = [c["id"] for c in message.get("tool_calls") or []]
    check(f"{name}: ids", len(set(ids)) == len(ids) and all(ids), ids)
    if not streams:
        return
    content_, calls_, reason = streamed(server.stream("/v1/chat/completions", asked))
    if not calls and calls_:  # what was told of a call stays when it is cut off
        begun = calls_[0]["function"]
        check(f"{name}: a call that was cut off", len(calls_) == 1 and content_ == "" and
              begun["name"] == ONE[0][0] and begun["arguments"].startswith("{"), (content_, calls_))
        return
    check(f"{name}: streamed", (content_, calls_of({"tool_calls": calls_}), reason) ==
          (content, calls, choice["finish_reason"]), (content_, calls_, reason))


def fits(calls):
    """Arguments that the tools' schemas allow."""
    for name, arguments in calls:
        if name == "get_weather":
            if not (set(arguments) == {"city", "days"} and isinstance(arguments["city"], str) and
                    isinstance(arguments["days"], int)):
                return False
        elif name == "add-item":
            if not ({"text", "kind"} <= set(arguments) <= {"text", "done", "kind"} and
                    isinstance(arguments["text"], str) and arguments["kind"] in ("a b", "c") and
                    isinstance(arguments.get("done", True), bool)):
                return False
        else:
            return False
    return True


def required(server, name):
    """What the model writes under the grammar is a call, unless it is cut off."""
    for choice, fields in (("required", {}),
                           ({"type": "function", "function": {"name": "add-item"}}, {}),
                           ("required", {"parallel_tool_calls": False})):
        for seed in (1,):
            status, answer = server.post("/v1/chat/completions", body(
                tool_choice=choice, temperature=0.7, seed=seed, max_tokens=100, **fields))
            check(f"{name}: required", status == 200, answer)
            if status != 200:
                return
            got = answer["choices"][0]
            calls = calls_of(got["message"])
            whole = got["finish_reason"] == "tool_calls"
            check(f"{name}: {choice}", whole or got["finish_reason"] == "length", got)
            check(f"{name}: {choice} calls", fits(calls) and (not whole or len(calls) > 0), got)
            check(f"{name}: {choice} content", not whole or not got["message"]["content"], got)
            if isinstance(choice, dict):
                check(f"{name}: the named one", all(n == "add-item" for n, _ in calls), got)
            if fields:
                check(f"{name}: one call", len(calls) <= 1, got)


def conversation(server, name, calls):
    """A call and its result go back through the template."""
    messages = [{"role": "user", "content": "What is new?"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "abcdefgh1" if name != "kimi-like" else "functions.get_weather:0",
                     "type": "function",
                     "function": {"name": n, "arguments": json.dumps(a)}} for n, a in calls[:1]]},
                {"role": "tool", "tool_call_id": "abcdefgh1", "content": "sunny-result"}]
    status, answer = server.post("/apply-template", {"messages": messages, "tools": TOOLS})
    check(f"{name}: a conversation", status == 200 and "sunny-result" in answer["prompt"] and
          "get_weather" in answer["prompt"], answer)


def kept_schema(server, name):
    """A keyword that cannot be held is left out alone and told of; strict tools are refused."""
    tool = {"name": "count", "parameters": {"type": "object", "properties": {
        "n": {"type": "integer", "minimum": 3, "maximum": 7, "not": {"const": 5}}}, "required": ["n"]}}
    asked = body(tools=[{"type": "function", "function": tool}], tool_choice="required", seed=1,
                 temperature=1, max_tokens=200)
    status, headers, data = server.request("POST", "/v1/chat/completions", asked)
    got = json.loads(data)
    check(f"{name}: a schema with not", status == 200, got)
    check(f"{name}: what was dropped", headers["X-Schema-Dropped"] == "count: not of /n",
          dict(headers))
    if status == 200:
        calls = calls_of(got["choices"][0]["message"])
        check(f"{name}: the rest is held", calls and all(3 <= a["n"] <= 7 for _, a in calls), got)
    asked["tools"] = [{"type": "function", "function": dict(tool, strict=True)}]
    status, answer = server.post("/v1/chat/completions", asked)
    check(f"{name}: strict", status == 400 and "not" in answer["error"]["message"], answer)


def test_format(name, write, several):
    path = os.path.join(folder, name + ".jinja")
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8") as own:
        if name in OWN:
            own.write(OWN[name])
            own.flush()
            path = own.name
        forced = FORCED if name != "qwen3" else ["-t", "1"]  # whose last answer is not forced
        server = Server(command, model, "--chat-template", path, "-c", "4096", *forced)
        try:
            told(server, name, write(ONE), ONE, "")
            if name != "llama-like":
                told(server, name, "I look. " + write(ONE), ONE, "I look.")
            if several:
                told(server, name, write(TWO), TWO, "", streams=True)
                told(server, name, write(TWO), ONE, "", parallel_tool_calls=False)
            # What is cut off, or only looks like a call, stays text.
            cut = write(ONE)[:len(write(ONE)) * 2 // 3]
            told(server, name, cut, [], cut, streams=True)
            told(server, name, "a < b and [x] {y} <tool", [], "a < b and [x] {y} <tool")
            conversation(server, name, ONE)
            required(server, name)
            if name == "qwen3":
                kept_schema(server, name)
        finally:
            status = server.close()
        check(f"{name}: exit", status == 0, server.log)


def test_refusals():
    server = Server(command, model)
    try:
        status, answer = server.post("/v1/chat/completions", body())
        check("a template without tools", status == 400 and answer["error"]["param"] == "tools" and
              "template" in answer["error"]["message"], answer)
        status, answer = server.post("/v1/chat/completions", body(tool_choice="none", max_tokens=4))
        check("no tools wanted", status == 200, answer)
        for fields, param in (({"tools": [{"type": "web_search"}]}, "tools"),
                              ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
                              ({"tools": [{"type": "function", "function": {
                                  "name": "f", "parameters": 3}}]}, "tools"),
                              ({"tools": {}}, "tools"),
                              ({"tool_choice": "sometimes"}, "tool_choice"),
                              ({"tool_choice": {"type": "function"}}, "tool_choice"),
                              ({"tool_choice": {"type": "function",
                                                "function": {"name": "other"}}}, "tool_choice"),
                              ({"tools": [], "tool_choice": "required"}, "tool_choice"),
                              ({"parallel_tool_calls": 3}, "parallel_tool_calls")):
            status, answer = server.post("/v1/chat/completions", body(**fields))
            check(f"refusal of {fields}", status == 400 and answer["error"]["param"] == param, answer)
    finally:
        server.close()


for name, (write, several) in FORMATS.items():
    if not only or name in only:
        test_format(name, write, several)
if not sys.argv[4:]:
    test_refusals()
print(f"{n_checks} checks, {failed} failed")
sys.exit(failed > 0)
