# SPDX-License-Identifier: MIT
"""Answers that may be calls and have a form all the same: tools beside response_format, and strict
tools where no call is asked for. Arguments: the command, a model."""
import json
import os
import sys
import tempfile

from serving import FORCED, HERMES, Server, check, end_of_test
from with_tokens import with_tokens

command, model = sys.argv[1:3]
CHAT = "/v1/chat/completions"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                               "days": {"type": "integer", "minimum": 3, "maximum": 7}},
              "required": ["city", "days"], "additionalProperties": False}
FORM = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["n"], "additionalProperties": False}
MARKS = ["<tool_call>", "</tool_call>"]
FRAME = ["<|open|>", "<|close|>", "<|sep|>"]  # of Kimi-K3's tags
TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "template", "templates")


def tool(**fields):
    return {"type": "function", "function": dict({"name": "get_weather", "parameters": PARAMETERS}, **fields)}


def as_form(schema=None, **fields):
    return {"type": "json_schema", "json_schema": dict({"name": "f", "schema": schema or FORM}, **fields)}


def ask(server, **fields):
    body = dict({"messages": [{"role": "user", "content": "What is new?"}], "temperature": 1.2, "max_tokens": 160,
                 "tools": [tool()]}, **fields)
    status, headers, data = server.request("POST", CHAT, body)
    answer = json.loads(data)
    check(f"{fields}: status", status == 200, answer)
    return (answer["choices"][0] if status == 200 else None), headers


def calls_of(choice):
    return [json.loads(c["function"]["arguments"]) for c in choice["message"].get("tool_calls") or []]


def fits(call):
    return set(call) == {"city", "days"} and len(call["city"]) <= 8 and call["days"] in range(3, 8)


def has_form(choice):
    value = json.loads(choice["message"]["content"])
    return set(value) == {"n"} and value["n"] in range(10, 100)


def one_token(server, text):
    ids = server.post("/tokenize", {"content": text, "add_special": False})[1]["tokens"]
    return ids[0] if len(ids) == 1 else None


def test_formed(server, opening):
    """With a form the answer is a call or follows it; a bias decides which."""
    check("nothing is dropped", server.get("/props")[1]["schema_dropped"] == [])
    begin = one_token(server, opening)
    for weight in (100, -100):
        for seed in range(3):
            choice, _ = ask(server, response_format=as_form(), seed=seed, parallel_tool_calls=False,
                            logit_bias={str(begin): weight})
            if choice is None or choice["finish_reason"] == "length":
                continue
            calls = calls_of(choice)
            check(f"{opening}: a call", calls and fits(calls[0]) and not choice["message"]["content"]
                  if weight > 0 else not calls and has_form(choice), choice)
    choice, _ = ask(server, response_format={"type": "json_object"}, logit_bias={str(begin): -100}, seed=5)
    check("any object", choice and (choice["finish_reason"] == "length" or isinstance(
        json.loads(choice["message"]["content"]), dict)), choice)
    choice, _ = ask(server, response_format=as_form(), tool_choice="required", seed=1, parallel_tool_calls=False)
    check("a call is asked for", choice and fits(calls_of(choice)[0]), choice)
    choice, _ = ask(server, response_format=as_form(), tool_choice="none", seed=1)
    check("none is wanted", choice and has_form(choice), choice)
    _, headers = ask(server, response_format=as_form(dict(FORM, **{"not": {"const": 5}})), max_tokens=4)
    check("what the form lost", headers["X-Schema-Dropped"] == "response_format: not", dict(headers))
    dropped = server.get("/props")[1]["schema_dropped"]
    check("props", dropped == ["not"], dropped)
    status, answer = server.post(CHAT, {
        "messages": [{"role": "user", "content": "a"}], "tools": [tool()],
        "response_format": as_form(dict(FORM, **{"not": {"const": 5}}), strict=True)})
    check("a strict form", status == 400 and "not" in answer["error"]["message"], answer)
    body = {"input": "What is new?", "max_output_tokens": 60, "tools": [
        dict(tool()["function"], type="function")], "text": {"format": dict(type="json_schema", name="f", schema=FORM)}}
    status, answer = server.post("/v1/responses", body)
    check("responses", status == 200 and (answer["output"][0]["type"] == "function_call" or
          answer["status"] == "incomplete" or json.loads(answer["output"][0]["content"][0]["text"])["n"] > 9), answer)


