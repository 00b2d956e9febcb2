# SPDX-License-Identifier: MIT
"""Models by name, from a hub on loopback: what is asked for, what comes into the cache, and each way in which it can go
wrong. Arguments: the command, a model, and perhaps names of tests below: the others are left out."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from hub_double import HubDouble, Repository, sha256
from split_model import split

command, model = (os.path.abspath(a) for a in sys.argv[1:3])
failed = []
DEMO = open(model, "rb").read()
BIG = random.Random(1).randbytes(25_000_000)  # four pieces
PARTS = {f"Q6_K/split-Q6_K-{i:05}-of-00003.gguf": random.Random(i).randbytes(50_000) for i in (1, 2, 3)}
NAME = "me/demo-GGUF"
REPOSITORIES = {
    NAME: Repository({"README.md": b"words", "config.json": b"{}", "mmproj-demo-Q4_K_M.gguf": b"GGUF",
                      "demo-IQ2_XXS.gguf": b"GGUF", "demo-UD-Q4_K_M.gguf": b"GGUF", "demo-Q4_K_M.gguf": DEMO,
                      "demo-Q8_0.gguf": BIG, **PARTS, "torn-Q5_0-00001-of-00002.gguf": b"GGUF"}, small=40),
    "me/first-GGUF": Repository({"b-Q3_K_S.gguf": b"GGUF b", "c-Q5_K_M.gguf": b"GGUF c"}),
    "me/gated-GGUF": Repository({"a-Q4_K_M.gguf": b"GGUF gated"}, gated=True),
    "me/weights": Repository({"model.safetensors": b"x"}),
    "me/parts-GGUF": Repository({f"Q4/demo-Q4_K_M-{i + 1:05}-of-00002.gguf": part
                                 for i, part in enumerate(split(DEMO, 20))}),
}
REVISED = "me/revised-GGUF"


def check(what, holds, shown=""):
    if not holds:
        failed.append(what)
        print(f"FAIL {what}: {shown}")


class Home:
    """A cache of its own, and the command with it."""

    def __init__(self, hub, **env):
        self.folder = tempfile.TemporaryDirectory()
        self.cache = os.path.join(self.folder.name, "hub")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "XDG_", "SSL_CERT")) and
                 not k.endswith("CA_BUNDLE")}
        self.env = dict(clean, HF_ENDPOINT=hub.endpoint, HF_HOME=self.folder.name, **env)

    def start(self, *arguments, **env):
        return subprocess.Popen([command, *arguments], env=dict(self.env, **env), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments, **env):
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def refused(self, what, words, *arguments, status=1, **env):
        got, out, err = self.run(*arguments, **env)
        check(f"{what}: refused in words", got == status and words in err and err.count("\n") == 1,
              f"status {got}: {out}{err}")
        return err

    def files(self):
        return sorted(os.path.relpath(os.path.join(at, f), self.folder.name)
                      for at, _, names in os.walk(self.folder.name) for f in names if not f.endswith(".lock"))

    def folders_of_headers(self):
        return [f for f in os.listdir(self.cache) if f.startswith("moe-header")] if os.path.exists(self.cache) else []


def read(path):
    with open(path, "rb") as f:
        return f.read()


def test_pull(hub):
    home = Home(hub, HF_TOKEN="hf_right")
    status, out, err = home.run("pull", NAME + ":q8_0")
    check("pull", status == 0 and "downloaded 23.8 MiB" in err, err)
    commit = REPOSITORIES[NAME].commit
    folder = os.path.join(home.cache, "models--me--demo-GGUF")
    path = os.path.join(folder, "snapshots", commit, "demo-Q8_0.gguf")
    check("the path", out.strip() == path, out)
    check("its bytes", read(path) == BIG)
    check("a link to the blob", os.readlink(path) == f"../../blobs/{sha256(BIG)}", os.readlink(path))
    check("refs/main", read(os.path.join(folder, "refs", "main")).decode() == commit)
    check("nothing beside", len(os.listdir(os.path.join(folder, "blobs"))) == 1)
    tokens = {(storage, given) for storage, _, _, given, _ in hub.requests}
    check("the token goes to the hub alone", tokens == {(False, "Bearer hf_right"), (True, None)}, tokens)
    ranges = [r for storage, _, _, _, r in hub.requests if storage]
    check("by ranges", "bytes=8388608-16777215" in ranges, ranges)
    hub.reset()
    status, _, err = home.run("pull", NAME + ":Q8_0")
    check("again: nothing is downloaded", status == 0 and "has it already" in err and hub.sent == 0, err)
    status, out, _ = home.run("list", "--json")
    check("list", [(m["name"], m["bytes"], m["path"]) for m in json.loads(out)] ==
          [(NAME + ":Q8_0", len(BIG), path)], out)
    status, _, err = home.run("rm", NAME + ":Q4_K_M")
    check("rm of what is not there", status == 1 and "not in the cache" in err, err)
    status, _, err = home.run("rm", NAME)
    check("rm", status == 0 and home.files() == [] and not os.path.exists(folder), home.files())


def test_choice(hub):
    home = Home(hub)
    for name, file in ((NAME, "demo-Q4_K_M.gguf"), (NAME + ":UD-Q4_K_M", "demo-UD-Q4_K_M.gguf"),
                       (NAME + ":iq2_xxs", "demo-IQ2_XXS.gguf"), ("me/first-GGUF", "b-Q3_K_S.gguf"),
                       (NAME + ":Q6_K", "Q6_K/split-Q6_K-00001-of-00003.gguf"),
                       ("me/first-GGUF:c-Q5_K_M.gguf", "c-Q5_K_M.gguf")):
        status, out, err = home.run("pull", name)
        check(name, status == 0 and out.strip().endswith("/" + file), out + err)
    folder = os.path.dirname(out.strip().replace("first-GGUF", "demo-GGUF").replace(
        REPOSITORIES["me/first-GGUF"].commit, REPOSITORIES[NAME].commit))
    for part, data in PARTS.items():
        check(part, read(os.path.join(folder, part)) == data)
    home.refused("a part is missing", "no whole model 'Q5_0'; it has IQ2_XXS, UD-Q4_K_M, Q4_K_M", "pull", NAME + ":Q5_0")
    home.refused("no such quant", "no whole model 'Q4_K'", "pull", NAME + ":Q4_K")
    home.refused("no GGUF file", "-GGUF", "pull", "me/weights")
    for name in ("demo", "me/", "/demo", "a/b/c", "../demo", "me/..", "me/demo:", "me/demo:../x.gguf", "me/de mo", "",
                 "me/demo@", "me/demo@:Q8_0", "me/demo@../x", "me/demo@a b", "me/demo@-x", "me/demo@a@b", "me@v1/demo",
                 "me/demo@" + "x" * 300):
        status, _, err = home.run("pull", name)
        check(f"name '{name}'", status == 2 and ("OWNER/REPO" in err or "empty" in err), err)
    # Without asking: the one quant that the cache has stands for the model.
    os.unlink(os.path.join(folder, "demo-Q4_K_M.gguf"))
    hub.reset()
    home.run("tokenize", "-hf", "me/first-GGUF", "-p", "x")
    check("what the cache has is used", hub.requests == [], hub.requests)


def revised():
    """A repository whose main, tag and request to merge differ; the last has what the tag has, and a file more."""
    return Repository({"demo-Q4_K_M.gguf": b"GGUF of main"}, others={
        "v1": Repository({"demo-Q4_K_M.gguf": DEMO}), "v2": Repository({"demo-Q4_K_M.gguf": b"GGUF of v2"}),
        "refs/pr/1": Repository({"demo-Q4_K_M.gguf": DEMO, "demo-Q8_0.gguf": b"GGUF of 1"})})


def test_revisions(hub):
    home = Home(hub)
    repository = hub.repositories[REVISED] = revised()
    others = repository.others
    folder = os.path.join(home.cache, "models--me--revised-GGUF")
    given = ("-p", "Once upon a time", "-n", "8", "--temp", "0", "--quiet")
    want = home.run("run", "-m", model, *given)[1]

    def names():
        return sorted(m["name"] for m in json.loads(home.run("list", "--json")[1]))

    def refs():
        top = os.path.join(folder, "refs")
        return {os.path.relpath(os.path.join(at, f), top): read(os.path.join(at, f)).decode()
                for at, _, files in os.walk(top) for f in files}

    plan = home.run("plan", "-hf", REVISED + "@refs/pr/1", "--json")
    check("a header of a revision", plan[0] == 0 and json.loads(plan[1])["experts"] == 384 and home.files() == [], plan)
    check("the address has it as one part", any("/revision/refs%2Fpr%2F1?" in r[2] for r in hub.requests), hub.requests)
    check("run of a tag", home.run("run", "-hf", REVISED + "@v1", *given)[1] == want)
    check("its ref", refs() == {"v1": others["v1"].commit}, refs())
    check("its name", names() == [REVISED + "@v1:Q4_K_M"], names())
    check("offline without a revision: what there is", home.run("run", "-hf", REVISED, "--offline", *given)[1] == want)
    home.refused("another revision", "@v2 is not in the cache", "run", "-hf", REVISED + "@v2", "--offline", *given)
    check("main is main", read(home.run("pull", REVISED)[1].strip()) == b"GGUF of main")
    hub.reset()
    path = home.run("pull", REVISED + "@refs/pr/1:Q4_K_M")[1].strip()
    check("the same file is not downloaded again", read(path) == DEMO and
          not any(storage for storage, *_ in hub.requests), hub.requests)
    check("the ref of a request to merge", refs()["refs/pr/1"] == others["refs/pr/1"].commit, refs())
    commit = others["v2"].commit
    check("a commit", read(home.run("pull", f"{REVISED}@{commit}")[1].strip()) == b"GGUF of v2" and
          commit not in refs().values(), refs())
    check("its name is itself", names() == sorted(f"{REVISED}{at}:Q4_K_M" for at in ("", "@v1", "@refs/pr/1", "@" + commit)),
          names())
    hub.reset()
    check("what the cache has needs no hub", home.run("run", "-hf", f"{REVISED}@{others['v1'].commit}", *given)[1] == want and
          hub.requests == [], hub.requests)
    # A branch moves: the cache's commit is used until it is pulled again.
    repository.others["v1"] = Repository({"demo-Q4_K_M.gguf": b"GGUF moved"})
    check("not asked", home.run("run", "-hf", REVISED + "@v1", *given)[1] == want and hub.requests == [], hub.requests)
    check("asked", read(home.run("pull", REVISED + "@v1")[1].strip()) == b"GGUF moved" and
          refs()["v1"] == repository.others["v1"].commit, refs())
    home.refused("no such revision", "@v9: the repository has no such branch, tag or commit (404)", "pull", REVISED + "@v9")
    hub.faults.commit = "0" * 40
    home.refused("another commit", "the hub lists the files of commit 0000", "pull", f"{REVISED}@{commit}")
    hub.reset()
    status, out, err = home.run("rm", REVISED + "@v1")
    check("rm of a revision", status == 0 and out == f"removed {REVISED}@v1:Q4_K_M\n" and sorted(refs()) ==
          ["main", "refs/pr/1"], out + err)
    home.refused("rm of what is gone", "not in the cache", "rm", REVISED + "@v1")
    with tempfile.TemporaryDirectory() as cache:
        got = home.run("run", "-hf", REVISED + "@refs/pr/1:Q8_0", "--disk-cache", cache, *given)
        check("while it comes, of its revision", got[0] == 1 and "demo-Q8_0.gguf" in got[2], got)
    status, out, err = home.run("rm", REVISED)
    check("rm of all revisions", status == 0 and home.files() == [] and not os.path.exists(folder), home.files())


def certificate(folder, name, subject, authority=None, days="3"):
    """A file with a key and a certificate, signed by the authority's, for the addresses in `subject`."""
    path, key, request = (os.path.join(folder, name + e) for e in (".pem", ".key", ".request"))
    extension = f"subjectAltName={subject}" if authority else "basicConstraints=critical,CA:TRUE"
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-subj",
           "/CN=" + name, "-addext", extension]
    lines = [new + ["-x509", "-days", days, "-out", path]] if authority is None else [
        new + ["-out", request],
        ["openssl", "x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority, "-CAcreateserial", "-copy_extensions",
         "copy", "-days", days, "-out", path]]
    for line in lines:
        subprocess.run(line, check=True, capture_output=True)
    with open(path, "ab") as file:
        file.write(read(key))
    return path


