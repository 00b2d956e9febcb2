#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts deliberate bugs into the code of a world, one at a time, and says which of them its simulation finds.

    tests/simulation/mutants.py BUILD-FOLDER [--world store|server] [--seeds N] [--only NAME,..]

A mutant is a source with one text replaced; it is compiled like the original and linked before it. The tree
is not changed. A text that is no longer there is an error: mend the mutant. Exit status 0: at most one in
twenty is missed."""
import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time

import server_mutants

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# name: (file, [(text, replacement), ..])
STORE_MUTANTS = {
    "missed-settle": ("offload/expert_store_slots.c", [(  # a failed request keeps its host slot
        "    settle_host(store, slot);\n    if (state == MOE_SLOT_READY) {",
        "    if (state == MOE_SLOT_READY) {\n        settle_host(store, slot);")]),
    "second-look": ("offload/expert_store_slots.c", [(  # what arrives between two looks is never settled
        "    settle_host(store, slot);\n    if (state == MOE_SLOT_READY) {",
        "    if (state == moe_mover_state(store->mover, slot)) {\n        settle_host(store, slot);\n    }\n"
        "    if (moe_mover_state(store->mover, slot) == MOE_SLOT_READY) {"),
        ("    if (!moe_mover_is_end(state)) {", "    if (!moe_mover_is_end(moe_mover_state(store->mover, slot))) {")]),
    "cancel-keeps-host-slot": ("offload/expert_store_slots.c", [(
        "        return false;\n    }\n    settle_host(store, slot);\n    return change_use",
        "        return false;\n    }\n    return change_use")]),
    "missed-unpin": ("offload/expert_store_ahead.c", [(  # a prefetch that has arrived stays pinned
        "            moe_store_release(store, slot, MOE_HOLD_AHEAD);\n            break;", "            break;")]),
    "double-unpin": ("offload/expert_store_slots.c", [(
        "    leave_list(store, slot, hold);\n    moe_expert_cache_unpin(store->cache, moe_expert_cache_key_of(store->cache, slot));",
        "    leave_list(store, slot, hold);\n    moe_expert_cache_unpin(store->cache, moe_expert_cache_key_of(store->cache, slot));\n"
        "    if (hold == MOE_HOLD_FORESEEN && moe_expert_cache_is_pinned(store->cache, moe_expert_cache_key_of(store->cache, slot))) {\n"
        "        moe_expert_cache_unpin(store->cache, moe_expert_cache_key_of(store->cache, slot));\n    }")]),
    "let-go-while-moving": ("offload/expert_store_layer.c", [(
        "        moe_store_hold(store, slot, MOE_HOLD_AHEAD);\n        moe_store_release", "        moe_store_release")]),
    "nobody-told": ("offload/mover_requests.c", [(  # lost wake-up: the end of a request
        "    pthread_cond_broadcast(&mover->finished);\n    pthread_mutex_unlock(&mover->lock);\n}\n\nvoid moe_mover_wake",
        "    pthread_mutex_unlock(&mover->lock);\n}\n\nvoid moe_mover_wake")]),
    "submit-wakes-nobody": ("offload/mover_requests.c", [(
        "        moe_mover_enqueue_save(mover, index);\n    }\n    pthread_mutex_unlock(&mover->lock);\n    moe_mover_wake(mover);",
        "        moe_mover_enqueue_save(mover, index);\n    }\n    pthread_mutex_unlock(&mover->lock);")]),
    "link-notice-lost": ("offload/mover_open.c", [(
        "    pthread_mutex_lock(&mover->lock);\n    moe_mover_wake(mover);\n    pthread_mutex_unlock(&mover->lock);\n}\n\nstatic void listen",
        "    pthread_mutex_lock(&mover->lock);\n    pthread_mutex_unlock(&mover->lock);\n}\n\nstatic void listen")]),
    "wait-without-look": ("offload/mover_requests.c", [(  # what ends between the first look and the lock
        "    while (status == MOE_OK && !any_settled(mover, slots, n)) {",
        "    for (bool first = true; status == MOE_OK && (first || !any_settled(mover, slots, n)); first = false) {")]),
    "told-before-done": ("offload/mover_requests.c", [(  # wrong order: waiters are woken, then the state changes
        "    moe_mover_set_state(slot, slot->status == MOE_OK ? MOE_SLOT_READY : MOE_SLOT_FAILED);\n", ""), (
        "    pthread_cond_broadcast(&mover->finished);\n    pthread_mutex_unlock(&mover->lock);\n}\n\nvoid moe_mover_wake",
        "    pthread_cond_broadcast(&mover->finished);\n    pthread_mutex_unlock(&mover->lock);\n"
        "    moe_mover_set_state(slot, slot->status == MOE_OK ? MOE_SLOT_READY : MOE_SLOT_FAILED);\n}\n\nvoid moe_mover_wake")]),
    "save-overwritten": ("offload/mover_link.c", [(
        "while (index != MOE_MOVER_NONE && moe_mover_is_saving(&mover->slots[index])) {",
        "while (false && index != MOE_MOVER_NONE && moe_mover_is_saving(&mover->slots[index])) {")]),
    "lost-save-counts": ("offload/mover_link.c", [(
        "slot->save_state = state == MOE_OK ? MOE_SAVE_DONE : MOE_SAVE_LOST;", "slot->save_state = MOE_SAVE_DONE;")]),
    "cancel-while-saving": ("offload/mover_requests.c", [(
        "mover->slots[index].save_state != MOE_SAVE_UNDER_WAY && take_out(mover, index, &stage);",
        "take_out(mover, index, &stage);")]),
    "checksum-not-checked": ("offload/mover_thread.c", [(
        "    if (matches(slot, part, sources)) {",
        "    if (part == MOE_EXPERT_DOWN || matches(slot, part, sources)) {")]),
    "short-read-is-whole": ("offload/io/range_blocks.c", [(
        "    if (have >= block->need) {", "    if (have >= block->need || have > 4096) {")]),
    "rest-in-wrong-place": ("offload/io/range_blocks.c", [(".dst = block->dst + block->done,", ".dst = block->dst,")]),
    "old-answer-counts": ("offload/io/range_blocks.c", [(  # a second answer to a read ends the next one
        "if (slot >= r->depth || block->generation != (uint32_t)(completion->user_data >> 32)) {",
        "if (slot >= r->depth) {")]),
    "forgotten-host-release": ("offload/expert_store_host.c", [(
        "        moe_host_tier_release(store->host, store->keys[store->host_positions[i]]);\n", "        ;\n")]),
    "host-computes-unpinned": ("offload/host_tier.c", [(
        "    note_hit(tier, slot);\n    moe_expert_cache_pin(tier->cache, key);\n}", "    note_hit(tier, slot);\n}"), (
        "void moe_host_tier_release(moe_host_tier *tier, uint32_t key)\n{\n    moe_expert_cache_unpin(tier->cache, key);",
        "void moe_host_tier_release(moe_host_tier *tier, uint32_t key)\n{\n    (void)tier;\n    (void)key;")]),
    "filled-twice": ("offload/host_tier.c", [(  # a host slot that is being saved to is taken for a read, too
        "    if (slot != MOE_SLOT_NONE && tier->slots[slot].use == HOST_FILLING) {\n        return false;\n    }\n", "")]),
    "wrong-key-dropped": ("offload/host_tier.c", [(
        "        set_use(tier, slot, HOST_EMPTY);\n        moe_expert_cache_drop(tier->cache, key);",
        "        set_use(tier, slot, HOST_EMPTY);\n        moe_expert_cache_drop(tier->cache, key ^ 1);")]),
    "loan-ends-early": ("offload/memory_border.c", [(
        "        if (loan->used == 0) {", "        if (loan->used == 0 || (loan->used & (loan->used - 1)) == 0) {")]),
    "freed-under-a-hang": ("offload/expert_store_open.c", [(
        "    if (!moe_mover_close(&store->mover)) {\n        leave_memory(store);\n    }", "    (void)moe_mover_close(&store->mover);\n    if (false) {\n        leave_memory(store);\n    }")]),
    "failed-copy-is-ready": ("offload/mover_link.c", [(
        "    mover->slots[copy.slot].status = state;", "    mover->slots[copy.slot].status = MOE_OK;")]),
}


# The program, the library of what it simulates, and the mutants of that.
WORLDS = {"store": ("tests/simulation/test_simulation", "libsimulated.a.p", STORE_MUTANTS),
          "server": ("tests/simulation/test_server_simulation", "libsimulated_server.a.p", server_mutants.MUTANTS)}


def commands_of(build, program, library):
    """The commands that compile a source of the simulated library, by source, and the one that links."""
    text = subprocess.run(["ninja", "-C", build, "-t", "commands", program], capture_output=True, text=True,
                          check=True).stdout
    compiles = {}
    link = None
    for line in text.splitlines():
        words = shlex.split(line)
        if "-o" in words and words[words.index("-o") + 1] == program:
            link = words
        elif "-c" in words and library in line:
            source = os.path.normpath(os.path.join(build, words[words.index("-c") + 1]))
            compiles[os.path.relpath(source, ROOT)] = words
    return compiles, link


def mutate(mutants, name):
    path, changes = mutants[name]
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit("%s: %s has this text %d times, and not once:\n%s" % (name, path, text.count(old), old))
        text = text.replace(old, new)
    return path, text


def make_program(name, mutant, build, compiles, link, folder):
    path, text = mutant
    source = os.path.join(folder, name + ".c")
    made = os.path.join(folder, name + ".o")
    program = os.path.join(folder, name)
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    words = [word for word in compiles[path] if word not in ("-Werror", "-MD")]
    for option in ("-MF", "-MQ"):
        if option in words:
            at = words.index(option)
            del words[at:at + 2]
    words[words.index("-c") + 1] = source
    words[words.index("-o") + 1] = made
    subprocess.run(words, cwd=build, check=True)
    words = list(link)
    words[words.index("-o") + 1] = program
    words.insert(words.index("-o") + 2, made)
    subprocess.run(words, cwd=build, check=True)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--world", choices=WORLDS, default="store")
    parser.add_argument("--seeds", type=int, default=20000)
    parser.add_argument("--only")
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    simulation, library, mutants = WORLDS[options.world]
    subprocess.run(["ninja", "-C", build, "--quiet", simulation], check=True)
    compiles, link = commands_of(build, simulation, library)
    names = options.only.split(",") if options.only else list(mutants)
    n_found = 0
    with tempfile.TemporaryDirectory() as folder:
        texts = {name: mutate(mutants, name) for name in names}
        for name in names:
            program = make_program(name, texts[name], build, compiles, link, folder)
            began = time.monotonic()
            done = subprocess.run([program, "--seeds", "1-%d" % options.seeds], capture_output=True, text=True, check=False)
            line = next((text for text in done.stdout.splitlines() if text.startswith("seed ")), "")
            n_found += line != ""
            print("%-24s %-6s %5.1f s  %s" % (name, "found" if line else "MISSED", time.monotonic() - began, line[:150]),
                  flush=True)
            os.unlink(program)
    print("%d of %d found" % (n_found, len(names)))
    return 0 if 20 * (len(names) - n_found) <= len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
