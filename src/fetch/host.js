// What the platform gives to a load. Each part may be lacking: in workers, on insecure pages, in old browsers.

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
