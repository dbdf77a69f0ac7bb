#!/usr/bin/env python3
"""Serve the demo page with the repository's own small model; the first time, build the package.

Larger models are fetched when the page asks for them. With --check, answer one prompt in headless Chromium instead,
and fail when the token ids differ from the reference.
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

# What www/models.json asks to have prepared, and the requests for it, of which each waits for the one before.
PREPARED = ("smollm2",)
ONE_AT_A_TIME = threading.Lock()


def demo():
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument("--check", action="store_true", help="answer one prompt headless, compare, and exit")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    options = parser.parse_args()
    if options.check:
        return check()
    pack.build()
    try:
        server = Server(options.port, prepare)
    except OSError as error:
        raise Failure(f"cannot listen on port {options.port} ({error.strerror}): take another with --port") from None
    with server:
        say(f"the demo runs at {server.origin.replace('127.0.0.1', 'localhost')} (stop it with Ctrl+C)")
        threading.Event().wait()


def prepare(name):
    """Brings a model that the page offers and that is not in the repository; whether there is one of that name."""
    if name not in PREPARED:
        return False
    with ONE_AT_A_TIME:
        models.make(name)
    return True


def check():
    setup.for_browsers()
    pack.build()
    reference = json.loads((ROOT / "tests" / "fixtures" / "pocket" / "prompts.json").read_text())[0]
    messages = reference["messages"]
    query = {"model": "./models/pocket", "messages": json.dumps(messages), "tokens": len(reference["ids"])}
    with Server() as server:
        result = browser.result_of(server, f"check.html?{urllib.parse.urlencode(query)}", CHECK_SECONDS)
    if "error" in result:
        raise Failure(f"the page reports {result['error']['message']}")
    stats = result["stats"]
    print(f"{messages[-1]['content']} {result['text']}")
    print(f"first token after {stats['firstTokenMs']:.0f} ms, {stats['tokensPerSecond']:.2f} tokens/s")
    if result["ids"] != reference["ids"]:
        raise Failure(f"expected the token ids {reference['ids']}, got {result['ids']}")
    say("the token ids are those of the reference")


if __name__ == "__main__":
    main(demo)
