# SPDX-License-Identifier: MIT
"""Answers of /v1/responses that a later request names: what it gets must be what it would get with
the whole conversation in its input, and what is kept is bounded. Arguments: the command, a model."""
import json
import sys
import tempfile

from serving import HERMES, SMALL, Server, check, end_of_test, wait_until

command, model = sys.argv[1:3]
PATH = "/v1/responses"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
TOOL = {"type": "function", "name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


def ask(server, text, headers=None, expected=200, **fields):
    status, answer = server.post(PATH, dict({"input": text, "temperature": 0, "max_output_tokens": 12}, **fields),
                                 headers)
    check(f"{str(fields)[:200]}: status", status == expected, answer)
    return answer


def user(text):
    return {"role": "user", "content": text}


def same(what, one, other):
    check(what, [i.get("content") for i in one["output"]] == [i.get("content") for i in other["output"]] and
          one["usage"]["input_tokens"] == other["usage"]["input_tokens"], (one, other))


def test_conversation(server):
    first = ask(server, "Once upon a time")
    check("kept", first["store"] is True and first["previous_response_id"] is None, first)
    second = ask(server, "and then?", previous_response_id=first["id"])
    check("names the first", second["previous_response_id"] == first["id"], second)
    items = [user("Once upon a time"), *first["output"], user("and then?")]
    same("the second", second, ask(server, items))
    third = ask(server, [user("go on"), user("please")], previous_response_id=second["id"])
    items += [*second["output"], user("go on"), user("please")]
    same("the third", third, ask(server, items))
    fork = ask(server, "or else?", previous_response_id=first["id"])
    same("a fork", fork, ask(server, [user("Once upon a time"), *first["output"], user("or else?")]))
    check("instructions are not kept", ask(server, "Once", instructions="Be brief.")["usage"]["input_tokens"] <
          ask(server, "a", previous_response_id=first["id"], instructions="Be brief.")["usage"]["input_tokens"])
    # A stream is kept, too.
    status, _, data = server.request("POST", PATH, {
        "input": "and then?", "temperature": 0, "max_output_tokens": 12, "stream": True,
        "previous_response_id": first["id"]})
    events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]
    final = events[-1]["response"]
    same("streamed", final, second)
    same("after a stream", ask(server, [user("go on"), user("please")], previous_response_id=final["id"]), third)
    # Not kept: with store false, with an error, of nobody.
    unkept = ask(server, "Once", store=False)
    check("store false", unkept["store"] is False, unkept)
    for name in (unkept["id"], "resp_0", "x" * 100, first["id"] + "0"):
        answer = ask(server, "a", previous_response_id=name, expected=400)
        check("not found", answer["error"]["code"] == "previous_response_not_found" and
              answer["error"]["param"] == "previous_response_id", answer)
    for name in (3, "", ["a"]):
        check("no name", ask(server, "a", previous_response_id=name, expected=400)["error"]["param"] ==
              "previous_response_id", name)


def test_calls(server):
    """The model's call is kept; its result alone comes with the next request."""
    forced = {"grammar": "root ::= " + json.dumps("I look. " + CALL), "max_output_tokens": 200}
    first = ask(server, "What is the weather?", tools=[TOOL], **forced)
    check("a call", [i["type"] for i in first["output"]] == ["message", "function_call"], first)
    result = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "sunny"}
    second = ask(server, [result], tools=[TOOL], previous_response_id=first["id"])
    same("its result", second, ask(server, [user("What is the weather?"), *first["output"], result], tools=[TOOL]))


def test_clients(command, options):
    """An answer is found by the client whose it is."""
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("one\ntwo\n")
        keys.flush()
        server = Server(command, model, *options, "--api-key-file", keys.name)
        try:
            one, two = ({"Authorization": "Bearer " + key} for key in ("one", "two"))
            first = ask(server, "Once", headers=one)
            ask(server, "a", headers=one, previous_response_id=first["id"])
            ask(server, "a", headers=two, previous_response_id=first["id"], expected=400)
        finally:
            check("exit", server.close() == 0, server.log)


def test_bounds(server):
    """The oldest leave; what is left is within its bound, and requests get it where they need it."""
    limit = server.metrics()["request_bytes_limit"]
    text = "word " * 5000
    hidden = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}  # of the template
    ids, most = [], 0
    for i in range(limit // 4 // len(text) + 8):
        ids.append(ask(server, [hidden, user("a")], max_output_tokens=1)["id"])
        most = max(most, server.metrics()["kept_answer_bytes"])
    check("the bound", limit // 8 < most <= limit // 4, (most, limit))
    ask(server, "a", previous_response_id=ids[0], expected=400)
    check("the newest", ask(server, "a", previous_response_id=ids[-1], max_output_tokens=1))
    check("the rest is released", wait_until(lambda: server.metrics()["request_bytes"] == 0), server.metrics())
    # A body may be a quarter of what all requests may take: four of them, and what is kept gives way.
    kept = server.metrics()["kept_answer_bytes"]
    size = limit // 4 - 4096
    held = [server.connect() for _ in range(4)]
    for connection in held:
        connection.putrequest("POST", "/tokenize")
        connection.putheader("Content-Length", str(size + 16))
        connection.endheaders(b'{"content": "' + b"a" * (size - 100))
    check("what is kept gives way", wait_until(lambda: server.metrics()["kept_answer_bytes"] < kept // 2),
          server.metrics())
    for connection in held:
        connection.close()
    check("all is released", wait_until(lambda: server.metrics()["request_bytes"] == 0), server.metrics())
    check("the peak", server.metrics()["request_bytes_peak"] <= limit, server.metrics())


with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
    file.write(HERMES)
    file.flush()
    own = ("--chat-template", file.name, "-t", "1")
    server = Server(command, model, *own, "-c", "8192", "--host-memory", "256M")
    try:
        test_conversation(server)
        test_calls(server)
        if not SMALL:
            test_bounds(server)
    finally:
        check("exit", server.close() == 0, server.log)
    test_clients(command, own)
end_of_test()
