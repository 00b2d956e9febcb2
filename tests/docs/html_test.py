# SPDX-License-Identifier: MIT
"""html_test.py TREE BUILD-FOLDER: builds the documentation's pages and looks into them: no warnings, every public
function, struct and header of C, every name of the Python package. Skips (77) without Doxygen or Sphinx."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import breathe  # noqa: F401
    import numpy  # noqa: F401
    import sphinx  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
if shutil.which("doxygen") is None:
    print("skipped: no doxygen")
    sys.exit(77)
tree, build = (os.path.abspath(a) for a in sys.argv[1:3])
headers = os.path.join(tree, "runtime", "include", "moe")
wrong = []
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run([os.path.join(tree, "docs", "build.sh"), build, folder], capture_output=True, text=True,
                          env=dict(os.environ, PYTHON=sys.executable, PYTHONDONTWRITEBYTECODE="1"))
    if done.returncode != 0 or re.search("warning|error", done.stderr, re.I):
        sys.exit(f"the pages are not built without a warning: {done.stdout}{done.stderr}")
    with open(os.path.join(folder, "reference-c.html"), encoding="utf-8") as file:
        c_ids = set(re.findall(r'id="c\.([\w.]+)"', file.read()))
    with open(os.path.join(folder, "reference-python.html"), encoding="utf-8") as file:
        python_ids = set(re.findall(r'id="moe_offload\.([\w.]+)"', file.read()))
wanted = set()
for name in os.listdir(headers):
    with open(os.path.join(headers, name), encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    wanted |= set(re.findall(r"^MOE_API [^;(]*?(moe_\w+)\(", text, re.M)) | set(re.findall(r"struct (moe_\w+) {", text))
wanted |= {"moe_engine_options.host_memory", "moe_simulation_result.hit_rate"}
wrong += sorted(wanted - c_ids) if len(wanted) > 100 else ["few names were found"]
with open(os.path.join(tree, "runtime", "python", "moe_offload", "__init__.py"), encoding="utf-8") as file:
    names = set(re.findall(r'"(\w+)"', file.read().split("__all__")[1]))
wrong += sorted(names - python_ids)
wrong += sorted({"Engine.session", "Trace.rows", "_options.EngineOptions.host_memory"} - python_ids)
if wrong:
    sys.exit(f"not in the pages: {', '.join(wrong)}")
