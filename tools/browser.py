"""Opens a page in headless Chromium and waits for the result that it posts back."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import time

from project import ROOT, Failure

LOG_TAIL_LINES = 40


def result_of(server, page, seconds):
    """What `page`, served by `server`, posts to /result, as JSON. Flags are those of the browser tests."""
    options = json.loads((ROOT / "webdriver.json").read_text())["goog:chromeOptions"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, tempfile.TemporaryFile() as log:
        command = [options["binary"], *options["args"], f"--user-data-dir={profile}", "--enable-logging=stderr"]
        command.append(f"{server.origin}/{page}")
        browser = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            return json.loads(wait(server.results, browser, seconds))
        except TimeoutError as error:
            raise Failure(f"{page}: {error}; the browser's log ends:\n{tail(log)}") from None
        finally:
            stop(browser)


def tail(log):
    """The last lines of the log, without the complaints of a browser that finds no desktop."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    return "\n".join([line for line in lines if "dbus" not in line.lower()][-LOG_TAIL_LINES:])


def wait(results, browser, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return results.get(timeout=1)
        except queue.Empty:
            if browser.poll() is not None:
                raise TimeoutError(f"the browser ended with status {browser.returncode}") from None
    raise TimeoutError(f"no result within {seconds} s")


def stop(browser):
    """End the browser and its helper processes, which would otherwise still write to the profile."""
    browser.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        browser.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(browser.pid, signal.SIGKILL)
    browser.wait()
