"""Opens a page in headless Chromium and waits for the result that it posts back."""

import json
import queue
import subprocess
import tempfile
import time

from project import ROOT, Failure

LOG_TAIL_BYTES = 4000


def result_of(server, page, seconds):
    """What `page`, served by `server`, posts to /result, as JSON. Flags are those of the browser tests."""
    options = json.loads((ROOT / "webdriver.json").read_text())["goog:chromeOptions"]
    with tempfile.TemporaryDirectory() as profile, tempfile.TemporaryFile() as log:
        command = [options["binary"], *options["args"], f"--user-data-dir={profile}", "--enable-logging=stderr"]
        browser = subprocess.Popen([*command, f"{server.origin}/{page}"], stdout=log, stderr=log)
        try:
            return json.loads(wait(server.results, browser, seconds))
        except TimeoutError as error:
            log.seek(max(0, log.seek(0, 2) - LOG_TAIL_BYTES))
            raise Failure(f"{page}: {error}; the browser's log ends:\n{log.read().decode(errors='replace')}") from None
        finally:
            stop(browser)


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
    browser.terminate()
    try:
        browser.wait(10)
    except subprocess.TimeoutExpired:
        browser.kill()
        browser.wait()
