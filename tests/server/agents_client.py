# SPDX-License-Identifier: MIT
"""Packages that build agents, as clients of the server. Prints a matrix of what each does through it;
then openai-agents runs a loop with three tools, in which the model is forced to calls that are known
beforehand, and every one must arrive as it was written. Skips where no package is installed.
Arguments: the command, a model, seconds of the loop."""
import asyncio
import importlib
import json
import os
import random
import sys
import tempfile
import time

from serving import HERMES, Server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm asks no other host
command, model = sys.argv[1:3]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 5
ASKED = "What is the weather in Ulm?"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ulm", "days": 2}}\n</tool_call>'


def forced(text):
    return {"grammar": "root ::= " + json.dumps(text, ensure_ascii=False)}


# ---- The clients: each check gives True, or what went wrong ----

def litellm_checks(base):
    import litellm
    litellm.telemetry = False
    fields = {"model": "openai/any", "api_base": base, "api_key": "none", "max_tokens": 200,
              "messages": [{"role": "user", "content": ASKED}]}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"]}}}]

    def text():
        return litellm.completion(extra_body=forced("Sunny."), **fields).choices[0].message.content == "Sunny."

    def stream():
        pieces = [c.choices[0].delta.content or "" for c in litellm.completion(
            stream=True, extra_body=forced("Sunny and warm."), **fields)]
        return "".join(pieces) == "Sunny and warm."

    def calls():
        call = litellm.completion(tools=tools, extra_body=forced(CALL), **fields).choices[0].message.tool_calls[0]
        return json.loads(call.function.arguments) == {"city": "Ulm", "days": 2}

    def form():
        answer = litellm.completion(response_format={"type": "json_schema", "json_schema": {
            "name": "f", "schema": tools[0]["function"]["parameters"]}}, temperature=1, seed=1, **fields)
        return set(json.loads(answer.choices[0].message.content)) >= {"city", "days"}
    return {"text": text, "stream": stream, "calls": calls, "form": form}


def langchain_checks(base, anthropic=False):
    import pydantic

    class Weather(pydantic.BaseModel):
        """The weather of a place."""
        city: str = pydantic.Field(max_length=12)
        days: int

    def chat(**extra):
        if anthropic:
            from langchain_anthropic import ChatAnthropic
            return ChatAnthropic(model="any", base_url=base[:-3], api_key="none", max_tokens=400, **extra)
        from langchain_openai import ChatOpenAI
        return ChatOpenAI(model="any", base_url=base, api_key="none", max_tokens=400, seed=1, **extra)

    def text():
        return len(chat().invoke(ASKED).text) > 0

    def stream():
        return len("".join(str(c.content) for c in chat().stream(ASKED))) > 0

    def calls():
        got = chat().bind_tools([Weather], tool_choice="any").invoke(ASKED).tool_calls
        return len(got) > 0 and all(Weather(**c["args"]) for c in got)

    def form():
        return isinstance(chat().with_structured_output(Weather).invoke(ASKED), Weather)
    return {"text": text, "stream": stream, "calls": calls, "form": form}


def langchain_anthropic_checks(base):
    return langchain_checks(base, anthropic=True)


def instructor_checks(base):
    import instructor
    import openai
    import pydantic

    class Weather(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=12)
        days: int

    def by(mode, **fields):
        client = instructor.from_openai(openai.OpenAI(base_url=base, api_key="none"), mode=mode)
        return isinstance(client.chat.completions.create(
            model="any", response_model=Weather, max_retries=0, max_tokens=400, seed=1,
            messages=[{"role": "user", "content": ASKED}], **fields), Weather)
    return {"calls": lambda: by(instructor.Mode.TOOLS, parallel_tool_calls=False),
            "form": lambda: by(instructor.Mode.JSON_SCHEMA)}


def pydantic_ai_checks(base):
    import pydantic
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    class Weather(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=12)
        days: int

    def agent(output, **settings):
        profile = OpenAIModelProfile(supports_json_schema_output=True, supports_json_object_output=False)
        chat = OpenAIChatModel("any", profile=profile, provider=OpenAIProvider(base_url=base, api_key="none"))
        return Agent(chat, output_type=output, retries=0, model_settings=dict({"max_tokens": 400, "seed": 1}, **settings))

    def typed(output, **settings):
        return isinstance(agent(output, **settings).run_sync(ASKED).output, Weather)

    def stream():
        async def run():
            async with agent(str).run_stream(ASKED) as result:
                return len("".join([p async for p in result.stream_text(delta=True)])) > 0
        return asyncio.run(run())
    return {"text": lambda: len(agent(str).run_sync(ASKED).output) > 0, "stream": stream,
            "calls": lambda: typed(ToolOutput(Weather)), "form": lambda: typed(NativeOutput(Weather)),
            "prompted": lambda: typed(PromptedOutput(Weather), extra_body=forced('{"city": "Ulm", "days": 2}'))}


# ---- The loop ----

