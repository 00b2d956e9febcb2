# SPDX-License-Identifier: MIT
"""package_test.py LIBRARY TREE MODEL.gguf COMMAND: builds the wheel, installs it into a virtual
environment, and runs itself there with --inside. Skips (77) where Python lacks what that needs."""
import os
import re
import subprocess
import sys
import tempfile

library, tree, model, command = (os.path.abspath(a) for a in sys.argv[1:5])
package = os.path.join(tree, "runtime", "python")
failures = []


def check(name, holds, shown=""):
    if not holds:
        failures.append(name)
        print(f"FAIL {name}: {shown!r}"[:1500])


def outside():
    try:
        import numpy  # noqa: F401
        import setuptools  # noqa: F401
        import venv
        import pip  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    for name, option in (("_layout.py", []), ("_options.py", ["--options"])):
        made = subprocess.run([sys.executable, os.path.join(package, "make_layout.py"), *option, *headers()],
                              capture_output=True, text=True, check=True).stdout
        with open(os.path.join(package, "moe_offload", name), encoding="utf-8") as file:
            check(f"{name} is that of the headers: runtime/python/make_layout.py writes it",
                  file.read() == made)
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "source")
        subprocess.run(["cp", "-R", package, source], check=True)
        wheel = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps",
                                "--no-build-isolation", "-w", folder, source],
                               capture_output=True, text=True)
        if "No module named 'wheel'" in wheel.stderr or "invalid command 'bdist_wheel'" in wheel.stderr:
            print("skipped: no module wheel")
            sys.exit(77)
        check("the wheel is built", wheel.returncode == 0, wheel.stderr)
        wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
        if not wheels:
            sys.exit(1)
        home = os.path.join(folder, "venv")
        venv.create(home, system_site_packages=True, with_pip=False)
        python = os.path.join(home, "bin", "python")
        # numpy is this interpreter's, wherever it has it from.
        paths = os.path.dirname(os.path.dirname(numpy.__file__))
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index",
                        "--target", os.path.join(folder, "site"), os.path.join(folder, wheels[0])],
                       check=True)
        done = subprocess.run([python, os.path.abspath(__file__), library, tree, model, command,
                               "--inside"], cwd=folder,
                              env=dict(os.environ, MOE_OFFLOAD_LIBRARY=library, PYTHONPATH=os.pathsep.join(
                                  [os.path.join(folder, "site"), paths])))
        check("inside", done.returncode == 0, done.returncode)


def headers():
    return [os.path.join(tree, "runtime", "include", "moe", name + ".h")
            for name in ("status", "types", "plan", "statistics", "sampling", "policy", "moe", "chat",
                         "embedding", "trace")]


def run(*arguments):
    return subprocess.run([command, "run", "-m", model, "--quiet", "--temp", "0", "--speculate",
                           "off", *arguments], capture_output=True, text=True, check=True).stdout


def test_layout(layout):
    """Sizes and offsets by the C compiler."""
    import ctypes
    names = [n for n in dir(layout) if n.startswith("moe_") and n != "moe_metadata_override_value"]
    lines = ["#include <stdio.h>", "#include <stddef.h>"]
    lines += [f'#include "{h}"' for h in headers()] + ["int main(void){"]
    wanted = []
    for name in names:
        struct = getattr(layout, name)
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        wanted.append((name, ctypes.sizeof(struct)))
        for member, _ in struct._fields_:
            lines.append(f'printf("%zu\\n", offsetof({name}, {member}));')
            wanted.append((f"{name}.{member}", getattr(struct, member).offset))
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "layout.c")
        with open(source, "w") as file:
            file.write("\n".join(lines + ["return 0;}"]))
        try:
            subprocess.run(["cc", "-I", os.path.join(tree, "runtime", "include"), source, "-o",
                            folder + "/layout"], check=True)
        except FileNotFoundError:
            print("no C compiler: the structs are not compared")
            return
        out = subprocess.run([folder + "/layout"], capture_output=True, text=True).stdout.split()
    differ = [(name, size, real) for (name, size), real in zip(wanted, out) if size != int(real)]
    check("structs", len(out) == len(wanted) > 200 and not differ, differ)


