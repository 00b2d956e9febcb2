# SPDX-License-Identifier: MIT
"""The page in headless Chromium, driven by its remote protocol: it asks, stops, edits, regenerates,
keeps conversations, survives a restart of the server, and shows the engine. Skips where there is no
Chromium. With a folder it also writes screenshots there.
Arguments: the command, a model with a chat template, the table of Markdown, [the folder]."""
import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from serving import Server, run

command, model, table = sys.argv[1:4]
folder = sys.argv[4] if len(sys.argv) > 4 else None
browser = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p),
               None)
if browser is None:
    print("skipped: there is no Chromium")
    sys.exit(77)

PROMPT = "Tom has 5 pens. He buys 7 more. How many pens does he have?"


class Tab:
    """A tab of the browser, over a web socket."""

    def __init__(self, url):
        at = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((at.hostname, at.port), timeout=120)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        self.stream = self.socket.makefile("rb")
        while self.stream.readline() not in (b"\r\n", b""):
            pass
        self.number = 0
        self.problems = []

    def _send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = struct.pack("!BBH", 0x81, 0x80 | 126, len(data)) if len(data) < 65536 else \
            struct.pack("!BBQ", 0x81, 0x80 | 127, len(data))
        self.socket.sendall(size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def _receive(self):
        out = b""
        while True:
            first, second = self.stream.read(2)
            size = second & 127
            if size > 125:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            out += self.stream.read(size)
            if first & 0x80:
                return json.loads(out)

    def call(self, method, **fields):
        self.number += 1
        self._send(json.dumps({"id": self.number, "method": method, "params": fields}))
        while True:
            answer = self._receive()
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(answer["params"])
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script):
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                           returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}: " + str(self.run("document.body.innerText")))

    def key(self, name, modifiers=0, text=""):
        codes = {"Enter": 13, "Escape": 27, "ArrowUp": 38}
        code = codes.get(name, ord(name.upper()) if len(name) == 1 else 0)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, modifiers=modifiers, text=text if
                      kind == "keyDown" else "", windowsVirtualKeyCode=code)

    def write(self, text):
        self.run("document.getElementById('text').focus()")
        self.call("Input.insertText", text=text)

    def load(self, server):
        self.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
        self.wait("document.readyState === 'complete' && "
                  "!!document.getElementById('figures')?.children.length")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def shoot(self, name):
        if folder is not None:
            data = self.call("Page.captureScreenshot", format="png")["data"]
            with open(os.path.join(folder, name + ".png"), "wb") as out:
                out.write(base64.b64decode(data))


