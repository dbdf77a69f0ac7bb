#!/usr/bin/env python3
"""Serve the demo page with SmolLM2-135M-Instruct; the first time, fetch and convert the model and build the package.

With --check, answer one prompt in headless Chromium instead, and fail when the token ids differ from the reference.
"""

import argparse
import json
import threading
import urllib.parse

import browser
import models
import pack
import setup
from project import ROOT, Failure, main, say
from serve import Server

CHECK_SECONDS = 1500  # in software, on a busy machine


def demo():
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument("--check", action="store_true", help="answer one prompt headless, compare, and exit")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    options = parser.parse_args()
    if options.check:
        return check()
    make_ready()
    try:
        server = Server(options.port)
    except OSError as error:
        raise Failure(f"cannot listen on port {options.port} ({error.strerror}): take another with --port") from None
    with server:
        say(f"the demo runs at {server.origin.replace('127.0.0.1', 'localhost')} (stop it with Ctrl+C)")
        threading.Event().wait()


def make_ready():
    models.make("smollm2")
    pack.build()


def check():
    setup.for_browsers()
    make_ready()
    reference = json.loads((ROOT / "tests" / "fixtures" / "smollm2.json").read_text())
    query = {"model": "./models/smollm2", "prompt": reference["prompt"], "tokens": len(reference["ids"])}
    with Server() as server:
        result = browser.result_of(server, f"check.html?{urllib.parse.urlencode(query)}", CHECK_SECONDS)
    if "error" in result:
        raise Failure(f"the page reports {result['error']['message']}")
    stats = result["stats"]
    print(f"{reference['prompt']}{result['text']}")
    print(f"first token after {stats['firstTokenMs']:.0f} ms, {stats['tokensPerSecond']:.2f} tokens/s")
    if result["ids"] != reference["ids"]:
        raise Failure(f"expected the token ids {reference['ids']}, got {result['ids']}")
    say("the token ids are those of the reference")


if __name__ == "__main__":
    main(demo)