def test_tls(_):
    """The hub over HTTPS, with certificates of an authority of its own."""
    if shutil.which("openssl") is None:
        print("no openssl: skipped")
        return
    with tempfile.TemporaryDirectory() as folder:
        authority, other = (certificate(folder, name, "") for name in ("authority", "other"))
        here = "IP:127.0.0.1,IP:127.0.0.2"
        good = certificate(folder, "good", here, authority)
        given = ("-p", "Once upon a time", "-n", "8", "--temp", "0", "--quiet")
        with HubDouble(REPOSITORIES, certificate=good) as hub:
            home = Home(hub, HF_TOKEN="hf_right")
            for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
                status, out, err = home.run("pull", "me/first-GGUF", **{name: authority})
                check(f"pull by {name}", status == 0 and read(out.strip()) == b"GGUF b", err)
            check("the token goes to the hub alone", {(s, g) for s, _, _, g, _ in hub.requests} ==
                  {(False, "Bearer hf_right"), (True, None)}, hub.requests)
            hub.reset()
            begun = time.monotonic()
            for what, env in (("the system's authorities", {}), ("another authority", {"SSL_CERT_FILE": other})):
                err = home.refused(what, "the server is not trusted", "pull", NAME, **env)
                check(f"{what}: the remedy", "SSL_CERT_FILE" in err, err)
                with tempfile.TemporaryDirectory() as cache:
                    home.refused(f"{what}: a far model", "the server is not trusted", "run", "-m",
                                 f"{hub.endpoint}/{NAME}/resolve/main/demo-Q4_K_M.gguf", "--disk-cache", cache, *given, **env)
            check("it is not tried again, and nothing is asked", hub.requests == [] and time.monotonic() - begun < 30, hub.requests)
            home.refused("a file that is not there", "SSL_CERT_FILE: /nowhere cannot be read", "pull", NAME, status=2,
                         SSL_CERT_FILE="/nowhere")
            home.refused("a file without certificates", "not trusted", "pull", NAME, SSL_CERT_FILE=model)
            want = home.run("run", "-m", model, *given)[1]
            with tempfile.TemporaryDirectory() as cache:
                got = home.run("run", "-m", f"{hub.endpoint}/{NAME}/resolve/main/demo-Q4_K_M.gguf", "--disk-cache", cache, *given,
                               SSL_CERT_FILE=authority)
                check("a far model", got[:2] == (0, want), got)
        for what, words, pair in (
                ("a certificate of another host", "not trusted", {"certificate": certificate(folder, "away", "DNS:elsewhere", authority)}),
                ("an expired one", "not trusted", {"certificate": certificate(folder, "old", here, authority, "-1")}),
                ("storage of another authority", "not trusted",
                 {"certificate": good, "storage_certificate": certificate(folder, "stray", here, other)}),
                ("storage that is not encrypted", "not encrypted", {"certificate": good, "storage_certificate": ""})):
            with HubDouble(REPOSITORIES, **pair) as hub:
                home = Home(hub, SSL_CERT_FILE=authority)
                home.refused(what, words, "pull", NAME)