def open_tab(server, home):
    process = subprocess.Popen(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
         "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={home}", "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"listening on ws://[^:]+:(\d+)/", line)
        if found:
            break
    else:
        raise RuntimeError("Chromium ended")
    with urllib.request.urlopen(f"http://127.0.0.1:{found.group(1)}/json") as answer:
        tab = Tab(next(t for t in json.load(answer) if t["type"] == "page")["webSocketDebuggerUrl"])
    for domain in ("Page", "Runtime", "Log"):
        tab.call(domain + ".enable")
    tab.size(1280, 800)
    tab.load(server)
    return process, tab


IDLE = "document.getElementById('send').textContent === 'Send'"
TEXTS = "current.turns.map(t => t.text)"
SHOWN = "[...document.querySelectorAll('.turn .body')].map(n => n.innerText)"


def knob(tab, name, value):
    tab.run(f"k_{name}.value = {json.dumps(str(value))};"
            f"k_{name}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def ask(tab, text, answers=2):
    tab.write(text)
    tab.key("Enter", text="\r")
    tab.wait(f"{TEXTS}.length === {answers} && {IDLE}")


def press(tab, name, within="document"):
    tab.run(f"[...{within}.querySelectorAll('button')].find(b => b.textContent === '{name}').click()")


def conversation(tab, text):
    """The answer is that of `run`; then it is stopped, edited, and asked for again."""
    knob(tab, "temperature", 0)
    knob(tab, "max_tokens", 60)
    ask(tab, PROMPT)
    assert tab.run(TEXTS) == [PROMPT, text], (tab.run(TEXTS), text)
    words = [re.findall(r"\w+", shown) for shown in tab.run(SHOWN)]
    assert words == [re.findall(r"\w+", t) for t in (PROMPT, text)], words
    assert "tokens" in tab.run("document.querySelector('.assistant .tools span').textContent")
    assert text[:20] in tab.run("spoken.textContent")  # said once, when it is complete
    # The answer may be complete before anybody looks: an observer sees that it began.
    tab.run("began = 0; new MutationObserver(() => { began |= !(" + IDLE + ") }).observe(document"
            ".getElementById('send'), {childList: true, characterData: true, subtree: true})")
    tab.key("r", modifiers=1)
    tab.wait("began && " + IDLE)
    assert tab.run(TEXTS) == [PROMPT, text], tab.run(TEXTS)
    # Arrow up edits in place, Escape leaves all as it was, Enter asks anew.
    tab.run("document.getElementById('text').focus()")
    tab.key("ArrowUp")
    assert tab.run("document.activeElement.value") == PROMPT
    tab.key("Escape")
    assert tab.run(TEXTS) == [PROMPT, text] and tab.run("!document.querySelector('.edit')")
    press(tab, "Edit")
    tab.call("Input.insertText", text=" Why?")
    tab.key("Enter", text="\r")
    tab.wait(f"{TEXTS}[0].endsWith('Why?') && {TEXTS}.length === 2 && {IDLE}")
    tab.key("n", modifiers=1)
    assert tab.run(TEXTS) == [] and tab.run("document.querySelectorAll('.empty').length") == 1
    # A stopped answer keeps what has come.
    knob(tab, "max_tokens", "")
    knob(tab, "temperature", 1.5)
    tab.write("Tell a very long story.")
    tab.key("Enter", text="\r")
    tab.wait(TEXTS + ".length === 2 && " + TEXTS + "[1].length > 3")
    tab.key("Escape")
    tab.wait(IDLE)
    assert tab.run("document.querySelector('.assistant .tools span').textContent") != ""
    knob(tab, "temperature", "x")
    tab.key("r", modifiers=1)
    tab.wait("document.querySelectorAll('.turn.error').length === 1")
    assert "temperature" in tab.run("document.querySelector('.turn .wrong').textContent")
    knob(tab, "temperature", 0)
    knob(tab, "max_tokens", 60)


NAMES = "[...document.querySelectorAll('#names .name')].map(n => n.title)"


def kept(tab, server, text):
    """Conversations and settings outlive the page; they are found, renamed, deleted, and carried."""
    tab.load(server)
    tab.wait(NAMES + ".length === 2")
    assert tab.run("k_max_tokens.value") == "60"
    tab.key("k", modifiers=2)
    assert tab.run("document.activeElement.id") == "search"
    tab.call("Input.insertText", text="WHY?")
    assert len(tab.run(NAMES)) == 1, tab.run(NAMES)
    tab.key("Enter", text="\r")
    assert tab.run(TEXTS)[0] == PROMPT + " Why?"
    tab.key("k", modifiers=2)
    tab.key("Escape")
    assert len(tab.run(NAMES)) == 2
    tab.run("document.querySelector('#names .current [title=Rename]').click()")
    tab.wait("document.activeElement.ariaLabel === 'New name'")
    tab.wait("getSelection().toString() !== '' || document.activeElement.selectionEnd > 0")
    tab.call("Input.insertText", text="Pens & <b>")
    tab.key("Enter", text="\r")
    assert "Pens & <b>" in tab.run(NAMES), tab.run(NAMES)
    # What is exported comes back as it was; what was deleted comes back by Undo.
    tab.run("HTMLAnchorElement.prototype.click = () => {}; URL.createObjectURL = blob => {"
            " grabbed = blob; return '#' }; document.getElementById('export').click()")
    data = tab.run("grabbed.text()")
    told = json.loads(data)["conversations"]
    assert len(told) == 2 and any(c["title"] == "Pens & <b>" for c in told), told
    tab.run("document.querySelector('#names .current [title=Delete]').click()")
    assert "Pens & <b>" not in tab.run(NAMES)
    press(tab, "Undo")
    tab.wait(NAMES + ".includes('Pens & <b>')")
    tab.run("forget.click()")
    assert tab.run(NAMES) == []
    tab.load(server)
    tab.run(f"importText({json.dumps(data)})")
    tab.wait(NAMES + ".length === 2")
    assert json.loads(tab.run("JSON.stringify([...all.values()])")) == told
    tab.run(f"importText({json.dumps(data)})")  # again: nothing comes twice
    assert len(tab.run(NAMES)) == 2
    for bad in ("x", "{}", "[]", '{"format": "moe-offload conversations", "conversations": [1, null, '
                '{"id": "<b>", "turns": []}, {"id": "%s", "turns": [{"role": "system"}, 3]}]}' % ("a" * 24)):
        tab.run(f"importText({json.dumps(bad)})")
    assert json.loads(tab.run(f"JSON.stringify(all.get('{'a' * 24}'))")) == {
        "id": "a" * 24, "title": "Untitled", "changed": 0, "turns": []}
    assert len(tab.run(NAMES)) == 3


def attachments(tab):
    """A file's text goes with the message; what is no text, or too large, is refused by name."""
    tab.key("n", modifiers=1)
    tab.run("attach([new File(['ab\\n```\\ncd'], 'a.txt'), new File([new Uint8Array([255, 0])], "
            "'b.bin')])")
    tab.wait("files.children.length === 1 && toast.textContent.includes('b.bin')")
    tab.run("attach([new File(['x'.repeat(1000001)], 'c.txt')])")
    tab.wait("toast.textContent.includes('c.txt is too large')")
    ask(tab, "Read it.")
    sent = tab.run("content(current.turns[0])")
    assert sent == "File a.txt:\n````\nab\n```\ncd\n````\n\nRead it.", sent
    assert tab.run("document.querySelector('.user summary').textContent").startswith("a.txt")
    assert tab.run("files.children.length") == 0


# Answers as a server would send them: reasoning, a call in pieces, an answer that breaks off.
FORGED = """fetch = ((real) => async (path, options) => {
  if (path !== '/v1/chat/completions') return real(path, options);
  asked = JSON.parse(options.body);
  const last = asked.messages[asked.messages.length - 1];
  const delta = last.role === 'tool' ? [{content: 'It is 7.'}] : last.content === 'break' ?
    [{content: 'Half'}] : [{reasoning_content: 'Let me <b>think</b>'},
    {tool_calls: [{index: 0, id: 'n1', function: {name: 'add', arguments: '{"a":'}}]},
    {tool_calls: [{index: 0, function: {arguments: '<i>'}}]}];
  const lines = delta.map(d => 'data: ' + JSON.stringify({choices: [{delta: d}]}) + '\\n\\n');
  if (last.content !== 'break') lines.push('data: [DONE]\\n\\n');
  return new Response(lines.join(''));
})(fetch)"""


def calls(tab, server):
    """Reasoning and calls are folded, their results go back, and half an answer is said to be one."""
    tab.run(FORGED)
    tab.key("n", modifiers=1)
    knob(tab, "tools", '[{"type": "function", "function": {"name": "add"}}]')
    ask(tab, "Add.")
    assert tab.run("asked.tools[0].function.name") == "add"
    assert tab.run("[...document.querySelectorAll('.assistant summary')].map(n => n.textContent)") == [
        "Reasoning", "Call of add"]
    assert tab.run("document.querySelector('.assistant .call pre').textContent") == '{"a":<i>'
    assert tab.run("document.querySelectorAll('.turn b, .turn i').length") == 0
    tab.run("document.querySelector('.results textarea').value = '7'")
    press(tab, "Send results")
    tab.wait(f"{TEXTS}.length === 4 && {IDLE}")
    sent = json.loads(tab.run("JSON.stringify(asked.messages)"))
    assert [m["role"] for m in sent] == ["user", "assistant", "tool"], sent
    assert sent[2] == {"role": "tool", "tool_call_id": "n1", "content": "7"}, sent
    assert sent[1]["tool_calls"][0]["id"] == "n1" and tab.run(TEXTS)[3] == "It is 7."
    tab.run("k_tools.value = '{'; k_tools.dispatchEvent(new Event('input', {bubbles: true}))")
    assert tab.run("toolsWrong.textContent").startswith("No tools are sent")
    knob(tab, "tools", "")
    tab.key("n", modifiers=1)
    ask(tab, "break")
    assert tab.run(TEXTS)[1] == "Half"
    assert tab.run("document.querySelector('.wrong').textContent") == "The connection broke off."
    tab.load(server)


def hostile(tab):
    """The browser makes of the table what the test without one expects, and nothing runs."""
    with open(table, encoding="utf-8") as file:
        cases = json.load(file)
    for name, text, wanted in cases:
        shown = tab.run("(() => { const d = document.createElement('div'); document.body.append(d);"
                        f"d.append(...markdown({json.dumps(text)})); const h = d.innerHTML;"
                        "d.remove(); return h })()")
        assert shown == wanted, (name, shown)


def readable(tab):
    """Whatever is operated has a name, answers are not read token by token, texts stand out."""
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "searchbox", "combobox", "dialog", "navigation", "log"}
    named = [n for n in nodes if n.get("role", {}).get("value") in roles and not n.get("ignored")]
    assert len(named) > 8, len(named)
    bare = [n for n in named if not n.get("name", {}).get("value")]
    assert not bare, bare
    assert tab.run("talk.getAttribute('aria-live')") == "off"
    for theme in ("light", "dark"):
        tab.run(f"setTheme('{theme}')")
        for front, back in (("text", "back"), ("text", "panel"), ("text", "mine"), ("soft", "panel"),
                            ("soft", "back"), ("soft", "mine"), ("soft", "code"), ("accent", "panel"),
                            ("bad", "panel"), ("on-accent", "accent"), ("text", "code")):
            light = []
            for name in (front, back):
                value = tab.run("getComputedStyle(document.documentElement).getPropertyValue("
                                f"'--{name}').trim()").lstrip("#")
                value = "".join(c * 2 for c in value) if len(value) == 3 else value
                parts = [int(value[i:i + 2], 16) / 255 for i in (0, 2, 4)]
                parts = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
                light.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)
            assert max(light) / min(light) >= 4.5, (theme, front, back, max(light) / min(light))