def test_strict(server, opening):
    """Text is free, and a call within it is held to its schema."""
    begin = one_token(server, opening)
    n_texts = n_calls = 0
    for seed in range(6):
        choice, headers = ask(server, tools=[tool(strict=True)], seed=seed, parallel_tool_calls=False,
                              max_tokens=80, logit_bias={str(begin): 100} if opening in MARKS and seed % 2 else {})
        check("held whole", headers["X-Schema-Dropped"] is None, dict(headers))
        if choice is None:
            continue
        calls = calls_of(choice)
        n_calls += len(calls)
        n_texts += not calls and len(choice["message"]["content"]) > 20
        check("strict calls", all(map(fits, calls)) and MARKS[0] not in (choice["message"]["content"] or ""), choice)
    check("texts", n_texts > 0, n_texts)
    check("calls", n_calls > 0 or opening not in MARKS, n_calls)
    _, headers = ask(server, tools=[tool(parameters={"type": "object", "not": {}})], max_tokens=1)
    check("not strict, not held", headers["X-Schema-Dropped"] is None, dict(headers))
    status, answer = server.post(CHAT, {
        "messages": [{"role": "user", "content": "a"}],
        "tools": [tool(strict=True, parameters={"type": "object", "not": {}})]})
    check("strict, and cannot be held", status == 400 and "not" in answer["error"]["message"], answer)


def with_server(path, opening):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(HERMES)
        file.flush()
        server = Server(command, path, "--chat-template", file.name, "-c", "2048", "-t", "1")
        try:
            test_formed(server, opening)
            test_strict(server, opening)
        finally:
            check("exit", server.close() == 0, server.log)


def test_framed(path):
    """Kimi-K3 writes marks around its answer: a grammar has them, and nobody is shown them."""
    server = Server(command, path, "--chat-template", os.path.join(TEMPLATES, "kimi-k3.jinja"), "-c", "2048", *FORCED)
    try:
        begin, close = (one_token(server, tag) for tag in FRAME[:2])
        for thinks in (True, False):
            # The bias ends a thought, and then a text, as soon as may be, and rather begins a call than ends.
            fields = {"chat_template_kwargs": {"thinking": thinks}, "logit_bias": {str(begin): 100, str(close): 90},
                      "parallel_tool_calls": False, "seed": 1}
            choice, _ = ask(server, response_format=as_form(), tool_choice="none", **fields)
            check("a form", choice and choice["finish_reason"] == "stop" and has_form(choice), choice)
            for more in ({"response_format": as_form()}, {"tool_choice": "required"},
                         {"tools": [tool(strict=True)]}):
                choice, _ = ask(server, **more, **fields)
                check(f"a call in a frame, {more}", choice and choice["finish_reason"] == "tool_calls" and
                      fits(calls_of(choice)[0]) and not choice["message"]["content"], choice)
        fields["logit_bias"] = {str(close): -100}
        choice, _ = ask(server, response_format=as_form(), **fields)
        check("a form instead of a call", choice and has_form(choice) and not calls_of(choice), choice)
        status, answer = server.post(CHAT, {"messages": [{"role": "user", "content": "a"}],
                                            "reasoning_effort": "minimal"})
        check("an effort the template has not", status == 400 and "low, medium, high, and max" in
              answer["error"]["message"], answer)
    finally:
        check("exit", server.close() == 0, server.log)


with_server(model, "<")
with tempfile.TemporaryDirectory() as folder:
    marked = os.path.join(folder, "marked.gguf")
    with_tokens(model, marked, MARKS)
    with_server(marked, MARKS[0])
    with_tokens(model, marked, FRAME)
    test_framed(marked)
end_of_test()