def test_run(hub):
    home = Home(hub)
    given = ("-p", "Once upon a time", "-n", "16", "--temp", "0", "--quiet")
    status, out, err = home.run("run", "-hf", NAME, *given)
    check("run by name", status == 0 and out == home.run("run", "-m", model, *given)[1], out + err)
    hub.reset()
    check("again", home.run("run", "-hf", NAME, *given)[1] == out and hub.requests == [], hub.requests)
    check("offline", home.run("run", "-hf", NAME, "--offline", *given, HF_ENDPOINT="http://127.0.0.1:9")[1] == out)
    for env, option in (({}, ["--offline"]), ({"HF_HUB_OFFLINE": "1"}, [])):
        home.refused("offline and not there", "not in the cache", "run", "-hf", NAME + ":Q8_0", *option, *given, **env)
    home.refused("two models", "exclude each other", "run", "-m", model, "-hf", NAME, *given, status=2)


def test_disk_cache(hub):
    """Answers begin while the file comes; the cache of the hub's programs is used first."""
    home = Home(hub, HF_TOKEN="hf_right")
    given = ("-p", "Once upon a time", "-n", "16", "--temp", "0", "--quiet")
    want = home.run("run", "-m", model, *given)[1]
    with tempfile.TemporaryDirectory() as folder:
        got = home.run("run", "-hf", NAME, "--disk-cache", folder, *given)
        check("by name while it comes", got == (0, want, ""), got)
        tokens = {(storage, given) for storage, _, _, given, _ in hub.requests}
        check("the token goes to the hub alone", tokens == {(False, "Bearer hf_right"), (True, None)}, tokens)
        asked = sum(1 for storage, *_ in hub.requests if not storage)
        check("the hub is not asked for each part", asked < 6, asked)
        check("the hub's cache is left alone", home.files() == [], home.files())
        # An address of storage that expires: the hub is asked for a new one.
        hub.reset()
        with tempfile.TemporaryDirectory() as other:
            hub.faults.storage_answers = [(206, {"Content-Range": f"bytes 0-0/{len(DEMO)}", "ETag": '"other"'}), (403, {})]
            got = home.run("run", "-hf", NAME, "--disk-cache", other, *given)
            check("an address that expires", got[:2] == (0, want), got)
    # Storage sends a wrong byte: it is found when all is here, and nothing of it is kept.
    hub.reset()
    with tempfile.TemporaryDirectory() as folder:
        for flip in (True, False):
            hub.faults.flip = flip
            process = home.start("serve", "-hf", NAME, "--disk-cache", folder, "-c", "256", "--port", "0")
            shown = ""
            for line in process.stderr:
                shown += line
                if "another checksum" in line or "all of the model is in" in line:
                    break
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
            check(f"a wrong byte {flip}", ("another checksum than the hub names" in shown) == flip, shown)
            check(f"a wrong byte {flip}: the status", process.returncode == int(flip), process.returncode)
            hub.faults.flip = False
    home.run("pull", NAME)
    hub.reset()
    got = home.run("run", "-hf", NAME, "--disk-cache", "/nowhere/at/all", *given)
    check("what was pulled is used", got == (0, want, "") and hub.requests == [], got)
    home.refused("offline", "not in the cache", "run", "-hf", NAME + ":Q8_0", "--disk-cache", "x", "--offline", *given)