def gone(tab, server):
    """A server that ends is said to be gone; when it is back, the page goes on."""
    tab.key("n", modifiers=1)
    assert tab.run("gone.hidden")
    status = server.close()
    assert status == 0, server.log
    tab.wait("!gone.hidden && gone.textContent.includes('does not answer')")
    ask(tab, PROMPT)
    assert "does not answer" in tab.run("document.querySelector('.turn .wrong').textContent")
    server = Server(command, model, "--port", str(server.port))
    tab.wait("gone.hidden")
    press(tab, "Try again")
    tab.wait(f"{IDLE} && {TEXTS}.length === 2 && {TEXTS}[1] !== ''")
    return server


def live(tab, server):
    """The grid has a cell for each expert, and the figures say what the server says."""
    now = server.get("/live")[1]
    tab.wait("document.getElementById('figures').children.length > 10")
    title = tab.run("document.getElementById('gridTitle').textContent")
    assert f"{now['n_layer']} layers (rows) of {now['n_expert']} experts (cells)" in title, title
    assert "on disk" in tab.run("legend.textContent") and "ready" in tab.run("legend.textContent")
    ready = r"/\b[1-9]\d* ready/.test(document.getElementById('grid').getAttribute('aria-label'))"
    tab.wait(ready)  # the page asks now and then
    label = tab.run("document.getElementById('grid').getAttribute('aria-label')")
    assert sum(map(int, re.findall(r"\d+", label))) <= now["n_layer"] * now["n_expert"], label
    painted = tab.run("(() => { const c = document.getElementById('grid'); return [...c.getContext("
                      "'2d').getImageData(0, 0, c.width, c.height).data].some(v => v > 0) })()")
    assert painted


