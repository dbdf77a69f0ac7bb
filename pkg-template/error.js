// The one error class of the package, and the way errors of the wasm core become it.

const CODES = new Set([
  "aborted",
  "checkpoint",
  "config",
  "context_full",
  "device_lost",
  "disposed",
  "internal",
  "invalid_argument",
  "missing_tensor",
  "network",
  "no_webgpu",
  "out_of_memory",
  "storage",
  "template",
  "tokenizer",
  "unsupported",
]);

export class JirdError extends Error {
  constructor(code, message, options) {
    super(message, options);
    this.name = "JirdError";
    this.code = code;
  }
}

/** A JirdError for anything that was thrown. What carries no known code is a bug of jird. */
export function toJirdError(thrown) {
  if (thrown instanceof JirdError) return thrown;
  if (CODES.has(thrown?.code)) return new JirdError(thrown.code, thrown.message, { cause: thrown });
  const message = `jird failed: ${String(thrown)}. This is a bug of jird; please report it.`;
  return new JirdError("internal", message, { cause: thrown });
}
