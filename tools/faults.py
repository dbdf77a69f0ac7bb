"""Answers requests as servers and networks do that go wrong, for the tests of the loader.

    /faults/SESSION/BEHAVIOURS/FILE    FILE is SIZE.bin, whose byte i is i % 251, or a path below tests/fixtures
    /faults/SESSION/log                the requests of the session so far, as JSON

A session is any name; what is counted is counted for it and the file. Behaviours are separated by commas, a value
stands behind `=`; `plain` stands for none:

    whole          ignore Range
    weak           send a weak ETag
    dated          send Last-Modified only
    bare           send no validator
    hide           expose no header to pages of other origins
    redirect       send the browser to the same file on another origin
    gzip           compress, and ignore Range
    change=N       be another version (each byte 1 more) after N requests
    changing       be another version at each request
    status=N       answer N
    fail=N         answer 503 to the first N requests
    wait=TEXT      name TEXT as Retry-After beside 503; `date` is a date 2 seconds away
    drop=N         close the connection of the first N requests unanswered
    cut=N          break off in the middle of the first N bodies of more than one byte
    stall=N        send half of the first N such bodies, and then nothing
    slow=N         wait N milliseconds before each body of more than one byte
"""

import collections
import email.utils
import gzip
import json
import re
import threading
import time

from project import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
PATTERN = bytes(range(251))
MAX_BYTES = 64 << 20
CUT_SECONDS = 0.3
STALL_SECONDS = 60

CORS = {"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"}
EXPOSED = "Content-Length, Content-Range, Content-Encoding, ETag, Last-Modified, Retry-After"


class Sessions:
    """What has been asked for, by session."""

    def __init__(self):
        self.lock = threading.Lock()
        self.logs = collections.defaultdict(list)
        self.counts = collections.Counter()

    def count(self, *key):
        """How often this was called with `key` before."""
        with self.lock:
            self.counts[key] += 1
            return self.counts[key] - 1


def content(name, version):
    """The bytes of a file, or None if there is no such file."""
    if match := re.fullmatch(r"(?:.*/)?(\d+)\.bin", name):
        size = min(int(match[1]), MAX_BYTES)
        data = (PATTERN * (size // len(PATTERN) + 1))[:size]
    else:
        path = (FIXTURES / name).resolve()
        if not path.is_relative_to(FIXTURES) or not path.is_file():
            return None
        data = path.read_bytes()
    return data.translate(bytes((i + version) % 256 for i in range(256))) if version else data


def answer(handler, sessions):
    """Answer the GET request of `handler`, a BaseHTTPRequestHandler, whose path begins with /faults/."""
    _, _, session, rest = handler.path.split("/", 3)
    if rest == "log":
        with sessions.lock:
            body = json.dumps(sessions.logs[session]).encode()
        return send(handler, 200, CORS | {"Content-Length": str(len(body))}, body)
    behaviours, name = rest.split("/", 1)
    do = dict(item.partition("=")[::2] for item in behaviours.split(","))
    asked = handler.headers.get("Range")
    entry = {"file": name, "range": asked, "status": 0}
    with sessions.lock:
        sessions.logs[session].append(entry)
    number = sessions.count(session, name)
    cors = CORS if "hide" in do else CORS | {"Access-Control-Expose-Headers": EXPOSED}

    def finish(status, headers, body=b""):
        entry["status"] = status
        send(handler, status, cors | {"Content-Length": str(len(body))} | headers, body)

    if number < int(do.get("drop", 0)):
        handler.close_connection = True
        return None
    if number < int(do.get("fail", 0)):
        wait = email.utils.formatdate(time.time() + 2, usegmt=True) if do.get("wait") == "date" else do.get("wait")
        return finish(503, {"Retry-After": wait} if wait else {})
    if "status" in do:
        return finish(int(do["status"]), {})
    if "redirect" in do:
        host = "localhost" if handler.headers["Host"].startswith("127.") else "127.0.0.1"
        rest_of_it = ",".join(item for item in behaviours.split(",") if item != "redirect") or "plain"
        port = handler.server.server_port
        return finish(302, {"Location": f"http://{host}:{port}/faults/{session}-redirected/{rest_of_it}/{name}"})

    version = number if "changing" in do else int("change" in do and number >= int(do["change"]))
    data = content(name, version)
    if data is None:
        return finish(404, {})
    tag = f'"v{version}-{len(data)}"'
    headers = {"ETag": f"W/{tag}" if "weak" in do else tag, "Last-Modified": "Tue, 01 Dec 2026 00:00:00 GMT"}
    if "dated" in do or "bare" in do:
        del headers["ETag"]
    if "bare" in do:
        del headers["Last-Modified"]
    if "gzip" in do:
        return finish(200, headers | {"Content-Encoding": "gzip"}, gzip.compress(data, 1))
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
    if not match or "whole" in do:
        return send_body(handler, sessions, session, name, do, entry, 200, cors | headers, data)
    first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
    if first > last:
        return finish(416, {"Content-Range": f"bytes */{len(data)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return send_body(handler, sessions, session, name, do, entry, 206, cors | headers, data[first : last + 1])


def send_body(handler, sessions, session, name, do, entry, status, headers, body):
    """Send a file or a part of it, as far as the behaviours let it come."""
    entry["status"] = status
    headers["Content-Length"] = str(len(body))
    faulty = sessions.count(session, name, "body") if len(body) > 1 else MAX_BYTES
    if len(body) > 1:
        time.sleep(int(do.get("slow", 0)) / 1000)
    if faulty < int(do.get("cut", 0)):
        handler.close_connection = True
        send(handler, status, headers, body[: len(body) // 2])
        # A browser drops what a page has not read of a body when it learns that the rest won't come.
        time.sleep(CUT_SECONDS)
        return None
    if faulty < int(do.get("stall", 0)):
        send(handler, status, headers, body[: len(body) // 2])
        handler.close_connection = True
        handler.connection.settimeout(STALL_SECONDS)
        handler.rfile.read(1)  # until the browser goes away
        return None
    return send(handler, status, headers, body)


def send(handler, status, headers, body):
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
    handler.wfile.flush()