SAMPLE = r"""Stirling's formula tells how fast $n!$ grows:

$$n! \sim \sqrt{2\pi n}\left(\frac{n}{e}\right)^n$$

| n | n! | formula |
|--:|--:|--:|
| 5 | 120 | 118.0 |
| 10 | 3 628 800 | 3 598 695.6 |

1. It is **never** more than the factorial.
2. Its relative error falls as `1/(12n)`.

```python
from math import e, pi, sqrt

def stirling(n):
    return sqrt(2 * pi * n) * (n / e) ** n
```

> More in [an article](https://en.wikipedia.org/wiki/Stirling%27s_approximation)."""


def screenshots(tab):
    tab.run("remove([...all.values()]); toast.replaceChildren()")
    for prompt in ("Sara reads 12 pages a day. How many pages does she read in a week?",
                   "A box holds 6 eggs. How many eggs are in 4 boxes?", PROMPT):
        tab.key("n", modifiers=1)
        ask(tab, prompt)
    time.sleep(1.5)
    for theme in ("light", "dark"):
        tab.run(f"setTheme('{theme}')")
        for width, height in ((1280, 720), (820, 640), (390, 720)):
            tab.size(width, height)
            time.sleep(0.7)
            assert tab.run("document.documentElement.scrollWidth <= innerWidth"), width
            tab.shoot(f"page-{width}-{theme}")
    tab.size(390, 720)
    tab.run("document.getElementById('views').click()")
    time.sleep(0.7)
    assert tab.run("getComputedStyle(document.getElementById('chat')).display") == "none"
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    tab.shoot("page-390-live")
    tab.run("document.getElementById('views').click(); setTheme('light')")
    tab.run("current.turns = [{role: 'user', text: 'How fast do factorials grow?'}, {role: 'assistant',"
            f" calls: [], text: {json.dumps(SAMPLE)}}}]; draw(); talk.scrollTop = 0")
    for width, height in ((390, 720), (820, 980)):
        tab.size(width, height)
        time.sleep(0.7)
        assert tab.run("document.documentElement.scrollWidth <= innerWidth"), width
    tab.run("talk.scrollTop = 0")
    tab.shoot("page-820-markdown")
    tab.size(1280, 800)
    tab.run("adjust.click()")
    tab.shoot("page-1280-settings")
    tab.run("done.click()")


