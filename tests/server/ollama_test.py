# SPDX-License-Identifier: MIT
"""Ollama's interface: /api/chat, generate, tags, show. Texts are compared with those of OpenAI's for
the same prompt; with the package `ollama`, if it is installed, its client does so, too. Arguments:
the command, a model."""
import json
import sys
import tempfile

from serving import HERMES, Server, check, end_of_test

try:
    import ollama
except ImportError:
    ollama = None

command, model = sys.argv[1:3]
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once upon"}]
FIXED = {"temperature": 0, "num_predict": 12, "num_ctx": 4096}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ulm", "days": 2}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                               "days": {"type": "integer", "minimum": 3, "maximum": 7}},
              "required": ["city", "days"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


def lines(server, path, body):
    status, headers, data = server.request("POST", path, body)
    check(f"{path}: a stream", status == 200 and headers["Content-Type"] == "application/x-ndjson", data)
    return [json.loads(line) for line in data.decode().splitlines()]


def openai(server, path, **fields):
    answer = server.post(path, dict({"temperature": 0, "max_tokens": 12}, **fields))[1]
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"], answer["usage"]["prompt_tokens"]


def test_chat(server):
    expected, n = openai(server, "/v1/chat/completions", messages=ASKED)
    status, answer = server.post("/api/chat", {"model": "any:latest", "messages": ASKED, "stream": False,
                                               "options": FIXED, "keep_alive": "5m"})
    check("chat", status == 200 and answer["message"] == {"role": "assistant", "content": expected} and
          answer["prompt_eval_count"] == n and answer["eval_count"] == 12 and answer["done"] is True and
          answer["done_reason"] == "length" and answer["total_duration"] > 0, answer)
    told = lines(server, "/api/chat", {"messages": ASKED, "options": FIXED})
    check("a chat that streams", "".join(t["message"]["content"] for t in told) == expected and
          [t["done"] for t in told] == (len(told) - 1) * [False] + [True] and told[-1]["eval_count"] == 12, told)
    check("created_at", all(t["created_at"].endswith("Z") for t in told))


def test_generate(server):
    body = {"prompt": "Once upon", "system": "Be brief.", "options": FIXED, "stream": False}
    answer = server.post("/api/generate", body)[1]
    check("generate", (answer["response"], answer["prompt_eval_count"]) ==
          openai(server, "/v1/chat/completions", messages=ASKED), answer)
    raw = openai(server, "/v1/completions", prompt="Once upon")
    answer = server.post("/api/generate", dict(body, raw=True))[1]
    check("raw", (answer["response"], answer["prompt_eval_count"]) == raw, answer)
    told = lines(server, "/api/generate", {"prompt": "Once upon", "raw": True, "options": FIXED})
    check("generate streams", "".join(t["response"] for t in told) == raw[0], told)


def test_tools(server):
    """Calls are whole, and their arguments are objects; they go back as such."""
    body = {"messages": [ASKED[1]], "tools": [TOOL], "options": {"num_predict": 200, "seed": 1}}
    for seed in range(3):
        answer = server.post("/api/chat", dict(body, stream=False, format=PARAMETERS,
                                               options={"num_predict": 200, "seed": seed}))[1]
        calls = answer["message"].get("tool_calls") or []
        check("a call or the form", answer["done_reason"] == "length" or all(
            value["days"] in range(3, 8) for value in
            ([c["function"]["arguments"] for c in calls] or [json.loads(answer["message"]["content"])])), answer)
    call = {"function": {"name": "get_weather", "arguments": {"city": "Ulm", "days": 2}}}
    told = [ASKED[1], {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
    as_openai = [told[0], {"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments":
                                                     json.dumps(call["function"]["arguments"])}}]}, told[2]]
    answer = server.post("/api/chat", dict(body, messages=told, options=FIXED, stream=False))[1]
    check("a call goes back", (answer["message"]["content"], answer["prompt_eval_count"]) == openai(
        server, "/v1/chat/completions", messages=as_openai, tools=[TOOL]), answer)


def test_forced(server):
    """What the model writes as a call, in a stream: one line has it whole."""
    body = {"messages": [ASKED[1]], "tools": [TOOL], "grammar": "root ::= " + json.dumps("I look. " + CALL),
            "options": {"num_predict": 200}}
    told = lines(server, "/api/chat", body)
    calls = [c for t in told for c in t["message"].get("tool_calls", [])]
    check("a call in a stream", [c["function"] for c in calls] == [
        {"name": "get_weather", "arguments": {"city": "Ulm", "days": 2}}] and
        "".join(t["message"]["content"] for t in told) == "I look.", told)


def test_about(server):
    tags = server.get("/api/tags")[1]["models"]
    check("tags", [t["name"] for t in tags] == ["first", "second"] and tags[0]["size"] > 0 and
          tags[0]["details"]["format"] == "gguf", tags)
    status, about = server.post("/api/show", {"model": "first"})
    check("show", status == 200 and "tools" in about["capabilities"] and "completion" in about["capabilities"] and
          about["model_info"]["general.architecture"] == tags[0]["details"]["family"], about)
    check("version", server.get("/api/version")[1]["version"])


def test_refusals(server):
    for path, wrong in (("/api/chat", {}), ("/api/chat", {"messages": []}), ("/api/generate", {}),
                        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}),
                        ("/api/generate", {"prompt": 3}), ("/api/generate", {"prompt": "a", "images": ["x"]}),
                        ("/api/chat", {"messages": ASKED, "options": {"temperature": -1}}),
                        ("/api/chat", {"messages": ASKED, "format": "xml"}),
                        ("/api/generate", {"prompt": "a", "suffix": "b"})):
        status, answer = server.post(path, wrong)
        check(f"refusal of {wrong}", status == 400 and isinstance(answer["error"], str), answer)


def test_package(server):
    client = ollama.Client(host=f"http://127.0.0.1:{server.port}")
    expected, _ = openai(server, "/v1/chat/completions", messages=ASKED)
    check("its chat", client.chat("first", messages=ASKED, options=FIXED).message.content == expected)
    check("its stream", "".join(p.message.content for p in client.chat(
        "first", messages=ASKED, options=FIXED, stream=True)) == expected)
    check("its generate", client.generate("first", "Once upon", raw=True, options=FIXED).response ==
          openai(server, "/v1/completions", prompt="Once upon")[0])
    formed = client.chat("first", messages=ASKED, format=PARAMETERS, options={"num_predict": 200, "seed": 1})
    check("its format", json.loads(formed.message.content)["days"] in range(3, 8), formed)
    check("its list", [m.model for m in client.list().models] == ["first", "second"])
    check("its show", "tools" in client.show("first").capabilities)
    print("ollama's package passed")


with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
    file.write(HERMES)
    file.flush()
    server = Server(command, model, "--chat-template", file.name, "-c", "2048", "-t", "1", "--alias", "first,second")
    try:
        for test in (test_chat, test_generate, test_tools, test_forced, test_about, test_refusals):
            test(server)
        if ollama is not None:
            test_package(server)
    finally:
        check("exit", server.close() == 0, server.log)
end_of_test()