def test_embeddings(moe, np):
    texts = ["Once upon a time", "A dog ran.", "Once upon a time there was"]
    with moe.Engine(model, context=512, n_threads=2) as engine:
        found = engine.embed(texts)
        check("shape", found.shape == (3, engine.info["n_embd"]) and found.dtype == np.float32, found.shape)
        check("length 1", np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5), found)
        ids = [engine.tokenize(text) for text in texts]
        check("tokens, one by one", all((engine.embed([t])[0] == f).all() for t, f in zip(ids, found)))
        check("near", found[0] @ found[2] > found[0] @ found[1], found @ found.T)
        check("not normalized", not np.allclose(np.linalg.norm(
            engine.embed(texts, normalize=False), axis=1), 1))
        last = engine.embed(texts, pooling="last")
        check("last", last.shape == found.shape and not np.allclose(last, found))
        check("none", engine.embed([]).shape == (0, engine.info["n_embd"]))
        for given, kind in (("text", TypeError), ([3], TypeError), ([[]], moe.Error), ([[-1]], moe.Error)):
            try:
                engine.embed(given)
                check(f"embed({given!r}) is refused", False)
            except kind:
                pass


def test_text(moe, np):
    prompt = "Once upon a time"
    wanted = run("-p", prompt, "-n", "40")
    notes = []
    with moe.Engine(model, context=512, n_threads=2, log=notes.append) as engine:
        check("info", engine.info["context"] == 512 and engine.info["n_expert"] > 1, engine.info)
        tokens = engine.tokenize(prompt)
        check("tokens", engine.detokenize(tokens) == prompt, engine.detokenize(tokens))
        with engine.session(temperature=0) as session:
            pieces = list(session.stream(prompt, 40))
            check("the text of run", "".join(pieces) == wanted and len(pieces) > 10, pieces)
            check("the timeline", session.tokens[:len(tokens)] == tokens and
                  engine.detokenize(session.tokens[len(tokens):]) == wanted, session.tokens)
            session.truncate(len(tokens))
            session.feed([])
            other = session.fork()
            path = os.path.join(tempfile.gettempdir(), f"moe-python-{os.getpid()}")
            session.save(path)
            loaded = engine.load(path)
            os.remove(path)
            check("a loaded session", loaded.tokens == session.tokens)
            loaded.close()
            other.close()
        sessions = [engine.session(temperature=0) for _ in range(3)]
        texts = [[] for _ in sessions]
        for session in sessions:
            session.feed(prompt)
        while any(len(t) < 40 for t in texts):
            for text, taken in zip(texts, engine.step(sessions)):
                text += taken
        ends = [next((i for i, t in enumerate(x) if engine.is_end(t)), 40) for x in texts]
        check("a batch", all(engine.detokenize(t[:min(40, end)]) == wanted
                             for t, end in zip(texts, ends)))
        try:
            engine.close()
            check("an engine with sessions stays open", False)
        except moe.Error as error:
            check("an engine with sessions stays open", "close them first" in str(error))
        for session in sessions:
            session.close()
        with engine.session(temperature=0) as session:
            session.feed(prompt)
            session.hold(schema={"enum": ["maybe"]})
            check("a schema", "".join(t.text for t in session.generate()) == '"maybe"')
            session.hold()
        with engine.session(evaluate_only=True) as session:
            session.feed(prompt)
            while session.pending:
                engine.step([session])
            logits = session.logits
            check("logits", logits.dtype == np.float32 and len(logits) == engine.info["n_vocab"] and
                  np.isfinite(logits).all())
        with engine.session(temperature=0) as session:
            rendered = engine.render([{"role": "user", "content": "Tell me a story."}])
            check("follow", session.follow(rendered) == 0 and len(session) == len(rendered))
            answer = "".join(t.text for t in session.generate(20))
            check("chat", answer == run("--chat", "-p", "Tell me a story.", "-n", "20"), answer)
        check("stats", engine.stats()["decode_tokens"] > 100 and
              isinstance(engine.stats()["speculation"]["drafted_at"], list))
    try:
        engine.session()
        check("a closed engine", False)
    except moe.Error as error:
        check("a closed engine", "closed" in str(error))
    with moe.Engine(model, context=64, speculate="ngram") as engine, \
            engine.session(temperature=0) as session:
        session.feed(engine.tokenize("one two three " * 12)[:50])
        written = list(session.generate())
        check("a full context", len(written) > 0 and len(session) == 64, len(session))
        try:
            session.feed([1] * 100)
            check("too long", False)
        except moe.ContextFull as error:
            check("too long", error.status == -7, str(error))


