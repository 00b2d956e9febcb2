# SPDX-License-Identifier: MIT
"""Two replicas behind the proxies of runtime/packaging/proxies, with TLS, on loopback: texts are those
of a replica, streams come token by token, and when a replica ends the other one answers.
Arguments: the command, a model, the folder of the proxies' files. Skips (77) without nginx, haproxy
and openssl."""
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from serving import Server, check, end_of_test

command, model, proxies = sys.argv[1:4]
BODY = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, path, body, stream=False):
    """The status, the text, and how many reads the answer took."""
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=120)
    try:
        connection.request("POST", path, json.dumps(dict(body, stream=stream)),
                           {"Authorization": "Bearer somebody"})
        answer = connection.getresponse()
        if not stream:
            data = answer.read()
            return answer.status, json.loads(data)["choices"][0]["text"] \
                if answer.status == 200 else data, 1
        text, reads = "", set()
        for line in answer:
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                reads.add(round(time.monotonic(), 2))
        return answer.status, text, len(reads)
    finally:
        connection.close()


def write_file(folder, name, ports, listening):
    with open(os.path.join(proxies, name), encoding="utf-8") as file:
        text = file.read()
    for old, new in (("127.0.0.1:8081", f"127.0.0.1:{ports[0]}"),
                     ("127.0.0.1:8082", f"127.0.0.1:{ports[1]}"),
                     ("listen 8443", f"listen 127.0.0.1:{listening}"),
                     ("bind :8444", f"bind 127.0.0.1:{listening}"), ("/etc/moe-offload", folder)):
        text = text.replace(old, new)
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def behind(name, start):
    folder = tempfile.mkdtemp(prefix="moe-proxies-")
    replicas = [Server(command, model, "-t", "1", "-c", "512", "--parallel", "2", "--api-key",
                       "somebody") for _ in range(2)]
    proxy = None
    try:
        wanted = replicas[0].post("/v1/completions", BODY, {"Authorization": "Bearer somebody"})[1]["choices"][0]["text"]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-keyout", folder + "/server.key", "-out",
                        folder + "/server.pem"], check=True, stderr=subprocess.DEVNULL)
        with open(folder + "/server-and-key.pem", "w") as both:
            both.write(open(folder + "/server.pem").read() + open(folder + "/server.key").read())
        port = free_port()
        path = write_file(folder, name, [r.port for r in replicas], port)
        proxy = subprocess.Popen(start(path, folder), stderr=subprocess.PIPE)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        time.sleep(2.5)  # the replicas are asked for /health
        status, text, _ = ask(port, "/v1/completions", BODY)
        check(f"{name}: the text", (status, text) == (200, wanted), (status, text))
        status, text, reads = ask(port, "/v1/completions", BODY, True)
        check(f"{name}: a stream", (status, text) == (200, wanted) and reads > 3, (status, reads))
        for i in range(2):
            status = replicas[i].close()
            check(f"{name}: replica {i} ends", status == 0, status)
            if i == 0:
                answers = [ask(port, "/v1/completions", dict(BODY, max_tokens=5)) for _ in range(6)]
                check(f"{name}: the other replica answers", all(a[0] == 200 for a in answers), answers)
        time.sleep(1.5)
        status, _, _ = ask(port, "/v1/completions", BODY)
        check(f"{name}: without replicas", status in (502, 503), status)
    finally:
        if proxy is not None:
            proxy.terminate()
            proxy.wait(20)
        for replica in replicas:
            replica.close()
        shutil.rmtree(folder, ignore_errors=True)


os.environ["PATH"] += ":/usr/sbin"
for program in ("nginx", "haproxy", "openssl"):
    if shutil.which(program) is None:
        print(f"skipped: {program} is not installed")
        sys.exit(77)
behind("nginx.conf", lambda path, folder: ["nginx", "-c", path, "-e", folder + "/log", "-g",
                                           f"daemon off; pid {folder}/pid;"])
behind("haproxy.cfg", lambda path, folder: ["haproxy", "-db", "-f", path])
end_of_test()