def test_header(hub):
    home = Home(hub)
    for arguments in (("plan", "--json"), ("inspect", "--json"), ("tokenize", "-p", "Once upon a time"),
                      ("plan", "--disk", "2", "--json")):
        hub.reset()
        got = home.run(arguments[0], "-hf", NAME, *arguments[1:])
        want = home.run(arguments[0], "-m", model, *arguments[1:])
        if arguments[0] == "plan":
            keys = ("fits", "resident_bytes", "kv_cache_bytes", "experts", "expert_bytes", "context")
            got, want = ((s, {k: json.loads(o)[k] for k in keys}) for s, o, _ in (got, want))
        else:
            got, want = got[:2], want[:2]
        check(f"{arguments[0]} from the header", got == want and want[0] == 0, (got, want))
        check(f"{arguments[0]}: some MB", 0 < hub.sent < 3 << 20, hub.sent)
    check("no header is left", home.folders_of_headers() == [] and home.files() == [], home.files())
    least = json.loads(home.run("plan", "-m", model, "--host-memory", "60M", "--json")[1])["floor_bytes"] >> 20
    status, out, err = home.run("plan", "-hf", NAME, "--measure", "--host-memory", f"{least + 14}M", "--json")
    plan = json.loads(out)
    check("plan measures the drive", status == 0 and plan["disk_bytes_per_s"] > 0 and plan["expected_tokens_per_s"] > 0 and
          "second_drive_tokens_per_s" in plan and home.files() == [], out + err)
    status, out, err = home.run("pull", NAME, "--dry-run")
    check("pull --dry-run", status == 0 and "demo-Q4_K_M.gguf" in out and "expert cache" in out and
          home.files() == [], out + err)
    status, out, err = home.run("show", NAME)
    check("show", status == 0 and "in the cache: no" in out and "qwen3moe" in out, out + err)
    home.refused("no header", "demo-UD-Q4_K_M.gguf", "plan", "-hf", NAME + ":UD-Q4_K_M")
    check("no header is left after an error", home.folders_of_headers() == [])
    # Of a split model the headers of all parts, and no more.
    keys = ("fits", "resident_bytes", "experts", "expert_bytes")
    want = json.loads(home.run("plan", "-m", model, "--json")[1])
    hub.reset()
    status, out, err = home.run("plan", "-hf", "me/parts-GGUF", "--json")
    check("a split model's headers", status == 0 and all(json.loads(out)[k] == want[k] for k in keys), out + err)
    check("some MB of a split model", 0 < hub.sent < 6 << 20 and home.files() == [], hub.sent)
    status, out, err = home.run("run", "-hf", "me/parts-GGUF", "-p", "Once upon a time", "-n", "8", "--temp", "0", "--quiet")
    check("then it runs", out == home.run("run", "-m", model, "-p", "Once upon a time", "-n", "8", "--temp", "0", "--quiet")[1] and
          status == 0, out + err)


