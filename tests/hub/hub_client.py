# SPDX-License-Identifier: MIT
"""One cache for two programs: what the hub's own Python package downloads is used by the command, and the other way
round; and the double answers that package as the hub does. Arguments: the command, a model."""
import os
import sys
import tempfile

from hub_double import HubDouble, Repository

command, model = (os.path.abspath(a) for a in sys.argv[1:3])
NAME, FILE = "me/demo-GGUF", "demo-Q4_K_M.gguf"
with open(model, "rb") as file:
    DEMO = file.read()

with tempfile.TemporaryDirectory() as home, HubDouble({
        NAME: Repository({"config.json": b'{"a": 1}', FILE: DEMO}, small=100,
                         others={"v1": Repository({FILE: DEMO + bytes(32)})}),
        "me/other-GGUF": Repository({"sub/other-Q8_0.gguf": b"GGUF other", "notes.txt": b"words"}, small=8,
                                    others={"refs/pr/1": Repository({"new-Q8_0.gguf": b"GGUF new"})})}) as hub:
    # Read by the package when it is imported.
    os.environ.update(HF_HOME=home, HF_ENDPOINT=hub.endpoint, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1",
                      HF_HUB_DISABLE_PROGRESS_BARS="1")
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        os.environ.pop(name, None)
    try:
        import huggingface_hub
    except ImportError:
        print("huggingface_hub is not installed")
        sys.exit(77)
    import subprocess

    def run(*arguments):
        done = subprocess.run([command, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def check(what, holds, shown=""):
        if not holds:
            sys.exit(f"FAIL {what}: {shown}")

    # The double is a hub to its own package.
    info = huggingface_hub.HfApi().model_info(NAME, files_metadata=True)
    check("the listing", {s.rfilename: (s.size, s.lfs is not None) for s in info.siblings} ==
          {"config.json": (8, False), FILE: (os.path.getsize(model), True)}, info.siblings)
    # Downloaded by the package, used by the command.
    path = huggingface_hub.hf_hub_download(NAME, FILE)
    with open(path, "rb") as a, open(model, "rb") as b:
        check("the package's file", a.read() == b.read())
    hub.reset()
    check("the command finds it", run("tokenize", "-hf", NAME, "-p", "Once", "--offline") ==
          run("tokenize", "-m", model, "-p", "Once"))
    status, out, err = run("pull", NAME)
    check("nothing to download", (status, out.strip()) == (0, path) and hub.sent == 0, out + err)
    # The other way round, a file of storage and one in a folder.
    status, out, err = run("pull", "me/other-GGUF")
    check("pull", status == 0, err)
    hub.reset()
    check("the package finds it", huggingface_hub.hf_hub_download(
        "me/other-GGUF", "sub/other-Q8_0.gguf", local_files_only=True) == out.strip(), out)
    check("and does not download it again", huggingface_hub.hf_hub_download(
        "me/other-GGUF", "sub/other-Q8_0.gguf") == out.strip() and hub.sent == 0, hub.requests)
    scan = huggingface_hub.scan_cache_dir()
    check("its scan", sorted(r.repo_id for r in scan.repos) == [NAME, "me/other-GGUF"] and not scan.warnings, scan)
    # Revisions: the same refs and snapshots.
    old = hub.repositories[NAME].others["v1"]
    path = huggingface_hub.hf_hub_download(NAME, FILE, revision="v1")
    check("the command finds the package's revision", run("show", NAME + "@v1", "--offline")[1].startswith(
        f"repository:   {NAME}@v1, commit {old.commit[:12]}"), run("show", NAME + "@v1", "--offline"))
    for revision in ("refs/pr/1", hub.repositories["me/other-GGUF"].others["refs/pr/1"].commit):
        status, out, err = run("pull", f"me/other-GGUF@{revision}")
        check("pull of a revision", status == 0, err)
        check("the package finds it", huggingface_hub.hf_hub_download(
            "me/other-GGUF", "new-Q8_0.gguf", revision=revision, local_files_only=True) == out.strip(), out)
    scan = huggingface_hub.scan_cache_dir()
    check("its scan of revisions", not scan.warnings and {ref for r in scan.repos for ref in r.refs} ==
          {"main", "v1", "refs/pr/1"}, scan)
    # What the package put beside it stays; the model goes.
    huggingface_hub.hf_hub_download("me/other-GGUF", "notes.txt")
    status, out, err = run("rm", "me/other-GGUF")
    check("rm", status == 0, err)
    notes = huggingface_hub.hf_hub_download("me/other-GGUF", "notes.txt", local_files_only=True)
    check("the package's other files stay", os.path.exists(notes))
    left = [f.file_name for r in huggingface_hub.scan_cache_dir().repos if r.repo_id == "me/other-GGUF"
            for v in r.revisions for f in v.files]
    check("the model is gone", left == ["notes.txt"], left)
print("one cache, two programs")
