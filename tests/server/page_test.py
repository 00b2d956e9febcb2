# SPDX-License-Identifier: MIT
"""The page in headless Chromium, driven by its remote protocol: it asks, stops, edits, regenerates, and
shows the engine. Skips where there is no Chromium. With a folder it also writes screenshots there.
Arguments: the command, a model with a chat template, [the folder]."""
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

command, model = sys.argv[1:3]
folder = sys.argv[3] if len(sys.argv) > 3 else None
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
    tab.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    tab.wait("document.readyState === 'complete' && !!document.getElementById('figures')")
    return process, tab


IDLE = "document.getElementById('send').textContent === 'Send'"
BODIES = "[...document.querySelectorAll('.turn .body')].map(n => n.textContent)"


def knob(tab, name, value):
    tab.run(f"document.getElementById('k_{name}').value = {json.dumps(str(value))}")


def conversation(tab, text):
    """The answer is that of `run`; then it is stopped, edited, and asked for again."""
    knob(tab, "temperature", 0)
    knob(tab, "max_tokens", 60)
    tab.write(PROMPT)
    tab.key("Enter", text="\r")
    tab.wait(BODIES + ".length === 2 && " + IDLE)
    assert tab.run(BODIES) == [PROMPT, text], (tab.run(BODIES), text)
    assert "tokens" in tab.run("document.querySelector('.assistant .tools span').textContent")
    # The answer may be complete before anybody looks: an observer sees that it began.
    tab.run("began = 0; new MutationObserver(() => { began |= !(" + IDLE + ") }).observe(document"
            ".getElementById('send'), {childList: true, characterData: true, subtree: true})")
    tab.key("r", modifiers=1)
    tab.wait("began && " + IDLE)
    assert tab.run(BODIES) == [PROMPT, text], tab.run(BODIES)
    # Arrow up edits; a stopped answer keeps what has come.
    knob(tab, "max_tokens", "")
    tab.run("document.getElementById('text').focus()")
    tab.key("ArrowUp")
    assert tab.run("document.getElementById('text').value") == PROMPT
    assert tab.run(BODIES) == []
    tab.run("document.getElementById('text').value = ''")
    knob(tab, "temperature", 1.5)
    tab.write("Tell a very long story.")
    tab.key("Enter", text="\r")
    tab.wait(BODIES + ".length === 2 && " + BODIES + "[1].length > 3")
    tab.key("Escape")
    tab.wait(IDLE)
    assert tab.run("document.querySelector('.assistant .tools span').textContent") != ""
    tab.run("[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'Edit')"
            ".click()")
    assert tab.run("document.getElementById('text').value") == "Tell a very long story."
    tab.run("document.getElementById('text').value = ''")
    knob(tab, "temperature", "x")
    tab.write("An error")
    tab.key("Enter", text="\r")
    tab.wait("document.querySelectorAll('.turn.error').length === 1")
    tab.key("n", modifiers=1)
    assert tab.run(BODIES) == [] and tab.run("document.querySelectorAll('.empty').length") == 1
    knob(tab, "temperature", 0)
    knob(tab, "max_tokens", 60)


def live(tab, server):
    """The grid has a cell for each expert, and the figures say what the server says."""
    now = server.get("/live")[1]
    tab.wait("document.getElementById('figures').children.length > 10")
    title = tab.run("document.getElementById('gridTitle').textContent")
    assert title.startswith(f"{now['n_layer']} layers of {now['n_expert']} experts"), title
    ready = r"/\b[1-9]\d* ready/.test(document.getElementById('grid').getAttribute('aria-label'))"
    tab.wait(ready)  # the page asks now and then
    label = tab.run("document.getElementById('grid').getAttribute('aria-label')")
    assert sum(map(int, re.findall(r"\d+", label))) <= now["n_layer"] * now["n_expert"], label
    painted = tab.run("(() => { const c = document.getElementById('grid'); return [...c.getContext("
                      "'2d').getImageData(0, 0, c.width, c.height).data].some(v => v > 0) })()")
    assert painted


def screenshots(tab):
    tab.write(PROMPT)
    tab.key("Enter", text="\r")
    tab.wait(BODIES + ".length === 2 && " + IDLE)
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
    tab.shoot("page-390-live")


def main(home):
    text = run(command, model, PROMPT, "--temp", "0", "-n", "60", chat=True).decode()
    server = Server(command, model)
    process = None
    try:
        process, tab = open_tab(server, home)
        conversation(tab, text)
        live(tab, server)
        screenshots(tab)
        unknown = [p for p in tab.problems if "400" not in json.dumps(p)]
        assert not unknown, unknown
        # The page comes from one file, and no other site is named in it.
        status, headers, page = server.request("GET", "/")
        assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
        assert not re.search(rb"https?://", page), "a foreign host"
        slots = server.get("/slots")[1]
        assert len(slots) == server.get("/live")[1]["parallel"], slots
        assert {"id", "is_processing", "state", "n_ctx"} <= set(slots[0]), slots
    finally:
        if process is not None:
            process.terminate()
            process.wait(20)
        status = server.close()
    assert status == 0, server.log
    print("the page passed in", browser)


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder_of_browser:
    main(folder_of_browser)