def test_refusals(hub):
    home = Home(hub)
    home.refused("unknown, no token", "or it is private (401)", "pull", "me/none")
    home.refused("unknown, token", "no such repository or file (404)", "pull", "me/none", HF_TOKEN="hf_right")
    home.refused("gated, no token", "accept the model's terms", "pull", "me/gated-GGUF")
    home.refused("gated, wrong token", "access is not granted (403)", "pull", "me/gated-GGUF", HF_TOKEN="hf_wrong")
    home.refused("a token with a line end", "HF_TOKEN is no token", "pull", "me/gated-GGUF", HF_TOKEN="a\nb: c", status=2)
    home.refused("no web address", "HF_ENDPOINT must be", "pull", NAME, HF_ENDPOINT="file:///etc", status=2)
    with open(os.path.join(home.folder.name, "token"), "w") as f:
        f.write("hf_right\n")
    check("the token of the hub's own programs", home.run("pull", "me/gated-GGUF")[0] == 0)
    home.refused("nobody there", "127.0.0.1", "pull", NAME, HF_ENDPOINT="http://127.0.0.1:9")
    # 429: as long as the hub says.
    hub.faults.hub_answers = [(429, {"Retry-After": "2"})]
    begun = time.monotonic()
    check("429", home.run("pull", "me/first-GGUF")[0] == 0 and time.monotonic() - begun >= 2)
    hub.faults.hub_answers = [(429, {"Retry-After": "4000"})]
    home.refused("429 for an hour", "try again in 4000 seconds", "pull", NAME)
    hub.faults.hub_answers = [(503, {})] * 2
    check("503 twice", home.run("pull", "me/first-GGUF:Q5_K_M")[0] == 0)
    hub.faults.hub_answers = [(500, {})] * 5
    home.refused("500 for ever", "status 500", "pull", NAME)


