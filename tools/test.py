#!/usr/bin/env python3
"""Run the whole gate: format, lints, native tests, GPU tests on two software drivers, two browsers, the package.

Two lanes run side by side, what is native and what is of the web: links, whole-program optimisation and pages
each keep one core busy, and there are at least two. A step that fails does not stop the later ones. The last
line is the sum over all of them: N passed, N failed.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import re
import signal
import subprocess
import threading
import time
import typing

import demo
import models
import pack
import setup
from project import MODELS, ROOT, TOOLS, WASM_TARGET, Failure, environment, main
from serve import Server

# What can be tested alone with --only; a step of no area belongs to the tree as a whole.
AREAS = {
    "text": "models that read and write text, and all that stands below them",
    "loader": "files, their way over bad networks, and what is kept of them",
    "gemma4": "one family with all that it alone uses, its per-layer embeddings among them",
    "pocket": "the model in models/pocket",
}

# Areas whose tests belong to steps of "text" too; their own steps run when they are asked for alone.
LOADER = "loader"
LOADER_TARGETS = ("--test=fetch_blocks", "--test=fetch_faults", "--test=loader_faults")
GEMMA4 = "gemma4"
GEMMA4_TARGETS = ("--test=models", "--test=engine_rows")
# Of these targets only tests whose names hold one of these words.
GEMMA4_NAMES = ("gemma4", "per_layer", "experts", "mixtures")
MIXED = ("plans", "shaders", "kernels", "quantised_checkpoints", "text_output")
GEMMA4_AMONG_OTHERS = ("--lib", *(f"--test={name}" for name in MIXED))
POCKET = "pocket"
BROWSER_TARGETS_OF = {
    LOADER: ("--test=fetch_browser",),
    GEMMA4: ("--test=engine_browser",),
    POCKET: ("--test=browser", "--", POCKET),
}

# What runs on the second software driver too: every kernel. The families run on it in Chromium.
GPU_TARGETS = ("kernels",)

# tests/browser.rs and tests/ROOM_browser.rs; cargo takes the pattern.
BROWSER_TARGETS = ("--test=*browser",)

# The browser tests have the server's address compiled in; always the same one saves compiling them anew.
TEST_PORT = 8377
STEP_SECONDS = 2700
END_TO_END = ROOT / "tests" / "e2e"
NPM = ("npm", "run", "--silent")
TOOLCHAIN = "web toolchain"  # the one step that every run of the web lane needs
BROWSER_TEST_SECONDS = 2400

# How the runners sum up: libtest and wasm-bindgen-test, once per test binary, and node --test.
CARGO_SUMMARY = re.compile(r"^test result: .*?(?P<passed>\d+) passed; (?P<failed>\d+) failed", re.MULTILINE)
NODE_SUMMARY = re.compile(r"^(?:#|ℹ) (?:pass (?P<passed>\d+)|(?:fail|cancelled) (?P<failed>\d+))$", re.MULTILINE)


# The commands of all lanes that go on now, and whether no other may begin.
RUNNING = set()
STOPPED = threading.Event()


@dataclasses.dataclass
class Step:
    """One line of the report. `work` returns how many tests passed and how many failed."""

    name: str
    work: typing.Callable[[], tuple[int, int]]
    area: str | None = None


def check(name, work, area=None):
    """A step that passes or fails as a whole: unless `work` raises a Failure, it has passed."""

    def counted():
        work()
        return 1, 0

    return Step(name, counted, area)


def command(name, *arguments, area=None, cwd=ROOT, **env):
    """A check by a command's exit status."""

    def work():
        status, _ = watched(arguments, env, cwd)
        if status:
            raise Failure(f"`{' '.join(arguments)}` ended with status {status}")

    return check(name, work, area)


def runner(name, summary, *arguments, area=None, cwd=ROOT, **env):
    """A test runner, whose own summary tells how many tests passed and failed."""

    def work():
        status, output = watched(arguments, env, cwd)
        found = list(summary.finditer(output))
        passed = sum(int(match["passed"] or 0) for match in found)
        failed = sum(int(match["failed"] or 0) for match in found)
        if passed + failed == 0:
            raise Failure(f"`{' '.join(arguments)}` ran no test (status {status})")
        # A runner that fails beside its tests, as when one binary does not compile, is a failure more.
        return passed, failed or int(status != 0)

    return Step(name, work, area)


