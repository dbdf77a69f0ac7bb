#!/usr/bin/env python3
"""A small server for the pages, the models and the tests: HTTP Range, validators, CORS, and a way back for results.

    tools/serve.py [--port N]        serves www/ at /, models/ and .work/models at /models/, tests/fixtures at
                                     /fixtures/, and what tools/faults.py describes at /faults/

A page hands its result back with `fetch("/result", {method: "POST", body})`.
"""

import argparse
import email.utils
import functools
import http.server
import queue
import re
import threading
import urllib.parse

import faults
from project import MODELS, ROOT, Failure, main

# Folders by the beginning of the path; the first that has the file serves it.
MOUNTS = {
    "/models/": [ROOT / "models", MODELS],
    "/fixtures/": [ROOT / "tests" / "fixtures"],
    "/": [ROOT / "www"],
}

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}

# Pages of another origin may read everything: the tests run on a port of their own.
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "Accept-Ranges, Content-Length, Content-Range, ETag, Last-Modified",
}

MAX_RESULT_BYTES = 16 << 20


class Unsatisfiable(Exception):
    """A Range header that lies outside the file."""


def byte_range(header, size):
    """The first and last byte that a Range header asks for; None, for the whole file, without one that we know."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not match or match.group() == "bytes=-":
        return None
    first, last = match.groups()
    if first:
        first, last = int(first), min(int(last or size), size - 1)
    else:
        first, last = max(0, size - int(last)), size - 1
    if first > last:
        raise Unsatisfiable
    return first, last


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, results, sessions, *arguments):
        self.results = results
        self.sessions = sessions
        super().__init__(*arguments)

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/faults/"):
            return faults.answer(self, self.sessions)
        path = self.file()
        if path is None:
            return self.answer(404)
        size, modified = path.stat().st_size, path.stat().st_mtime_ns
        validators = {
            "ETag": f'"{modified:x}-{size:x}"',
            "Last-Modified": email.utils.formatdate(modified / 1e9, usegmt=True),
            "Cache-Control": "no-cache",  # keep it, but ask whether it has changed
        }
        if self.headers.get("If-None-Match") == validators["ETag"]:
            return self.answer(304, validators)
        outdated = self.headers.get("If-Range", validators["ETag"]) != validators["ETag"]
        try:
            asked = None if outdated else byte_range(self.headers.get("Range"), size)
        except Unsatisfiable:
            return self.answer(416, {"Content-Range": f"bytes */{size}"})
        first, last = asked or (0, size - 1)
        content_type = CONTENT_TYPES.get(path.suffix, "application/octet-stream")
        headers = {"Content-Type": content_type, "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        self.answer(206 if asked else 200, validators | headers, path, first, last - first + 1)

    do_HEAD = do_GET

    def do_OPTIONS(self):
        self.answer(204, {"Access-Control-Allow-Methods": "GET, HEAD, POST", "Access-Control-Allow-Headers": "*"})

    def do_POST(self):
        if self.path.startswith("/prepare/"):
            return self.prepare(self.path.removeprefix("/prepare/"))
        length = int(self.headers.get("Content-Length", 0))
        if self.path != "/result" or length > MAX_RESULT_BYTES:
            self.close_connection = True  # the body stays unread
            return self.answer(404)
        self.results.put(self.rfile.read(length).decode(errors="replace"))
        self.answer(204)

    def prepare(self, name):
        """Answers when the model is there; with what a person has to do, when it can't be brought."""
        try:
            self.answer(204 if self.server.prepare(name) else 404)
        except Failure as failure:
            text = str(failure).encode()
            self.answer(500, {"Content-Type": "text/plain; charset=utf-8"}, length=len(text))
            self.wfile.write(text)

    def file(self):
        """The file that the path names, below one of the mounts."""
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        mount = next(prefix for prefix in MOUNTS if path.startswith(prefix) or prefix == "/")
        for folder in MOUNTS[mount]:
            folder = folder.resolve()
            file = (folder / path.removeprefix(mount)).resolve()
            if file.is_dir():
                file = file / "index.html"
            if file.is_relative_to(folder) and file.is_file():
                return file
        return None

    def answer(self, status, headers={}, path=None, start=0, length=0):
        """Send the head, and `length` bytes of the file at `path` from `start` on, if a body was asked for."""
        self.send_response(status)
        for name, value in (CORS | headers).items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if path is None or self.command == "HEAD":
            return
        with open(path, "rb") as file:
            file.seek(start)
            while length and (block := file.read(min(length, 1 << 20))):
                self.wfile.write(block)
                length -= len(block)


class Server(http.server.ThreadingHTTPServer):
    """Listens on 127.0.0.1; with port 0, on a free one. As a context manager it serves in the background.

    `prepare` brings the model of a name that a page asks for, and says whether there is one.
    """

    daemon_threads = True

    def __init__(self, port=0, prepare=lambda name: False):
        self.results = queue.Queue()
        self.prepare = prepare
        super().__init__(("127.0.0.1", port), functools.partial(Handler, self.results, faults.Sessions()))

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """A browser that goes away in the middle of an answer is nothing to report."""

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def serve():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    with Server(parser.parse_args().port) as server:
        print(server.origin, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(serve)
