"""What all the scripts share: where things lie, which versions are pinned, and how a command is run."""

import os
import pathlib
import signal
import subprocess
import sys
import tomllib

if sys.version_info < (3, 11):
    sys.exit("the scripts need Python 3.11 or later")

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
TOOLS = WORK / "tools"  # cargo install --root
NODE = WORK / "node"  # the scripts' own npm packages
PYTHON = WORK / "python"  # pip install --target
MODELS = WORK / "models"
PACKAGE = ROOT / "www" / "pkg"  # the npm package as built; the pages import it from there
WASM_TARGET = "wasm32-unknown-unknown"


class Failure(Exception):
    """What a person has to know or do before the command can go on; printed without a traceback."""


def say(text):
    print(f"— {text}", flush=True)


def toml(name):
    with open(ROOT / name, "rb") as file:
        return tomllib.load(file)


def crate_version():
    return toml("Cargo.toml")["package"]["version"]


def environment(**extra):
    """The environment for a command: the installed tools first on the PATH, and `extra` on top."""
    path = os.pathsep.join([str(TOOLS / "bin"), str(NODE / "node_modules" / ".bin"), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PIP_ROOT_USER_ACTION": "ignore", **extra}


def run(*command, cwd=ROOT, env=None):
    """Run a command in the open; a `Failure` when it fails."""
    arguments = [str(part) for part in command]
    try:
        status = subprocess.run(arguments, cwd=cwd, env=env or environment()).returncode
    except FileNotFoundError:
        raise Failure(f"`{arguments[0]}` is missing") from None
    if status:
        raise Failure(f"`{' '.join(arguments)}` failed with status {status}")


def output_of(*command):
    """What a command prints, or None when it can't be run or fails."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment())
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def main(function):
    """Run a script's `function`; its integer is the exit status. Being ended leaves no browser behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(function())
    except Failure as failure:
        sys.exit(f"error: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