def test_storage(hub):
    for what, faults in (("truncated answers", {"truncate": 3_000_000}), ("no ranges", {"ignore_ranges": True}),
                         ("no ranges, truncated", {"ignore_ranges": True, "truncate": 24_999_999, "heal": True}),
                         ("429 and 503", {"storage_answers": [(206, {}), (429, {"Retry-After": "1"}), (503, {})]}),
                         ("addresses that expire", {"storage_answers": [(206, {}), (403, {})]})):
        hub.reset()
        home = Home(hub)
        heal = faults.pop("heal", False)
        for name, value in faults.items():
            setattr(hub.faults, name, value)
        if what in ("429 and 503", "addresses that expire"):
            # The probe of hub_locate() has its answer: one byte of the file.
            hub.faults.storage_answers[0] = (206, {"Content-Range": f"bytes 0-0/{len(BIG)}"})
        process = home.start("pull", NAME + ":Q8_0")
        if heal:
            while hub.sent < 24_000_000 and process.poll() is None:
                time.sleep(0.02)
            hub.faults.truncate = 0
        out, err = process.communicate(timeout=120)
        check(what, process.returncode == 0 and read(out.strip()) == BIG, err)
    hub.reset()
    home = Home(hub)
    hub.faults.flip = True
    home.refused("a wrong byte", "another checksum", "pull", NAME + ":Q8_0")
    check("it is thrown away", [f for f in home.files() if "blobs" in f] == [], home.files())
    hub.reset()
    check("then it is right", home.run("pull", NAME + ":Q8_0")[0] == 0)
    for what, words, faults in (
            ("another size", "bytes, and would send", {"linked_size": len(BIG) - 1}),
            ("a size of the list", "bytes, and would send", {"listed_size": len(BIG) + 1}),
            ("another part", "another part", {"shift": 5}),
            ("no room", "has", {"linked_size": 1 << 49, "listed_size": 1 << 49})):
        hub.reset()
        home = Home(hub)
        for name, value in faults.items():
            setattr(hub.faults, name, value)
        home.refused(what, words, "pull", NAME + ":Q8_0")
    check("no room: the remedy", "HF_HOME" in home.refused("no room", "free some", "pull", NAME + ":Q8_0"))
    # Storage that says nothing, once for each request.
    hub.reset()
    hub.faults.silent = True
    process = home.start("pull", NAME + ":Q4_K_M", HF_HUB_DOWNLOAD_TIMEOUT="4")
    while not any(storage for storage, *_ in hub.requests) and process.poll() is None:
        time.sleep(0.02)
    hub.faults.silent = False
    out, err = process.communicate(timeout=120)
    check("a time-out", process.returncode == 0 and len([1 for s, *_ in hub.requests if s]) > 6, err)


