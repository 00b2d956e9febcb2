# SPDX-License-Identifier: MIT
"""A server of the command under test, and requests to it, with Python's standard library alone."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

# Under sanitizers meson.build asks for small tests: a slice of the texts and of the clients.
SMALL = os.environ.get("MOE_TEST_SIZE") == "small" and "MOE_TEST_WHOLE" not in os.environ

# For a server whose texts a grammar forces: of the demo model one layer, and one expert a token, answer in
# a quarter of the time.
FORCED = ["-t", "1", "--override-kv", "qwen3moe.block_count=int:1,qwen3moe.expert_used_count=int:1"]

# A chat template in the form of Hermes and Qwen, with tools.
HERMES = """{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


failures = []


def check(name, holds, shown=""):
    """Notes and prints what does not hold; the test goes on."""
    if not holds:
        failures.append(name)
        print(f"FAIL {name}: {shown!r}"[:1500])


def end_of_test():
    """Ends the test: it fails if anything did not hold."""
    print("failed" if failures else "all held")
    sys.exit(1 if failures else 0)


class Server:
    """moe-offload serve on a free port, until it is closed."""

    def __init__(self, command, model, *options):
        self.process = subprocess.Popen(
            [command, "serve", "-m", model, "--port", "0", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"listening on http://[^ ]*:(\d+)$", line.rstrip())
            if found:
                break
        else:
            raise RuntimeError("the server ended: " + "".join(self.log))
        self.port = int(found.group(1))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def send_signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=120):
        status = self.process.wait(seconds)
        self.reader.join(5)
        return status

    def close(self):
        if self.process.poll() is None:
            self.send_signal()
        return self.wait()

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """The status, the headers and the bytes of the answer."""
        connection = self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def post(self, path, body, headers=None):
        """The status and the object of the answer."""
        status, _, data = self.request("POST", path, body, headers)
        return status, json.loads(data)

    def get(self, path, headers=None):
        status, _, data = self.request("GET", path, None, headers)
        return status, json.loads(data)

    def stream(self, path, body):
        """The objects of the events of a stream, "[DONE]" among them."""
        status, headers, data = self.request("POST", path, dict(body, stream=True))
        assert status == 200, (status, data)
        assert headers["Content-Type"] == "text/event-stream", headers["Content-Type"]
        events = []
        for event in data.decode("utf-8").split("\n\n"):
            if event.startswith("data: "):
                events.append(event[6:])
            else:
                assert event == "" or event.startswith(":"), event
        return [e if e == "[DONE]" else json.loads(e) for e in events]

    def metrics(self):
        status, headers, data = self.request("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain")
        return {m.group(1): int(m.group(2))
                for m in re.finditer(r"^moe_([a-z_]+) (\d+)$", data.decode(), re.M)}

    def raw(self, data, timeout=120, half_close=False):
        """Sends bytes as they are; the bytes that come back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            out = b""
            while True:
                piece = s.recv(65536)
                if not piece:
                    return out
                out += piece


def wait_until(holds, seconds=120):
    """Whether holds() is true at some time by then."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def run(command, model, prompt, *options, chat=False):
    """What `run` writes to standard output."""
    arguments = ["--chat"] if chat else []
    return subprocess.run([command, "run", "-m", model, *arguments, "-p", prompt, "--quiet",
                           *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          check=True, timeout=120, env=dict(os.environ, LC_ALL="C")).stdout