def refused(name, kind, words, call):
    try:
        call()
        check(name, False)
    except kind as error:
        check(name, re.search(words, str(error)) is not None, str(error))


def test_errors(moe):
    refused("no file", moe.Error, "No such file", lambda: moe.Engine("/no/such.gguf"))
    refused("no option", TypeError, "no option 'threads'; it has .*n_threads",
            lambda: moe.Engine(model, threads=2))
    refused("a wrong word", ValueError, "f16, f32", lambda: moe.Engine(model, kv_cache="f17"))
    refused("a wrong type", TypeError, "n_threads", lambda: moe.Engine(model, n_threads="two"))
    refused("a small budget", moe.BudgetError, "budget|floor|memory",
            lambda: moe.Engine(model, host_memory=1 << 20))
    refused("a policy", moe.Error, "policy", lambda: moe.Trace.generate().simulate(policy="none"))
    check("plan", moe.plan(model, context=256)["context"] == 256)
    sizes = [moe.plan(model, host_memory=size)["budget"] for size in (96 << 20, "96M", "0.09375g", "98304K")]
    check("sizes", sizes == [96 << 20] * 4, sizes)
    for size in ("", "6GB", "-1M", "0", "1e9", "nan", "6 G", "2000000T"):
        refused(f"host_memory={size!r}", ValueError, "host_memory must be bytes, such as .*6G",
                lambda: moe.plan(model, host_memory=size))


def test_hostile_options(moe, np):
    """Each of these crashed, or became another value."""
    for name, value in (("lossy", True), ("lab", 8), ("model_copies", 5), ("n_model_copies", 1),
                        ("metadata_overrides", {"a": 1}), ("n_metadata_overrides", 1)):
        refused(f"a pointer, {name}", TypeError, f"cannot take {name} .*use the command",
                lambda: moe.Engine(model, **{name: value}))
    for name in ("struct_size", "reserved", "user", "model_path", "own_policy"):
        refused(f"no option {name}", TypeError, f"no option '{name}'",
                lambda: moe.Engine(model, **{name: 1}))
    wrong = [(TypeError, "integer", "n_threads", v) for v in (1.5, "2", True, None, [2], np.True_)]
    wrong += [(OverflowError, "from 0 to 4294967295", "n_threads", v) for v in (2**32 + 1, -1)]
    wrong += [(OverflowError, "from 0 to 18446744073709551615", "host_memory", v)
              for v in (2**64, -1)]
    wrong += [(TypeError, "number", "io_timeout", v) for v in ("1", True, None, 1j)]
    wrong += [(OverflowError, "too large", "io_timeout", 10**400)]
    wrong += [(TypeError, "True or False", "buffered_io", v) for v in ("no", 0, None)]
    wrong += [(TypeError, "str, bytes", name, v) for name in ("policy", "device") for v in (1, True)]
    wrong += [(ValueError, "NUL", "policy", v) for v in ("lru\0x", b"lru\0x")]
    wrong += [(ValueError, "auto, on, off", "idle_checksums", v) for v in ("yes", 3, -1)]
    wrong += [(ValueError, "ngram, .*mtp", "speculate", v) for v in ("NGRAM", 2**31 - 1)]
    wrong += [(TypeError, "integer", "speculate", v) for v in (None, b"off", True)]
    for kind, words, name, value in wrong:
        for what, call in (("Engine", moe.Engine), ("plan", moe.plan)):
            refused(f"{what}({name}={value!r})", kind, f"^{what}, {name} .*{words}",
                    lambda: call(model, **{name: value}))
    for value in (None, 5, ["a"]):
        refused(f"Engine({value!r})", TypeError, "path must be", lambda: moe.Engine(value))
    refused("a policy's number", TypeError, "Engine, policy", lambda: moe.Engine(model, policy=5))
    refused("a NUL in the path", ValueError, "NUL", lambda: moe.Engine(model + "\0.gguf"))
    refused("a log that is none", TypeError, "log", lambda: moe.Engine(model, log=5))
    plan = moe.plan(model, context=np.int64(256), kv_cache="f8", idle_checksums="off", policy=None)
    check("numpy's integers", plan["context"] == 256, plan)
    trace = moe.Trace.generate(decode_passes=5)
    refused("a trace's path", TypeError, "Trace, path", lambda: moe.Trace(5))
    refused("a preset", ValueError, "NUL", lambda: moe.Trace.generate("olmoe\0"))
    refused("a generator's", OverflowError, "seed", lambda: moe.Trace.generate(seed=-1))
    refused("a trace's format", ValueError, "auto, jsonl, oracle_general",
            lambda: moe.Trace("x", format="csv"))
    refused("a layer", OverflowError, "pair_layer", lambda: trace.analyze(2**32))
    refused("a layer", TypeError, "pair_layer", lambda: trace.analyze(0.5))
    refused("a size", OverflowError, "expert_bytes", lambda: trace.save("x", expert_bytes=2**32))
    refused("a NUL in a trace's path", ValueError, "NUL", lambda: trace.save("x\0y"))
    refused("simulate", OverflowError, "n_slots", lambda: trace.simulate(n_slots=2**32 + 1))
    refused("simulate", TypeError, "per_layer", lambda: trace.simulate(per_layer=1))