class Loop:
    """Agents whose model is forced, request by request: some turns of calls, then a text."""

    def __init__(self, base):
        self.base, self.random = base, random.Random(7)
        self.expected, self.got, self.lost, self.runs, self.left, self.text = [], [], 0, 0, 0, ""

    def next_text(self):
        """What the model is to write for the next request."""
        self.left -= 1
        if self.left < 0:
            return self.text
        calls = []
        for _ in range(self.random.randint(1, 3)):
            word = "".join(self.random.choice('aZ9 "\\\n\t{}[]<>é漢/') for _ in range(self.random.randint(0, 12)))
            calls.append(self.random.choice([
                ("get_weather", {"city": word, "days": self.random.randint(-9, 99)}),
                ("add_item", {"text": word, "done": self.random.random() < 0.5}),
                ("count", {"numbers": [self.random.randint(0, 9) for _ in range(self.random.randint(0, 4))]})]))
        self.expected += calls
        prose = self.random.choice(["", "I look. ", "Now a < b, then:\n"])
        return prose + "\n".join("<tool_call>\n" + json.dumps(
            {"name": n, "arguments": a}, ensure_ascii=self.random.random() < 0.5) + "\n</tool_call>"
            for n, a in calls)

    def client(self):
        import httpx
        import openai
        loop = self

        class Forcing(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request):
                body = dict(json.loads(request.content), **forced(loop.next_text()))
                headers = {k: v for k, v in request.headers.items() if k.lower() != "content-length"}
                return await super().handle_async_request(httpx.Request(
                    request.method, request.url, headers=headers, content=json.dumps(body).encode(),
                    extensions=request.extensions))
        return openai.AsyncOpenAI(base_url=self.base, api_key="none", max_retries=0,
                                  http_client=httpx.AsyncClient(transport=Forcing(), timeout=120))

    async def once(self, agent, runner, streamed):
        self.expected, self.got = [], []
        self.left, self.text = self.random.randint(1, 4), f"All done {self.runs}."
        if streamed:
            result = runner.run_streamed(agent, ASKED, max_turns=8)
            async for _ in result.stream_events():
                pass
        else:
            result = await runner.run(agent, ASKED, max_turns=8)
        self.runs += 1
        order = sorted(map(json.dumps, self.expected)), sorted(map(json.dumps, self.got))
        if order[0] != order[1] or result.final_output != self.text:
            self.lost += 1
            print("LOST", self.expected, self.got, result.final_output)

    async def run(self, seconds):
        import agents
        agents.set_tracing_disabled(True)

        @agents.function_tool
        def get_weather(city: str, days: int) -> str:
            self.got.append(("get_weather", {"city": city, "days": days}))
            return "sunny"

        @agents.function_tool
        def add_item(text: str, done: bool) -> str:
            self.got.append(("add_item", {"text": text, "done": done}))
            return "added"

        @agents.function_tool
        def count(numbers: list[int]) -> str:
            self.got.append(("count", {"numbers": numbers}))
            return str(len(numbers))
        client = self.client()
        kinds = (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel)
        all_agents = [agents.Agent(name="a", instructions="Use the tools.", tools=[get_weather, add_item, count],
                                   model=kind(model="any", openai_client=client),
                                   model_settings=agents.ModelSettings(max_tokens=900)) for kind in kinds]
        end, n_calls = time.monotonic() + seconds, 0
        while self.runs < 4 or time.monotonic() < end:
            await self.once(all_agents[self.runs % 2], agents.Runner, self.runs // 2 % 2 == 1)
            n_calls += len(self.expected)
        await client.close()
        print(f"openai-agents: {self.runs} runs, {n_calls} calls, {self.lost} runs with a call or a text lost")
        return self.lost == 0


# ---- All ----

ROWS = (("litellm", litellm_checks), ("langchain_openai", langchain_checks),
        ("langchain_anthropic", langchain_anthropic_checks), ("instructor", instructor_checks),
        ("pydantic_ai", pydantic_ai_checks))
COLUMNS = ("text", "stream", "calls", "form", "prompted")


def is_there(name):
    try:
        importlib.import_module(name)
        return True
    except ImportError:
        return False


def outcome(run):
    try:
        return "yes" if run() else "NO"
    except Exception as error:
        print(f"{type(error).__name__}: {error}"[:1500])
        return "NO"


def main(server):
    base = f"http://127.0.0.1:{server.port}/v1"
    held = True
    table = [("client",) + COLUMNS]
    for name, checks in ROWS:
        if is_there(name):
            began = time.monotonic()
            runs = checks(base)
            table.append((name,) + tuple(outcome(runs[c]) if c in runs else "-" for c in COLUMNS))
            held = held and "NO" not in table[-1]
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    for row in table:
        print("".join(cell.ljust(21 if i == 0 else 9) for i, cell in enumerate(row)))
    return (asyncio.run(Loop(base).run(SECONDS)) if is_there("agents") else True) and held


if not any(is_there(name) for name in ("agents", *(row[0] for row in ROWS))):
    print("skipped: none of the packages is installed")
    sys.exit(77)
with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
    template.write(HERMES)
    template.flush()
    server = Server(command, model, "--chat-template", template.name, "-c", "4096", "-t", "1")
    try:
        held = main(server)
    finally:
        status = server.close()
if status != 0 or not held:
    print("".join(server.log[-20:]))
sys.exit(status != 0 or not held)
