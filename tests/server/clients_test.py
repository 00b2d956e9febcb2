# SPDX-License-Identifier: MIT
"""Fields as clients send them: each is mapped to what it means here, or changes nothing. Arguments:
the command, a model."""
import sys
import tempfile

from serving import HERMES, Server, check, end_of_test

command, model = sys.argv[1:3]
# It shows what it is told of reasoning, and closes answers.
TEMPLATE = """{{ reasoning_effort or 'own' }}{{ thinking_effort or '' }}{{ verbosity or '' }}/{{ enable_thinking if enable_thinking is defined else '-' }}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}[end]{% endif %}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
ASKED = [{"role": "user", "content": "Once upon"}]


def chat(server, **fields):
    status, answer = server.post("/v1/chat/completions", dict(
        {"messages": ASKED, "temperature": 0, "max_tokens": 12}, **fields))
    check(f"{fields}: status", status == 200, answer)
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def message(server, messages=None, **fields):
    status, answer = server.post("/v1/messages", dict(
        {"messages": messages or ASKED, "temperature": 0, "max_tokens": 12}, **fields))
    check(f"{fields}: status", status == 200, answer)
    usage = answer["usage"]
    return answer["content"][0]["text"], usage["input_tokens"] + usage["cache_read_input_tokens"]


def raw(server, prompt):
    """What follows this prompt, and its number of tokens."""
    status, answer = server.post("/v1/completions", {"prompt": prompt, "temperature": 0,
                                                     "max_tokens": 12})
    check("a raw prompt", status == 200, answer)
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]


def test_reasoning(server):
    """The template is told; what it writes is the prompt."""
    def prompt(effort, thinks):
        twice = "" if effort == "own" else effort  # for Kimi-K3 by another name
        return raw(server, f"{effort}{twice}/{thinks}[user]Once upon[assistant]")
    check("as it is", chat(server) == prompt("own", "-"), chat(server))
    check("reasoning_effort", chat(server, reasoning_effort="high") == prompt("high", "-"))
    check("kwargs first", chat(server, reasoning_effort="high", chat_template_kwargs={
        "reasoning_effort": "low", "thinking_effort": "low"}) == prompt("low", "-"))
    check("thinking", message(server, thinking={"type": "enabled", "budget_tokens": 1024}) ==
          prompt("own", "True"))
    check("no thinking", message(server, thinking={"type": "disabled"}) == prompt("own", "False"))
    check("adaptive", message(server, thinking={"type": "adaptive"},
                              context_management={"edits": []}) == prompt("own", "-"))
    check("output_config", message(server, output_config={"effort": "low"}) == prompt("low", "-"))
    status, answer = server.post("/v1/responses", {
        "input": "Once upon", "temperature": 0, "max_output_tokens": 12, "client_metadata": {"a": "b"},
        "reasoning": {"effort": "medium", "summary": "auto"}})
    check("reasoning", status == 200 and (answer["output"][0]["content"][0]["text"],
                                          answer["usage"]["input_tokens"]) == prompt("medium", "-"), answer)
    for path, field in (("/v1/chat/completions", {"reasoning_effort": 3}),
                        ("/v1/messages", {"thinking": {"type": "sometimes"}}),
                        ("/v1/messages", {"output_config": "low"}),
                        ("/v1/responses", {"reasoning": {"effort": []}})):
        status, answer = server.post(path, dict(
            {"max_tokens": 4} if "messages" in path else {},
            **{"input" if "responses" in path else "messages": ASKED}, **field))
        check(f"refusal of {field}", status == 400, answer)


def test_begun(server):
    """An answer that the client has begun is gone on with, and not closed."""
    begun = ASKED + [{"role": "assistant", "content": "a time there"}]
    follows = raw(server, "own/-[user]Once upon[assistant]a time there")
    check("a message that is begun", message(server, begun) == follows, message(server, begun))
    check("a chat that is begun", chat(server, messages=begun) == follows)
    closed = begun + [{"role": "user", "content": "was"}]
    check("an answer in the middle", chat(server, messages=closed) == raw(
        server, "own/-[user]Once upon[assistant]a time there[end][user]was[assistant]"))


def test_names(server):
    """Other names of fields, and fields that say nothing."""
    check("repetition_penalty", chat(server, repetition_penalty=1.9, max_tokens=60) ==
          chat(server, repeat_penalty=1.9, max_tokens=60) != chat(server, max_tokens=60))
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5}},
              "required": ["n"]}
    check("guided_json", chat(server, guided_json=schema, max_tokens=40) ==
          chat(server, json_schema=schema, max_tokens=40))
    check("harmless", chat(server, cache_prompt=True, priority=3, seed=-1) == chat(server))


def test_verbosity(server):
    expected = raw(server, "ownlow/-[user]Once upon[assistant]")
    check("verbosity", chat(server, verbosity="low") == expected)
    status, answer = server.post("/v1/responses", {
        "input": "Once upon", "temperature": 0, "max_output_tokens": 12, "text": {"verbosity": "low"}})
    check("text.verbosity", status == 200 and answer["output"][0]["content"][0]["text"] == expected[0], answer)


def test_stop_ids(server):
    """The text ends before such a token, in a stream, too."""
    body = {"prompt": "Once upon", "temperature": 0, "max_tokens": 24, "logprobs": 0}
    _, answer = server.post("/v1/completions", body)
    tokens = answer["choices"][0]["logprobs"]["tokens"]
    at = next(i for i in range(3, 24) if tokens[i] not in tokens[:i])
    _, ids = server.post("/tokenize", {"content": tokens[at], "add_special": False})
    check("one token", len(ids["tokens"]) == 1, ids)
    stopped = dict(body, stop_token_ids=[0, *ids["tokens"]])
    status, answer = server.post("/v1/completions", stopped)
    choice = answer["choices"][0]
    check("stop_token_ids", status == 200 and choice["text"] == "".join(tokens[:at]) and
          choice["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == at, answer)
    events = server.stream("/v1/completions", dict(stopped, logprobs=None))
    check("stop_token_ids in a stream", "".join(
        e["choices"][0]["text"] for e in events if e != "[DONE]") == choice["text"], events)
    _, two = server.post("/v1/completions", dict(stopped, n=2))
    check("two answers", [c["text"] for c in two["choices"]] == 2 * [choice["text"]], two)


def test_models(server):
    """Any name is accepted; the names of --alias are listed, and the first is in answers."""
    status, listed = server.get("/v1/models")
    names = [entry["id"] for entry in listed["data"]]
    check("names", names == ["first", "second/name"], listed)
    for i, name in enumerate(names):
        check(f"model {name}", server.get("/v1/models/" + name) == (200, listed["data"][i]))
    for other in ("other", "", "firstx"):
        status, answer = server.get("/v1/models/" + other)
        check(f"model {other!r}", status == 404 and answer["error"]["code"] == "model_not_found", answer)
    for name in ("first", "second/name", "gpt-4"):
        status, answer = server.post("/v1/chat/completions", {"model": name, "messages": ASKED, "max_tokens": 1})
        check(f"{name} is taken", status == 200 and answer["model"] == "first", answer)


def test_unknown(server):
    """A field that nobody knows is left out, and the log says so, without what may be no name."""
    check("unknown fields", chat(server, no_such_field=1, other={"a": [1]}) == chat(server))
    status, answer = server.post("/v1/chat/completions", {
        "messages": ASKED, "max_tokens": 1, "x\n/v1/forged 200": 5})
    check("not a name", status == 200, answer)
    status, answer = server.post("/v1/responses", {"input": "a", "repeat_penalty": 1.5})
    check("known elsewhere", status == 400 and "repeat_penalty" in answer["error"]["message"], answer)


def test_strict(server):
    status, answer = server.post("/v1/chat/completions", {"model": "gpt-4", "messages": ASKED})
    check("strict model", status == 404 and answer["error"]["param"] == "model", answer)
    check("its own", server.post("/v1/chat/completions", {
        "model": "second/name", "messages": ASKED, "max_tokens": 1})[0] == 200)
    for name in ("no_such_field", "model\n"):
        status, answer = server.post("/v1/chat/completions", {"messages": ASKED, name: 1})
        check("strict fields", status == 400 and answer["error"]["code"] == "unknown_parameter" and
              answer["error"]["param"] == name, answer)


def test_allowed_tools(server):
    """The model is shown the tools that tool_choice allows, and no others."""
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
             for name in ("one", "two", "three")]
    rest = [{"type": "function", "function": {"name": name}} for name in ("three", "one")]
    fields = {"messages": ASKED, "temperature": 0, "max_tokens": 100, "parallel_tool_calls": False}
    path = "/v1/chat/completions"
    given = server.post(path, dict(fields, tools=[tools[0], tools[2]], tool_choice="required"))[1]
    for choice in ({"allowed_tools": {"mode": "required", "tools": rest}}, {"mode": "required", "tools": [
            {"type": "function", "name": "one"}, {"type": "function", "name": "three"}]}):
        status, answer = server.post(path, dict(fields, tool_choice=dict(choice, type="allowed_tools"), tools=tools))
        check("allowed_tools", status == 200 and answer["usage"]["prompt_tokens"] == given["usage"]["prompt_tokens"] and
              answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] in ("one", "three"), answer)
    for wrong in ({"mode": "required", "tools": [{"name": "four"}]}, {"mode": "any", "tools": rest}, {"mode": "auto"},
                  {"mode": "auto", "tools": []}, {"mode": "auto", "tools": [5]}):
        status, answer = server.post(path, dict(fields, tools=tools, tool_choice=dict(wrong, type="allowed_tools")))
        check(f"refusal of {wrong}", status == 400 and answer["error"]["param"] == "tool_choice", answer)
    status, answer = server.post(path, dict(fields, tool_choice={
        "type": "allowed_tools", "mode": "auto", "tools": rest}))
    check("allowed without tools", status == 400, answer)


def with_server(template, tests, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(template)
        file.flush()
        server = Server(command, model, "--chat-template", file.name, "-c", "1024", "-t", "1",
                        "--alias", "first,second/name", *options)
        try:
            for test in tests:
                test(server)
        finally:
            check("exit", server.close() == 0, server.log)
        return server.log


log = with_server(TEMPLATE, [test_reasoning, test_begun, test_names, test_verbosity, test_stop_ids,
                             test_models, test_unknown])
check("the log", sum("field 'other' unknown" in line for line in log) == 1 and
      sum("field '?' unknown" in line for line in log) == 1 and not any("forged" in line for line in log), log)
with_server(TEMPLATE, [test_strict], "--strict-model", "--strict-fields")
with_server(HERMES, [test_allowed_tools])
end_of_test()