def watched(arguments, env, cwd):
    """Run a command, pass its output on line by line, and return its status and output. Ends it when it hangs."""
    process = subprocess.Popen(
        arguments,
        cwd=cwd,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    RUNNING.add(process)
    limit = threading.Timer(STEP_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
    limit.start()
    lines = []
    lane = threading.current_thread().name
    try:
        for line in process.stdout:
            print(f"{lane} | {line}", end="", flush=True)
            lines.append(line)
        return process.wait(), "".join(lines)
    finally:
        limit.cancel()
        RUNNING.discard(process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def prepare(full):
    setup.for_gpu()
    for name in models.FETCHED if full else ["smollm2", "tok-gemma"]:
        models.make(name)


def lanes(origin, full):
    """What runs side by side, each in about the order in which it is likely to fail soonest."""
    return {"native": list(native(full)), "web": list(web(origin, full))}


def native(full):
    deny = ("--", "-D", "warnings")
    yield command("format", "cargo", "fmt", "--all", "--check")
    yield command("lints, native", "cargo", "clippy", "--all-targets", *deny)
    yield from native_tests(full)
    yield command("documentation", "cargo", "doc", "--no-deps", RUSTDOCFLAGS="-D warnings")


def web(origin, full):
    deny = ("--", "-D", "warnings")
    # The unit tests are native: they use crates that wasm does not have.
    wasm = ("--lib", *BROWSER_TARGETS, f"--target={WASM_TARGET}")
    yield check(TOOLCHAIN, setup.for_tests)
    yield command("package types", *NPM, "types", cwd=END_TO_END)
    yield runner("JavaScript surface", NODE_SUMMARY, *NPM, "unit", area="text", cwd=END_TO_END)
    yield command("lints, wasm", "cargo", "clippy", *wasm, *deny)
    yield browser_tests("Chromium", origin, full, CHROMEDRIVER=str(setup.CHROMEDRIVER))
    yield browser_tests("Firefox", origin, full, GECKODRIVER=str(TOOLS / "bin" / "geckodriver"))
    for area in BROWSER_TARGETS_OF:
        yield browser_tests("Chromium", origin, full, area=area, CHROMEDRIVER=str(setup.CHROMEDRIVER))
        yield browser_tests("Firefox", origin, full, area=area, GECKODRIVER=str(TOOLS / "bin" / "geckodriver"))
    yield check("package", pack.build)
    yield check("package sizes", pack.check_sizes)
    yield Step("package in Chromium", package_tests, "text")
    yield check("demo", demo.check, area="text")
    yield check("demo", demo.check, area=POCKET)


def native_tests(full):
    cargo_test = ("cargo", "test", "--no-fail-fast")
    real = {"JIRD_MODELS": str(MODELS), "JIRD_GEMMA_TOKENIZER": str(MODELS / "tok-gemma" / "tokenizer.json")}
    real |= thorough(full)
    lavapipe = {"VK_ICD_FILENAMES": str(setup.LAVAPIPE_ICD), "JIRD_GPU": "lavapipe"}
    alone = ("cargo", "test", "--no-fail-fast", "--lib", *LOADER_TARGETS)
    yield runner("loader, native", CARGO_SUMMARY, *alone, area=LOADER, **lavapipe)
    family = (*cargo_test, *GEMMA4_TARGETS)
    yield runner("Gemma 4, native", CARGO_SUMMARY, *family, area=GEMMA4, JIRD_FAMILY=GEMMA4, **lavapipe)
    parts = (*cargo_test, *GEMMA4_AMONG_OTHERS, "--", *GEMMA4_NAMES)
    yield runner("parts of Gemma 4, native", CARGO_SUMMARY, *parts, area=GEMMA4, **lavapipe)
    yield runner("pocket, native", CARGO_SUMMARY, *cargo_test, "--test=pocket", area=POCKET, **lavapipe)
    yield runner("native, lavapipe", CARGO_SUMMARY, *cargo_test, area="text", **real, **lavapipe)

    gpu_targets = [f"--test={target}" for target in GPU_TARGETS]
    again = (*cargo_test, *gpu_targets)
    swiftshader = {"VK_ICD_FILENAMES": str(setup.SWIFTSHADER_ICD), "JIRD_GPU": "swiftshader"}
    yield runner("native, SwiftShader", CARGO_SUMMARY, *again, area="text", **real, **swiftshader)


def thorough(full):
    """What tells tests to be thorough, natively when they run and for browsers when they are compiled."""
    return {"JIRD_FULL": "1"} if full else {}


def browser_tests(name, origin, full, area="text", **driver):
    targets = BROWSER_TARGETS_OF.get(area, BROWSER_TARGETS)
    return runner(
        f"browser tests, {name}",
        CARGO_SUMMARY,
        *("cargo", "test", "--no-fail-fast", f"--target={WASM_TARGET}", *targets),
        area=area,
        CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER="wasm-bindgen-test-runner",
        WASM_BINDGEN_TEST_TIMEOUT=str(BROWSER_TEST_SECONDS),
        JIRD_TEST_ORIGIN=origin,
        **thorough(full),
        **driver,
    )


def package_tests():
    """The tests of the tarball in a real browser; it is packed when their turn comes."""
    pack.build()
    tarball = str(pack.tarball())
    return runner("", NODE_SUMMARY, *NPM, "browser", cwd=END_TO_END, JIRD_TARBALL=tarball).work()


def run_lane(steps):
    """The steps of a lane, one after the other; for each its line of the report, passed and failed."""
    return [execute(step) for step in steps if not STOPPED.is_set()]


def execute(step):
    """Run a step; its line of the report, and how many tests passed and failed."""
    print(f"\n=== {step.name}", flush=True)
    began = time.monotonic()
    try:
        passed, failed = step.work()
    except Failure as failure:
        print(f"error: {step.name}: {failure}", flush=True)
        passed, failed = 0, 1
    seconds = time.monotonic() - began
    verdict = "FAIL" if failed else "ok"
    return f"{verdict:4} {step.name:24} {passed:5} passed {failed:4} failed {seconds:6.0f} s", passed, failed


def serve_models():
    try:
        return Server(TEST_PORT)
    except OSError:  # somebody else's run has it; this one then compiles the browser tests for another port
        return Server()


def test():
    parser = argparse.ArgumentParser(prog="./run test", description=__doc__)
    parser.add_argument("--full", action="store_true", help="with every real model, and tests that take long")
    areas = ", ".join(f"{name} ({what})" for name, what in AREAS.items())
    parser.add_argument("--only", choices=AREAS, metavar="AREA", help=f"only the tests of one area: {areas}")
    options = parser.parse_args()
    results = run_lane([check("set-up", lambda: prepare(options.full))])
    with serve_models() as server:
        chosen = {
            lane: [step for step in steps if is_asked_for(step, options.only)]
            for lane, steps in lanes(server.origin, options.full).items()
        }
        results += side_by_side(chosen)
    print("\n" + "\n".join(line for line, _, _ in results))
    passed, failed = sum(r[1] for r in results), sum(r[2] for r in results)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


def is_asked_for(step, only):
    if only is None:
        return step.area not in BROWSER_TARGETS_OF
    return step.area == only or step.name == TOOLCHAIN


def side_by_side(lanes):
    """Run each lane in a thread of its name; their results, one lane after the other."""

    def lane(name, steps):
        threading.current_thread().name = name
        return run_lane(steps)

    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as threads:
        running = [threads.submit(lane, *item) for item in lanes.items()]
        try:
            return [result for future in running for result in future.result()]
        except BaseException:  # interrupted, or a bug in a lane: no command outlives this one
            stop_everything()
            raise


def stop_everything():
    STOPPED.set()
    for process in list(RUNNING):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(test)
