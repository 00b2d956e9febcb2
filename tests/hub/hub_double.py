# SPDX-License-Identifier: MIT
"""A hub of models on loopback, with the answers of huggingface.co: the list of a repository's files, addresses that
lead to a second host, which sends ranges of files. Faults are switched on by tests."""
import hashlib
import http.server
import json
import re
import ssl
import threading
import time
import urllib.parse

STORAGE_HOST = "127.0.0.2"  # another host than the hub's, as the hub's storage is


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repository:
    """files: name -> bytes. Small ones (under `small` bytes) are in git itself, others in storage. others: what
    other revisions have, by their names."""

    def __init__(self, files, small=0, gated=False, others=None):
        self.files, self.small, self.gated, self.others = files, small, gated, others or {}
        self.sha256 = {name: sha256(data) for name, data in files.items()}
        self.git_sha1 = {name: git_sha1(data) for name, data in files.items()}
        self.commit = hashlib.sha1(json.dumps(list(self.sha256.items())).encode()).hexdigest()

    def at(self, revision):
        """The revision's files, by the name of a branch, a tag or a reference, or by its commit; None."""
        if revision in ("main", self.commit):
            return self
        return next((r for name, r in self.others.items() if revision in (name, r.commit)), None)

    def is_linked(self, name):
        return len(self.files[name]) >= self.small

    def sibling(self, name):
        data = self.files[name]
        entry = {"rfilename": name, "size": len(data), "blobId": self.git_sha1[name]}
        if self.is_linked(name):
            entry["lfs"] = {"sha256": self.sha256[name], "size": len(data), "pointerSize": 135}
        return entry


