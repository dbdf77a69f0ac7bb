// Small pieces around AbortSignal. (AbortSignal.any is younger than WebGPU in some browsers.)

/** Lets `controller` abort when one of `signals` (some may be undefined) does; returns the way to undo it. */
export function follow(controller, ...signals) {
  const undo = new AbortController();
  for (const signal of signals) {
    if (signal?.aborted) controller.abort(signal.reason);
    signal?.addEventListener("abort", () => controller.abort(signal.reason), { signal: undo.signal });
  }
  return () => undo.abort();
}

/** `promise`, but rejecting with the signal's reason as soon as it aborts. */
export async function unlessAborted(promise, signal) {
  signal.throwIfAborted();
  const undo = new AbortController();
  const aborted = new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { signal: undo.signal });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    undo.abort();
  }
}
