#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The examples of launching workers (runtime/packaging/workers): launching_test.py COMMAND MODEL FOLDER

The unit passes systemd's check; the Slurm script, with doubles of srun and scontrol, starts workers that compute; the
Kubernetes file's arguments are options of the command."""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

command, model, examples = sys.argv[1:]


def check_unit(folder):
    with open(os.path.join(examples, "moe-offload-worker@.service"), encoding="utf-8") as file:
        text = file.read()
    if shutil.which("systemd-analyze") is None:
        print("note: systemd is not installed: the unit was read, not verified")
    else:
        unit = os.path.join(folder, "moe-offload-worker@2-4.service")
        with open(unit, "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if "moe-offload-worker" in line and "Command 'man" not in line]
        assert not said, said
    # What the shell makes of the instance's name, as systemd would hand it over.
    line = re.search(r"ExecStart=/bin/sh -c '(.*)'", text).group(1).replace("%%", "%").replace("%i", "2-4")
    line = line.replace("$$", "$").replace("exec /usr/bin/moe-offload", "echo")
    said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True,
                          env={"MODEL": "m.gguf", "LISTEN": "10.0.0.7", "CREDENTIALS_DIRECTORY": "/run/c"}).stdout
    assert said.split() == ["worker", "-m", "m.gguf", "--share", "2/4", "--listen", "10.0.0.7:7070", "--worker-key",
                            "/run/c/key"], said


def free_port():
    """A port that is probably free. If it is not, the text is the same without the workers."""
    with socket.socket() as one:
        one.bind(("127.0.0.2", 0))
        return one.getsockname()[1]


def check_slurm(folder):
    doubles = {"srun": 'while case $1 in --*) true;; *) false;; esac; do shift; done\nexec "$@"\n',
               "scontrol": "printf '127.0.0.1\\n127.0.0.2\\n127.0.0.3\\n'\n",
               "moe-offload": f'exec {command} "$@" --expert-cache 20% ' + '$([ "$1" = run ] && echo "--worker-compute on '
                              '--json --warm-start off")\n'}
    for name, text in doubles.items():
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
    done = subprocess.run(["bash", os.path.join(examples, "workers.slurm"), model, "Once upon a time"],
                          capture_output=True, text=True, timeout=240, check=False,
                          env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"], SLURM_SUBMIT_DIR=folder,
                                   SLURM_JOB_NODELIST="node[1-3]", MOE_PORT=str(free_port()), MOE_TOKENS="24",
                                   UCX_TLS="tcp"))
    assert done.returncode == 0, done.stderr
    plain = subprocess.run([command, "run", "-m", model, "--raw", "-p", "Once upon a time", "-n", "24", "--temp", "0"],
                           capture_output=True, text=True, timeout=240, check=True)
    assert plain.stdout.strip() in done.stdout, (plain.stdout, done.stdout)
    assert '"workers": 2' in done.stderr, done.stderr
    assert not [name for name in os.listdir(folder) if name.startswith(".worker-key")], "the key was left behind"


def check_yaml():
    try:
        import yaml
    except ImportError:
        print("note: PyYAML is not installed: workers.yaml was not read")
        return
    with open(os.path.join(examples, "workers.yaml"), encoding="utf-8") as file:
        text = file.read()
    kinds = [part["kind"] for part in yaml.safe_load_all(text)]
    assert kinds == ["Service", "StatefulSet", "Deployment"], kinds
    said = {name: subprocess.run([command, name, "--help-all"], capture_output=True, text=True, check=True).stdout
            for name in ("worker", "serve")}
    for option in ("--share", "--listen", "--worker-key"):
        assert option in text and option in said["worker"], option
    for option in ("--host", "--port", "--workers", "--worker-key"):
        assert option in text and option in said["serve"], option


with tempfile.TemporaryDirectory() as scratch:
    check_unit(scratch)
    check_slurm(scratch)
check_yaml()
