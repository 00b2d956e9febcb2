# SPDX-License-Identifier: MIT
"""Long prompts of 1, 8 and 64 clients at a time, which share panels: the process stays in its budget (the peak,
VmHWM), all get what they get alone, and they read the model a few times, not once for each prompt. Prints the
peaks and bytes. Arguments: the command, a model; then, if given, the numbers of clients, each alone or as N:S with
prompts of about S sentences of 18 tokens."""
import re
import sys
import threading

from serving import Server, check, end_of_test

command, model = sys.argv[1:3]
SETTINGS = [[int(part) for part in (a + ":6").split(":")[:2]] for a in sys.argv[3:] or ["1", "8", "64"]]
MIB = 1 << 20
WORDS = "The old man told the children a story about a small boat that went out to sea. "


def peak(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) << 10


def complete(server, i, sentences):
    body = {"prompt": f"{i}. " + WORDS * (sentences + i % 5), "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    status, answer = server.post("/v1/completions", body)
    check(f"client {i}: the status", status == 200, answer)
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]


def run(n, sentences):
    context = 32 * (sentences + 4)
    budget = 64 + 3 * n * context // 640
    server = Server(command, model, "--host-memory", f"{budget}M", "--parallel", str(n), "-c", str(context), "-b", "64",
                    "--expert-cache", "30%", "--prefetch", "off", "--speculate", "off")
    answers = [None] * n

    def ask(i):
        answers[i] = complete(server, i, sentences)

    try:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        read, most = server.metrics()["disk_read_bytes_total"], peak(server)
        print(f"{n} prompts, {sum(a[1] for a in answers)} tokens: peak {most / MIB:.1f} of {budget} MiB, "
              f"{read / MIB:.0f} MiB read")
        check(f"{n} clients: the peak", most <= budget * MIB, most / MIB)
        for i in range(0, n, 9):
            check(f"client {i}: alone", complete(server, i, sentences) == answers[i], answers[i])
    finally:
        status = server.close()
    check("the end", status == 0, server.log[-5:])
    return read


READ = [run(n, sentences) for n, sentences in SETTINGS]
if len(sys.argv) == 3:
    check("the prompts share the reading", READ[-1] <= 12 * READ[0], READ)
end_of_test()
