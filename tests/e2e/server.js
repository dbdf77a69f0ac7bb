// A file server for the tests: Range, ETag and CORS as model hosts have them, and a record of what was asked for.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { setTimeout } from "node:timers/promises";

const TYPES = {
  ".css": "text/css",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".json": "application/json",
  ".wasm": "application/wasm",
};

/**
 * Serves folders and files on a free port of localhost. `mounts` maps path prefixes to them; the first that fits wins.
 * Each answer is held back for `delayMs`.
 * Resolves to `{ origin, requests, close }`; `requests` grows with each `{ path, range, status }`.
 */
export async function serve(mounts, { delayMs = 0 } = {}) {
  const requests = [];
  const server = createServer((request, response) => {
    setTimeout(delayMs)
      .then(() => answer(mounts, request, response))
      .catch(() => 404)
      .then((status) => {
        if (status === 404) response.writeHead(404, CORS).end();
        requests.push({ path: request.url, range: request.headers.range, status });
      });
  });
  await new Promise((resolve) => server.listen(0, "localhost", resolve));
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { origin: `http://localhost:${server.address().port}`, requests, close };
}

const CORS = {
  "access-control-allow-origin": "*",
  "access-control-allow-headers": "*",
  "access-control-expose-headers": "Content-Range, ETag, Accept-Ranges",
};

/** Answers from the file that the path names, and resolves to the status; rejects where there is none. */
async function answer(mounts, request, response) {
  if (request.method === "OPTIONS") {
    response.writeHead(204, CORS).end();
    return 204;
  }
  const path = fileOf(mounts, normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname)));
  const { size, mtimeMs } = await stat(path);
  const range = parseRange(request.headers.range, size);
  const headers = {
    ...CORS,
    "accept-ranges": "bytes",
    "cache-control": "no-store",
    "content-type": TYPES[extname(path)] ?? "application/octet-stream",
    etag: `"${size}-${Math.floor(mtimeMs)}"`,
  };
  if (range && range.start >= size) {
    response.writeHead(416, { ...headers, "content-range": `bytes */${size}` }).end();
    return 416;
  }
  const { start, end } = range ?? { start: 0, end: size - 1 };
  if (range) headers["content-range"] = `bytes ${start}-${end}/${size}`;
  const status = range ? 206 : 200;
  response.writeHead(status, { ...headers, "content-length": end - start + 1 });
  if (request.method === "HEAD" || size === 0) response.end();
  else createReadStream(path, { start, end }).pipe(response);
  return status;
}

function fileOf(mounts, path) {
  for (const [prefix, target] of Object.entries(mounts)) {
    if (prefix === path) return extname(target) ? target : join(target, "index.html");
    if (prefix.endsWith("/") && path.startsWith(prefix)) return join(target, path.slice(prefix.length));
  }
  throw new Error(`nothing is mounted at ${path}`);
}

function parseRange(header, size) {
  const [, start, end] = /^bytes=(\d+)-(\d*)$/.exec(header ?? "") ?? [];
  if (start === undefined) return undefined;
  return { start: Number(start), end: end ? Math.min(Number(end), size - 1) : size - 1 };
}
