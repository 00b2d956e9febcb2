# SPDX-License-Identifier: MIT
"""Should a server choose by experts who shares a pass? Simulates batches on the routing of real texts:
how many experts are read from the disk, and how many are computed with, for each token written.

    python3 bench/batch_experts.py build/moe-offload examples/demo-model/moe-demo-q4.gguf

Every session writes one text; sessions have texts of three kinds (arithmetic, drama, C). An expert
that a pass needs is read at most once in it. Reads are told for a cache that keeps what was used most
often, and for Belady's, which knows the future and which no policy can beat.

  all      every session is in every pass, as `serve` does it
  chance   groups that stay together, by chance; the groups take turns, a token each
  overlap  before each pass the group is chosen anew: the session that has waited longest, then those
           whose next experts add the fewest reads. An oracle tells the next experts, so that no
           guess could do better.
  kind     groups of texts of one kind; the groups take turns, so many tokens each"""
import argparse
import collections
import heapq
import json
import os
import random
import subprocess
import tempfile

TEXTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "texts")
KINDS = ("gsm8k.txt", "shakespeare.txt", "length_survival.c.txt")


def routes_of(command, model, text, n):
    """For each of n tokens the set of (layer, expert) that it needs."""
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace")
        prompt = os.path.join(folder, "text")
        with open(prompt, "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run([command, "run", "-m", model, "--raw", "-f", prompt, "-n", "1", "--quiet",
                        "--trace", trace], check=True,
                       stdout=subprocess.DEVNULL)
        with open(trace, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file][1:]
    return [frozenset((l, e) for l, layer in enumerate(row["layers"]) for e in layer)
            for row in rows[:n]]


def frequent(passes, n_slots):
    """Reads with a cache that keeps the experts used most often."""
    used = collections.Counter()
    slots, n_read = set(), 0
    for needed in passes:
        for key in needed:
            used[key] += 1
            if key not in slots:
                n_read += 1
                slots.add(key)
                if len(slots) > n_slots:
                    slots.remove(min(slots, key=lambda k: (used[k], k)))
    return n_read


def belady(passes, n_slots):
    """Reads with the cache that evicts what is needed last: none reads less."""
    uses = collections.defaultdict(list)
    for i, needed in enumerate(passes):
        for key in needed:
            uses[key].append(i)
    for times in uses.values():
        times.append(len(passes))
        times.reverse()
    next_use, heap, n_read = {}, [], 0
    for needed in passes:
        for key in needed:
            uses[key].pop()
            n_read += key not in next_use
            next_use[key] = uses[key][-1]
            heapq.heappush(heap, (-next_use[key], key))
            while len(next_use) > n_slots:
                at, last = heapq.heappop(heap)
                if next_use.get(last) == -at:
                    del next_use[last]
    return n_read


def union(sets):
    return sorted(frozenset().union(*sets))


def turns(sessions, groups, n, each):
    """The passes when groups take turns; `each`: tokens of a turn."""
    for first in range(0, n, each):
        for group in groups:
            for at in range(first, min(first + each, n)):
                yield union([sessions[i][at] for i in group])


def by_overlap(sessions, n, size, n_slots):
    """The passes when each is composed anew."""
    done = [0] * len(sessions)
    last = list(range(-len(sessions), 0))
    used, held, clock = collections.Counter(), frozenset(), 0
    while min(done) < n:
        left = [i for i in range(len(sessions)) if done[i] < n]
        lowest = min(left, key=lambda i: (done[i], last[i]))
        group = [lowest]
        needed = set(sessions[lowest][done[lowest]])
        # Nobody may be more than a few tokens ahead: a stream must not stall.
        others = [i for i in left if i != lowest and done[i] <= done[lowest] + 4]
        while others and len(group) < size:
            best = min(others, key=lambda i: len(sessions[i][done[i]] - held - needed))
            others.remove(best)
            group.append(best)
            needed |= sessions[best][done[best]]
        yield sorted(needed)
        used.update(needed)
        held = frozenset(key for key, _ in used.most_common(n_slots))
        for i in group:
            done[i] += 1
            last[i] = clock
        clock += 1


def compose(sessions, n_slots, n, size):
    """(name, passes) of each way to compose batches."""
    chance = list(range(len(sessions)))
    random.Random(1).shuffle(chance)

    def cut(order):
        return [order[i:i + size] for i in range(0, len(order), size)]

    kinds = cut(sorted(range(len(sessions)), key=lambda i: i % len(KINDS)))
    if size >= len(sessions):
        yield "all", turns(sessions, [chance], n, 1)
        return
    yield "chance", turns(sessions, cut(chance), n, 1)
    yield "overlap", by_overlap(sessions, n, size, n_slots)
    yield "kind, 1 token", turns(sessions, kinds, n, 1)
    yield f"kind, {n} tokens", turns(sessions, kinds, n, n)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--groups", type=lambda text: [int(n) for n in text.split(",")],
                        default=[12, 8, 4])
    parser.add_argument("--shares", type=lambda text: [int(n) for n in text.split(",")],
                        default=[10, 25, 50, 75], help="of the experts that the cache holds, in %%")
    parser.add_argument("-n", type=int, default=96, help="tokens of a session")
    given = parser.parse_args()
    texts = []
    for kind in KINDS:
        with open(os.path.join(TEXTS, kind), encoding="utf-8") as file:
            texts.append(file.read())
    sessions = []
    for i in range(given.sessions):
        text = texts[i % len(KINDS)]
        part = len(text) * len(KINDS) // (given.sessions + len(KINDS))
        begin = i // len(KINDS) * part
        routes = routes_of(given.command, given.model, text[begin:begin + 8 * given.n], given.n)
        assert len(routes) == given.n, f"a text of {KINDS[i % len(KINDS)]} is too short"
        sessions.append(routes)
    n_experts = max(1, sum(1 for _ in frozenset().union(*(r for s in sessions for r in s))))
    print(f"{given.sessions} sessions, {given.n} tokens each; {n_experts} experts used; {KINDS}")
    print("| cache | group | composed by | read a token: most used kept | best cache | computed |")
    print("|---|---|---|---|---|---|")
    n_tokens = given.sessions * given.n
    for share in given.shares:
        n_slots = n_experts * share // 100
        for size in [given.sessions] + given.groups:
            for name, passes in compose(sessions, n_slots, given.n, size):
                passes = list(passes)
                counts = (frequent(passes, n_slots), belady(passes, n_slots),
                          sum(len(p) for p in passes))
                print(f"| {share} % | {size} | {name} | " +
                      " | ".join(f"{count / n_tokens:.2f}" for count in counts) + " |", flush=True)


main()
