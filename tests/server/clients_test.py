# SPDX-License-Identifier: MIT
"""Fields as clients send them: each is mapped to what it means here, or changes nothing. Arguments:
the command, a model."""
import sys
import tempfile

from serving import Server, check, end_of_test

command, model = sys.argv[1:3]
# It shows what it is told of reasoning, and closes answers.
TEMPLATE = """{{ reasoning_effort or 'own' }}/{{ enable_thinking if enable_thinking is defined else '-' }}
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
        return raw(server, f"{effort}/{thinks}[user]Once upon[assistant]")
    check("as it is", chat(server) == prompt("own", "-"), chat(server))
    check("reasoning_effort", chat(server, reasoning_effort="high") == prompt("high", "-"))
    check("kwargs first", chat(server, reasoning_effort="high", chat_template_kwargs={
        "reasoning_effort": "low"}) == prompt("low", "-"))
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


def test_models(server):
    status, listed = server.get("/v1/models")
    name = listed["data"][0]["id"]
    check("a model", server.get("/v1/models/" + name) == (200, listed["data"][0]))
    for other in ("other", "", name + "x"):
        status, answer = server.get("/v1/models/" + other)
        check(f"model {other!r}", status == 404 and answer["error"]["code"] == "model_not_found", answer)


with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
    file.write(TEMPLATE)
    file.flush()
    one = Server(command, model, "--chat-template", file.name, "-c", "1024", "-t", "1")
    try:
        test_reasoning(one)
        test_begun(one)
        test_names(one)
        test_models(one)
    finally:
        check("exit", one.close() == 0, one.log)
end_of_test()