class Faults:
    """What goes wrong. A list of answers is used up, one a request to storage or to the hub."""

    def __init__(self):
        self.storage_answers = []  # (status, headers)
        self.hub_answers = []
        self.truncate = 0  # bytes after which storage closes the connection
        self.ignore_ranges = False
        self.flip = False  # one byte of what storage sends is another
        self.linked_size = None
        self.listed_size = None
        self.commit = None  # what the list says
        self.names = {}  # listed name -> another
        self.extra_files = 0
        self.redirects = None  # how often the hub redirects to itself; an address: there
        self.bytes_per_s = 0
        self.silent = False  # storage accepts and says nothing
        self.shift = 0  # storage sends another range than was asked for


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    is_storage = False

    def log_message(self, *_):
        pass

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        double = self.server.double
        with double.lock:
            double.requests.append((self.is_storage, self.command, self.path, self.headers.get("Authorization"),
                                    self.headers.get("Range")))
            answers = double.faults.storage_answers if self.is_storage else double.faults.hub_answers
            fault = answers.pop(0) if answers else None
        if fault is not None:
            return self.answer(fault[0], fault[1], b'{"error":"a fault"}')
        try:
            return self.from_storage(double) if self.is_storage else self.from_hub(double)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # ---- The hub ----

    def from_hub(self, double):
        url = urllib.parse.urlsplit(self.path)
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(/revision/([^/]+))?", url.path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path)
        name = (listing or resolve).group(1) if listing or resolve else None
        repository = double.repositories.get(name)
        given = self.headers.get("Authorization")
        if repository is None:
            # The hub does not say which repositories are private.
            return self.answer(404 if given else 401, {"X-Error-Code": "RepoNotFound"}, b'{"error":"not found"}')
        if repository.gated and given != f"Bearer {double.token}":
            return self.answer(403 if given else 401, {"X-Error-Code": "GatedRepo"}, b'{"error":"gated"}')
        revision = urllib.parse.unquote((listing.group(3) or "main") if listing else resolve.group(2))
        repository = repository.at(revision)
        if repository is None:
            return self.answer(404, {"X-Error-Code": "RevisionNotFound"}, b'{"error":"Invalid rev id"}')
        if listing:
            return self.list_files(double, name, repository, url.query)
        return self.resolve(double, repository, urllib.parse.unquote(resolve.group(3)))

    def list_files(self, double, name, repository, query):
        blobs = "blobs" in query
        files = [repository.sibling(f) if blobs else {"rfilename": f} for f in repository.files]
        for entry in files:
            entry["rfilename"] = double.faults.names.get(entry["rfilename"], entry["rfilename"])
            if double.faults.listed_size is not None:
                entry["size"] = double.faults.listed_size
        files += [{"rfilename": f"x{i}.bin", "size": 1} for i in range(double.faults.extra_files)]
        commit = double.faults.commit or repository.commit
        body = json.dumps({"_id": "1", "id": name, "modelId": name, "sha": commit, "private": False,
                           "tags": ["gguf"], "downloads": 1, "likes": 0, "siblings": files}).encode()
        return self.answer(200, {"Content-Type": "application/json"}, body)

    def resolve(self, double, repository, name):
        faults = double.faults
        if faults.redirects is not None:
            to = faults.redirects if isinstance(faults.redirects, str) else self.path
            return self.answer(302, {"Location": to})
        if name not in repository.files:
            return self.answer(404, {"X-Error-Code": "EntryNotFound"}, b'{"error":"no entry"}')
        data = repository.files[name]
        headers = {"X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if not repository.is_linked(name):
            headers["ETag"] = f'"{repository.git_sha1[name]}"'
            return self.send_range(data, headers)
        size = len(data) if faults.linked_size is None else faults.linked_size
        tag = repository.sha256[name]
        headers.update({"X-Linked-Size": str(size), "X-Linked-ETag": f'"{tag}"', "ETag": f'"{tag}"',
                        "Location": f"{double.storage}/{tag}?signature=1"})
        return self.answer(302, headers)

    # ---- Storage ----

    def from_storage(self, double):
        if double.faults.silent:
            time.sleep(30)
        wanted = self.path.strip("/").split("?")[0]
        for repository in (r for first in double.repositories.values() for r in (first, *first.others.values())):
            for name, tag in repository.sha256.items():
                if tag == wanted:
                    return self.send_range(repository.files[name], {"ETag": '"d41d8cd98f00b204e9800998ecf8427e-1"'})
        return self.answer(404)

    def send_range(self, data, headers):
        faults = self.server.double.faults
        size = len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        status = 200
        if asked and not faults.ignore_ranges:
            start = int(asked.group(1)) + faults.shift
            end = min(int(asked.group(2) or len(data) - 1) + faults.shift, len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{size}"
            data, status = data[start:end + 1], 206
        if self.is_storage and faults.flip and (status == 200 or end == size - 1):
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.is_storage and faults.truncate and len(data) > faults.truncate
        data = data[:faults.truncate] if cut else data
        step = 1 << 16
        for at in range(0, len(data), step):
            self.wfile.write(data[at:at + step])
            self.server.double.note_sent(min(step, len(data) - at))
            if faults.bytes_per_s:
                time.sleep(step / faults.bytes_per_s)
        if cut:
            self.close_connection = True


class StorageHandler(Handler):
    is_storage = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # a client that went away, or that does not trust the certificate


class HubDouble:
    """with HubDouble({"owner/name": Repository(...)}) as hub: hub.endpoint. certificate: a file with it and its key,
    for HTTPS; storage_certificate: the storage's, "" for plain HTTP."""

    def __init__(self, repositories, token="hf_right", certificate="", storage_certificate=None):
        self.repositories, self.token = repositories, token
        self.faults, self.requests, self.lock = Faults(), [], threading.Lock()
        self.sent = 0
        self.servers = [Server(("127.0.0.1", 0), Handler), Server((STORAGE_HOST, 0), StorageHandler)]
        certificates = (certificate, certificate if storage_certificate is None else storage_certificate)
        for server, file in zip(self.servers, certificates):
            server.double = self
            if file:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(file)
                # A handshake is a connection's first read, in its own thread.
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.endpoint, self.storage = (
            f"http{'s' if file else ''}://{host}:{server.server_port}"
            for server, file, host in zip(self.servers, certificates, ("127.0.0.1", STORAGE_HOST)))

    def __enter__(self):
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def note_sent(self, n):
        with self.lock:
            self.sent += n

    def reset(self):
        with self.lock:
            self.faults, self.requests, self.sent = Faults(), [], 0