def test_hostile_arguments(moe, np):
    with moe.Engine(model, context=64, n_threads=1) as engine, \
            moe.Engine(model, context=64, n_threads=1) as another, \
            engine.session(temperature=0) as session, another.session() as stranger:
        session.feed(np.array([1, 2], np.uint16))
        for name in ("feed", "follow"):
            call = getattr(session, name)
            for values, kind, words in (([1, 2**40], OverflowError, r"\[1\] must be from"),
                                        ([-2**31 - 1], OverflowError, r"\[0\] must be from"),
                                        ([1.9], TypeError, "integer"), ([True], TypeError, "integer"),
                                        ([None], TypeError, "integer"), (["1"], TypeError, "integer"),
                                        (b"ab", TypeError, "tokenize"), (None, TypeError, "iterable"),
                                        (7, TypeError, "iterable"),
                                        (np.ones(2), TypeError, "integer")):
                refused(f"{name}({values!r})", kind, words, lambda: call(values))
        refused("outside the vocabulary", moe.Error, "vocabulary",
                lambda: session.feed([2**31 - 1]))
        refused("a text to follow", TypeError, "tokenize", lambda: session.follow("text"))
        for n, kind in ((2**64, OverflowError), (-1, OverflowError), (1.0, TypeError),
                        (True, TypeError), (None, TypeError)):
            refused(f"truncate({n!r})", kind, "truncate, n must", lambda: session.truncate(n))
        refused("truncate beyond", moe.Error, "3", lambda: session.truncate(3))
        check("none of it changed the timeline", session.tokens == [1, 2], session.tokens)
        for n, kind in ((-1, OverflowError), (1.5, TypeError), ("9", TypeError), (True, TypeError)):
            refused(f"generate({n!r})", kind, "max_tokens", lambda: list(session.generate(n)))
            refused(f"complete(_, {n!r})", kind, "max_tokens", lambda: session.complete([1], n))
        check("refused before the prompt was fed", session.tokens == [1, 2], session.tokens)
        for call in (engine.piece, engine.is_end):
            refused("a wide token", OverflowError, "token must", lambda: call(2**32 + 5))
            refused("no token", TypeError, "token must", lambda: call("a"))
        refused("bytes", TypeError, "text must be a str", lambda: engine.tokenize(b"a"))
        refused("special", TypeError, "special", lambda: engine.tokenize("a", special=2))
        refused("markup", TypeError, "markup", lambda: engine.piece(1, markup="no"))
        refused("a template", ValueError, "NUL", lambda: engine.render([], template="a\0b"))
        refused("thinking", TypeError, "thinking", lambda: engine.render([], thinking="off"))
        refused("temperature", OverflowError, "temperature", lambda: engine.session(temperature=1e39))
        refused("temperature", TypeError, "temperature", lambda: engine.session(temperature="0"))
        refused("seed", OverflowError, "seed", lambda: engine.session(seed=2**64))
        refused("evaluate_only", TypeError, "evaluate_only",
                lambda: engine.session(evaluate_only="no"))
        refused("a grammar", TypeError, "grammar", lambda: session.hold(grammar=b'root ::= "a"'))
        refused("two", ValueError, "not both", lambda: session.hold(grammar="root ::= [a]", schema={}))
        refused("a path", ValueError, "NUL", lambda: session.save("a\0b"))
        refused("a path", ValueError, "NUL", lambda: engine.load("a\0b"))
        refused("no session", TypeError, r"sessions\[1\]", lambda: engine.step([session, None]))
        refused("a stranger", ValueError, "another engine", lambda: engine.step([stranger]))
        refused("twice", moe.Error, "same", lambda: engine.step([session, session]))
        check("no session at all", engine.step([]) == [])


