# SPDX-License-Identifier: MIT
"""A server of files on loopback that gives ranges, at a stated speed, with faults that tests switch on."""
import http.server
import re
import threading
import time


class Link:
    """What all connections share: so many bytes a second."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s, self.lock, self.free_at = bytes_per_s, threading.Lock(), 0.0

    def send(self, n):
        if not self.bytes_per_s:
            return
        with self.lock:
            now = time.monotonic()
            self.free_at = max(self.free_at, now) + n / self.bytes_per_s
            wait = self.free_at - now
        if wait > 0.002:
            time.sleep(wait)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, *_):
        pass

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        try:
            self.give(self.server.owner)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def give(self, server):
        path = self.path.split("?")[0]
        with server.lock:
            server.requests.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
            fault = server.answers.pop(0) if server.answers else None
            number = len(server.requests)
        if fault is not None:
            return self.answer(*fault)
        if server.dead_after is not None and number > server.dead_after:
            time.sleep(server.dead_seconds)
            self.close_connection = True
            return None
        if path in server.redirects:
            return self.answer(302, {"Location": server.redirects[path]})
        data = server.files.get(path)
        if data is None:
            return self.answer(404)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        headers = {"Accept-Ranges": "bytes"} | ({"ETag": f'"{server.version}"'} if server.version else {})
        status, start, end = 200, 0, len(data)
        if asked and not server.ignore_ranges:
            start, end = int(asked.group(1)), min(int(asked.group(2)) + 1, len(data))
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data) + server.total_off}"
            status = 206
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        cut = server.truncate and end - start > server.truncate
        end = start + server.truncate if cut else end
        for at in range(start, end, 1 << 16):
            piece = data[at:min(at + (1 << 16), end)]
            server.link.send(len(piece))
            self.wfile.write(piece)
            with server.lock:
                server.sent += len(piece)
        if cut:
            with server.lock:
                server.truncate = server.truncate if server.truncates_always else 0
            self.wfile.flush()
            self.close_connection = True
        return None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # a client that was killed


class RangeServer:
    """with RangeServer({"/model.gguf": bytes-like}) as server: server.address + "/model.gguf" """

    def __init__(self, files, bytes_per_s=0):
        self.files, self.link, self.lock = files, Link(bytes_per_s), threading.Lock()
        self.http = Server(("127.0.0.1", 0), Handler)
        self.http.owner = self
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        self.reset()

    def reset(self):
        with self.lock:
            self.requests, self.sent, self.answers, self.redirects = [], 0, [], {}
            self.version, self.ignore_ranges, self.truncate, self.total_off = "v1", False, 0, 0
            self.truncates_always, self.dead_after, self.dead_seconds = False, None, 0
            self.link.bytes_per_s = 0

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
