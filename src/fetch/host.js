// What the platform gives to a load. Each part may be lacking: in workers, on insecure pages, in old browsers.
//
// One module, though private files are a thing of their own: the server of the browser tests sometimes leaves a
// request waiting for minutes, the likelier the more modules a page asks for at once.

export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export const isOffline = () => globalThis.navigator?.onLine === false;

/** A lock that all pages and workers of the origin share. */
export class SharedLock {
  #waiting = new AbortController();
  #released = new Promise((resolve) => {
    this.release = () => {
      resolve();
      // Gives up the place in the queue; without effect once the lock is had.
      this.#waiting.abort();
    };
  });

  /** Resolves to whether the lock is had. */
  async acquire(name) {
    const { locks } = globalThis.navigator ?? {};
    if (!locks) return false;
    return new Promise((resolve) => {
      const hold = () => {
        resolve(true);
        return this.#released;
      };
      const { signal } = this.#waiting;
      locks.request(name, { signal }, hold).catch(() => resolve(false));
    });
  }
}

/** Bytes that may still be stored; undefined where nobody knows. */
export async function freeBytes() {
  try {
    const { quota, usage } = await globalThis.navigator.storage.estimate();
    return Math.max(quota - usage, 0);
  } catch {
    return undefined;
  }
}

/** Some browsers ask a person, so nobody waits for the answer; a refusal changes nothing. */
export function persist() {
  globalThis.navigator?.storage?.persist?.().catch(() => {});
}

/**
 * Files in the origin's private file system. A few bytes of one reach the page in about a tenth of the time that a
 * part of a Blob takes: a worker may read them without asking another process. Nothing here throws: where there is
 * no such file system, or no worker, nothing is written and nothing is found.
 */
export class PrivateFiles {
  #folderName;
  #folder;
  #reader;

  constructor(folderName) {
    this.#folderName = folderName;
  }

  /** Writes a whole file, which appears under its name when it is complete; whether that went well. */
  async write(name, bytes) {
    try {
      if (!(await this.#started())) return false;
      const file = await (await this.#opened()).getFileHandle(name, { create: true });
      const writable = await file.createWritable();
      await writable.write(bytes);
      await writable.close();
      return true;
    } catch {
      return false;
    }
  }

  /**
   * The bytes of a file that lie in `ranges` (starts and ends), one after the other; without ranges, all bytes.
   * Null where there is no such file or it is shorter; undefined where it cannot be read now.
   */
  async read(name, ranges) {
    const reader = await this.#started();
    return reader?.ask({ folder: this.#folderName, name, ranges });
  }

  async remove(name) {
    // A file that is open cannot be removed. Where nobody has read yet, none is.
    await (await this.#reader)?.ask({ close: name });
    try {
      await (await this.#opened()).removeEntry(name);
    } catch {
      // It is not there, or another tab reads it: then it is left for `removeOthers`.
    }
  }

  /** Removes files that have lain there for a day and are none of `names`. */
  async removeOthers(names) {
    const kept = new Set(names);
    try {
      for await (const [name, file] of (await this.#opened()).entries()) {
        if (!kept.has(name) && Date.now() - (await file.getFile()).lastModified > DAY_MS) await this.remove(name);
      }
    } catch {
      // Another time.
    }
  }

  close() {
    this.#reader?.then((reader) => reader?.end());
    this.#reader = undefined;
  }

  async #opened() {
    this.#folder ??= await (await navigator.storage.getDirectory()).getDirectoryHandle(this.#folderName, { create: true });
    return this.#folder;
  }

  #started() {
    this.#reader ??= start();
    return this.#reader;
  }
}

const DAY_MS = 24 * 3600 * 1000;

/** A reader whose worker runs and can open files; undefined where there is none. */
async function start() {
  try {
    const reader = new Reader();
    if (await reader.ask({})) return reader;
    reader.end();
  } catch {
    // No workers here, or the page's policy forbids this one.
  }
  return undefined;
}

class Reader {
  #worker = new Worker(new URL("./private_files_worker.js", import.meta.url), { type: "module" });
  #asked = 0;
  /** What resolves the answers, by the questions' numbers. */
  #waiting = new Map();
  /** Not sent yet: what is asked at once goes by one message. */
  #questions = [];

  constructor() {
    this.#worker.onmessage = ({ data }) => data.forEach(({ number, answer }) => this.#answer(number, answer));
    // Its file could not be fetched. Nothing else in it fails unanswered.
    this.#worker.onerror = () => this.end();
  }

  /** What the worker answers; undefined if it has ended. */
  ask(question) {
    if (!this.#worker) return undefined;
    const number = this.#asked++;
    if (this.#questions.push({ number, ...question }) === 1) queueMicrotask(() => this.#send());
    return new Promise((resolve) => this.#waiting.set(number, resolve));
  }

  end() {
    this.#worker?.terminate();
    this.#worker = undefined;
    for (const number of [...this.#waiting.keys()]) this.#answer(number, undefined);
  }

  #send() {
    this.#worker?.postMessage(this.#questions.splice(0));
  }

  #answer(number, answer) {
    this.#waiting.get(number)?.(answer);
    this.#waiting.delete(number);
  }
}