def test_turns(moe):
    """What moe.h lists as "in turn" is called with the engine's lock alone, so never beside a step,
    whose growing timeline would free what `tokens` reads; what it lists as "reading" holds off
    close(). The log function can call neither into the step that it runs in."""
    lib, wrong, seen, notes = moe._engine.lib, [], set(), []
    engine = moe.Engine(model, context=64, n_threads=1, log=lambda line: session.feed([1]))
    reading = {"engine_get_info", "token_piece", "token_is_end", "tokenize", "chat_render",
               "text_create"}

    def watch(name, function):
        def call(*arguments):
            seen.add(name)
            if not (engine._readers > 0 if name in reading else engine._lock._is_owned()):
                wrong.append(name)
            return function(*arguments)
        return call

    whole = dict(vars(lib))
    names = {n for n in whole if n.startswith("session_") or n in reading | {"step"}} - {
        "session_options_init_sized", "session_cancel"}
    for name in names:
        setattr(lib, name, watch(name, whole[name]))
    try:
        session = engine.session(temperature=0)
        session.complete("Once upon", 4)
        engine.render([{"role": "user", "content": "a"}])
        other = session.fork()
        notes += [session.tokens, session.pending, session.is_full, session.logits, engine.info]
        session.hold()
        other.close()
        session.follow([1])
        session.truncate(0)
        hook, sys.unraisablehook = sys.unraisablehook, lambda raised: notes.append(raised.exc_value)
        try:
            engine._log(b"a line", None)
        finally:
            sys.unraisablehook = hook
        check("the log function is refused", "log function" in str(notes[-1]), notes[-1])
        check("and changed nothing", session.tokens == [], session.tokens)
        session.close()
    finally:
        for name in names:
            setattr(lib, name, whole[name])
    check("in turn", not wrong and len(seen) > 14, (wrong, seen))
    refused("a closed session", moe.Error, "closed", lambda: session.tokens)
    refused("a closed session", moe.Error, "closed", session.cancel)
    engine.close()
    refused("a closed engine", moe.Error, "closed", lambda: engine.info)
    refused("a closed engine", moe.Error, "closed", lambda: engine.tokenize("a"))


def test_traces(moe, np):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.jsonl")
        run("-p", "Once upon a time", "-n", "20", "--trace", path)
        trace = moe.Trace(path)
        info, rows = trace.info, trace.rows()
        check("rows", rows.experts.shape == (info["n_rows"], info["n_layer"], info["n_expert_used"])
              and rows.tokens.shape == (info["n_rows"],) and rows.tokens.min() >= 0 and
              rows.experts.max() < info["n_expert"], info)
        analysis = trace.analyze()
        counts = np.zeros_like(analysis.counts)
        for layer in range(info["n_layer"]):
            chosen = rows.experts[:, layer]
            np.add.at(counts[layer], chosen[chosen >= 0], 1)
        check("counts are those of the rows", (counts == analysis.counts).all())
        check("pairs", (np.diag(analysis.pairs) == analysis.counts[analysis.pair_layer]).all())
        check("passes", (np.diff(rows.passes) >= 0).all() and
              len(np.unique(rows.passes)) == info["n_passes"] and (rows.sequences == 0).all(), rows.passes)
        trace.save(os.path.join(folder, "a.oracleGeneral"))
        check("saved", os.path.getsize(os.path.join(folder, "a.oracleGeneral")) ==
              24 * info["n_accesses"])
        trace.close()
    trace = moe.Trace.generate("olmoe", decode_passes=60, seed=3)
    results = {p: trace.simulate(policy=p, cache_share=0.25) for p in ("lfru", "lru", "belady")}
    check("simulation", results["belady"]["hit_rate"] >= results["lfru"]["hit_rate"] and
          results["lru"]["hits"] + results["lru"]["misses"] == trace.info["n_accesses"], results)
    gates = trace.rows().gates
    check("gates", gates.shape == trace.rows().experts.shape and (gates > 0).all() and
          (gates.sum(axis=2) < 1 + 1e-5).all(), gates)
    check("policies", {"lfru", "lru", "belady"} <= set(moe.policies()), moe.policies())


