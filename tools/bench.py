#!/usr/bin/env python3
"""Run the native benches; with --browser, the bench page in headless Chromium instead."""

import argparse
import json
import urllib.parse

import browser
import models
import pack
import setup
from project import Failure, main, run
from serve import Server

BROWSER_SECONDS = 1800


def bench():
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("--browser", action="store_true", help="run www/bench.html and print its JSON")
    parser.add_argument("--model", default="smollm2", choices=models.RECIPES, help="for --browser; default: smollm2")
    parser.add_argument("--load-only", action="store_true", help="for --browser; load alone, with --kept by the cache")
    parser.add_argument("--kept", action="store_true", help="for --browser; begin when all is in the browser's cache")
    parser.add_argument("--dtype", help="default: what suits the checkpoint and the device")
    parser.add_argument("--prompt", default="128", help="for --browser; tokens, as in 128,2048; default: 128")
    parser.add_argument("--folder", help="without --browser: a model to measure, a folder")
    options = parser.parse_args()
    if not options.browser:
        model = [options.folder, *([options.dtype] if options.dtype else [])] if options.folder else []
        return run("cargo", "bench", "--bench", "engine", "--", *model)
    setup.for_browsers()
    models.make(options.model)
    pack.build()
    query = {"model": f"./models/{options.model}", "prompt": options.prompt}
    query |= {"dtype": options.dtype} if options.dtype else {}
    query |= {"runs": 0} if options.load_only else {}
    query |= {"kept": 1} if options.kept else {"cache": 0} if options.load_only else {}
    with Server() as server:
        result = browser.result_of(server, f"bench.html?{urllib.parse.urlencode(query)}", BROWSER_SECONDS)
    if "error" in result:
        raise Failure(f"the page reports {result['error']['message']}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main(bench)