def test_interrupted(hub):
    for what, number, status in (("killed", signal.SIGKILL, -9), ("Ctrl-C", signal.SIGINT, 130)):
        hub.reset()
        home = Home(hub)
        hub.faults.bytes_per_s = 2_000_000
        process = home.start("pull", NAME + ":Q8_0")
        while hub.sent < 12_000_000 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        check(f"{what}: the status", process.returncode == status, f"{process.returncode} {err}")
        check(f"{what}: words", number == signal.SIGKILL or "goes on from here" in err, err)
        check(f"{what}: not in the list", home.run("list")[1] == "")
        hub.reset()
        got, out, err = home.run("pull", NAME + ":Q8_0")
        check(f"{what}: goes on", got == 0 and read(out.strip()) == BIG, err)
        check(f"{what}: what was there is not fetched again", hub.sent < len(BIG) - 8_000_000, hub.sent)
    hub.reset()
    home = Home(hub)
    hub.faults.bytes_per_s = 2_000_000
    process = home.start("pull", NAME + ":Q8_0")
    while hub.sent < 1_000_000 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    status, _, err = home.run("rm", NAME)
    check("rm of a half", status == 0 and home.files() == [], f"{err}{home.files()}")
    # Two at a time: one downloads, the other waits for it.
    hub.reset()
    both = [home.start("pull", NAME + ":Q8_0") for _ in range(2)]
    ended = [p.communicate(timeout=120) for p in both]
    check("two at a time", [p.returncode for p in both] == [0, 0] and hub.sent < 1.2 * len(BIG), (ended, hub.sent))


def test_hostile(hub):
    home = Home(hub)
    for name in ("../../../../x.gguf", "/etc/x.gguf", "a/../x.gguf", "a//x.gguf", "a\nb.gguf", "a\x1b[2J.gguf",
                 ".locks/x.gguf", "a\\x.gguf", "x" * 300 + ".gguf"):
        hub.reset()
        hub.faults.names = {"demo-Q8_0.gguf": name}
        home.refused(f"{name!r}", "nothing is taken from this repository", "pull", NAME)
    hub.reset()
    hub.faults.extra_files = 20000
    home.refused("a huge list", "files: more than", "pull", NAME)
    hub.reset()
    hub.faults.redirects = True
    home.refused("redirects without end", "redirects", "pull", NAME)
    hub.faults.redirects = "http://127.0.0.1/" + "x" * 9000
    home.refused("a redirect to an endless address", "an address of more than", "pull", NAME)
    for address in ("file:///etc/passwd", "gopher://127.0.0.1/x"):
        hub.faults.redirects = address
        home.refused(address, "no web address", "pull", NAME)
    check("nothing was written", [f for f in home.files() if not f.endswith("refs/main")] == [], home.files())


with HubDouble(REPOSITORIES) as double:
    for test in (test_pull, test_choice, test_revisions, test_tls, test_run, test_disk_cache, test_header, test_refusals, test_storage, test_interrupted,
                 test_hostile):
        if sys.argv[3:] and test.__name__ not in sys.argv[3:]:
            continue
        begun = time.monotonic()
        double.reset()
        test(double)
        print(f"{test.__name__}: {time.monotonic() - begun:.1f} s")
print(f"{len(failed)} failed")
sys.exit(1 if failed else 0)
