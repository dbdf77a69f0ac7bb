/** Resolves when `signal`, which may be undefined, aborts. */
export function aborted(signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) resolve();
    signal?.addEventListener("abort", () => resolve(), { once: true });
  });
}
