// One request, with two things that `fetch` lacks: it fails when nothing arrives for a while, and it can be
// given up at any time by one call.

export class Exchange {
  #controller = new AbortController();
  #response;
  #reader;
  #stallMs;

  /** `range` is the value of the Range header. */
  constructor(fetch, url, range, stallMs) {
    this.#stallMs = stallMs;
    this.#response = this.#begin(fetch, url, range);
    // Whoever awaits the head sees the failure there.
    this.#response.catch(() => {});
  }

  async #begin(fetch, url, range) {
    const { signal } = this.#controller;
    // The block store keeps what is fetched: a second copy in the browser's own cache helps nobody.
    const options = { headers: { Range: range }, cache: "no-store", signal };
    return await (fetch ? fetch(url, options) : globalThis.fetch(url, options));
  }

  /** The status, and the header fields that matter, each as sent or undefined. */
  async head() {
    const { status, headers } = await this.#watched(this.#response);
    const field = (name) => headers.get(name) ?? undefined;
    return {
      status,
      contentRange: field("content-range"),
      contentLength: field("content-length"),
      contentEncoding: field("content-encoding"),
      etag: field("etag"),
      lastModified: field("last-modified"),
      retryAfter: seconds(field("retry-after")),
    };
  }

  /** The next bytes of the body; undefined at its end. */
  async read() {
    const { body } = await this.#response;
    this.#reader ??= body?.getReader();
    return this.#reader && (await this.#watched(this.#reader.read())).value;
  }

  cancel() {
    this.#controller.abort();
  }

  async #watched(promise) {
    let timer;
    const stalled = new Promise((_, reject) => {
      timer = setTimeout(() => {
        reject(new Error(`nothing arrived for ${this.#stallMs / 1000} s`));
        this.cancel();
      }, this.#stallMs);
    });
    try {
      return await Promise.race([promise, stalled]);
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Retry-After as seconds from now: it is a number of seconds or a date. */
function seconds(retryAfter) {
  if (retryAfter === undefined) return undefined;
  const wait = /^\s*\d+\s*$/.test(retryAfter) ? Number(retryAfter) : (Date.parse(retryAfter) - Date.now()) / 1000;
  return Number.isFinite(wait) ? Math.max(wait, 0) : undefined;
}