def test_policies(moe):
    """A policy in Python makes the hits and the text that the same policy in C makes."""
    class Lfu(moe.Policy):
        """The least used ever; of several the one that became so first, as `lfu` says."""
        needs = ["gates"]

        def begin(self, setting):
            self.setting, self.counts, self.resident, self.ended = setting, {}, {}, 0

        def hit(self, key, access):
            assert access.layer == key // self.setting.n_expert and access.gate > 0
            self.counts[key] = self.counts.get(key, 0) + 1

        def insert(self, key, access):
            self.resident[key] = access.number
            self.hit(key, access)

        def evict(self, key):
            del self.resident[key]

        def victim(self, for_key, evictable):
            assert for_key not in self.resident
            return min(filter(evictable, self.resident), key=lambda key: (self.counts[key], key), default=None)

        def end_pass(self, number):
            self.ended += 1

    trace = moe.Trace.generate("olmoe", decode_passes=30, seed=3)
    lru = [trace.simulate(policy=policy, n_slots=200)
           for policy in ("lru", lambda use: use.order)]
    check("lru", lru[0]["hits"] == lru[1]["hits"] > 0 and lru[1]["policy_faults"] == 0, lru)
    for pools in ({"per_layer": True}, {"host_slots": 300}):  # each with a state of its own
        results = [trace.simulate(policy=policy, n_slots=200, **pools) for policy in ("lru", lambda use: use.order)]
        check(f"lru, {pools}", results[0] == results[1] and results[1]["hits"] > 0, results)
    lfu = Lfu()
    refused("an object for several pools", ValueError, "one pool of slots",
            lambda: trace.simulate(policy=lfu, n_slots=200, per_layer=True))
    result = trace.simulate(policy=lfu, cache_share=0.25)
    check("lfu", 0 < result["hits"] < trace.info["n_accesses"] and lfu.ended == 30 and
          len(lfu.resident) == result["n_slots"] and result["policy_faults"] == 0, result)
    refused("an error of a policy", ZeroDivisionError, "division",
            lambda: trace.simulate(policy=lambda use: 1 / 0, n_slots=200))
    refused("no victim", NotImplementedError, "victim", lambda: trace.simulate(policy=moe.Policy(), n_slots=200))
    lfu.victim = lambda for_key, evictable: 1.5
    refused("a victim that is no key", TypeError, "float", lambda: trace.simulate(policy=lfu, n_slots=200))
    lfu.begin = lambda setting: 1 / 0
    lfu.needs = []
    refused("an error while opening", ZeroDivisionError, "division",
            lambda: moe.Engine(model, context=128, policy=lfu, expert_cache_share=0.3))
    Lfu.needs, lfu = ["luck"], Lfu()
    refused("a need", ValueError, "hotness, gates, future, not 'luck'", lambda: trace.simulate(policy=lfu))
    texts = []
    for policy in ("lru", lambda use: use.order):
        with moe.Engine(model, context=128, policy=policy, expert_cache_share=0.3, n_threads=2) as engine, \
                engine.session(temperature=0) as session:
            texts.append((session.complete("Once upon a time", 24), engine.info["policy"],
                          engine.stats()["expert_hits"] > 0))
    check("the text", texts[0][0] == texts[1][0] and [t[1] for t in texts] == ["lru", "python"] and
          texts[1][2], texts)
    with moe.Engine(model, context=128, policy=lambda use: 1 / 0, expert_cache_share=0.3) as engine, \
            engine.session(temperature=0) as session:
        refused("an error in a run", ZeroDivisionError, "division",
                lambda: session.complete("Once upon a time", 64))


if "--inside" in sys.argv:
    import numpy
    import moe_offload
    from moe_offload import _layout
    check("the wheel's package", "site" in moe_offload.__file__, moe_offload.__file__)
    check("typed", os.path.exists(os.path.join(os.path.dirname(moe_offload.__file__), "py.typed")))
    test_layout(_layout)
    test_errors(moe_offload)
    test_hostile_options(moe_offload, numpy)
    test_hostile_arguments(moe_offload, numpy)
    test_turns(moe_offload)
    test_text(moe_offload, numpy)
    test_embeddings(moe_offload, numpy)
    test_traces(moe_offload, numpy)
    test_policies(moe_offload)
else:
    outside()
sys.exit(1 if failures else 0)