def policy(tab, server):
    """The page comes from one file, names no other site, and its policy lets nothing else run."""
    status, headers, page = server.request("GET", "/")
    held = headers["Content-Security-Policy"]
    assert status == 200 and "default-src 'none'" in held and "unsafe" not in held, held
    page = page.replace(b"http://www.w3.org/1998/Math/MathML", b"")  # a name that nobody asks for
    assert not re.search(rb"https?://", page), "a foreign host"
    for sink in (b"innerHTML", b"outerHTML", b"insertAdjacent", b"document.write", b"eval(",
                 b"DOMParser", b"new Function"):
        assert sink not in page, sink
    tab.run("hit = 0; document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"hit = 1\">"
            "<svg onload=\"hit = 1\"></svg>')")
    tab.wait("document.images[0].complete")
    assert tab.run("hit") == 0


def main(home):
    text = run(command, model, PROMPT, "--temp", "0", "-n", "60", chat=True).decode()
    server = Server(command, model)
    process = None
    try:
        process, tab = open_tab(server, home)
        conversation(tab, text)
        kept(tab, server, text)
        attachments(tab)
        calls(tab, server)
        hostile(tab)
        live(tab, server)
        readable(tab)
        screenshots(tab)
        unknown = [p for p in tab.problems if "400" not in json.dumps(p)]
        assert not unknown, unknown
        slots = server.get("/slots")[1]
        assert len(slots) == server.get("/live")[1]["parallel"], slots
        assert {"id", "is_processing", "state", "n_ctx"} <= set(slots[0]), slots
        server = gone(tab, server)
        policy(tab, server)
    finally:
        if process is not None:
            process.terminate()
            process.wait(20)
        status = server.close()
    assert status == 0, server.log
    print("the page passed in", browser)


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder_of_browser:
    main(folder_of_browser)
