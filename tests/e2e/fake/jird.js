// A double of the generated bindings, for tests of what is written by hand over them. It keeps the
// bindings' rules (no overlapping calls, nothing after free, no free during a call) by throwing as they do.

/** What tests set and read. */
export const fake = {
  /** Milliseconds that each step takes. */
  stepMs: 0,
  /** Whether a load says that it could not be kept in the cache. */
  uncached: false,
  /** The models in the cache. */
  cached: [],
  /** Thrown by the next call of that name, once. */
  failures: {},
  /** The arguments of each call. */
  calls: [],
  /** The parts of each step, in place of words. */
  script: undefined,
  /** Objects that were made and not yet freed. */
  live: { engines: 0, sessions: 0, generations: 0 },
};

/** The smallest wasm file, for tests to serve in place of the core. */
export const EMPTY_WASM = Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0);

export default async function init({ module_or_path: response }) {
  failIfAsked("init");
  await WebAssembly.compile(await response.arrayBuffer());
}

export class Engine {
  #busy = false;
  #opening = 0;
  #freed = false;

  static async load(location, options, { onProgress, signal, fetch }) {
    fake.calls.push(["load", location, options]);
    if (fetch) await fetch("config.json", {});
    onProgress({ phase: "open", file: "config.json" });
    const total = 269_000_000;
    for (let step = 1; step <= 8; step++) {
      await pause(signal);
      const loaded = (total * step) / 8;
      onProgress({ phase: "download", file: "model.safetensors", loaded, total, fromCache: 0 });
    }
    if (fake.uncached) {
      onProgress({ phase: "uncached", file: "model.safetensors", message: "the quota is used up." });
    }
    failIfAsked("load");
    onProgress({ phase: "compile" });
    await pause(signal);
    fake.live.engines++;
    return new Engine();
  }

  static async plan(location, options, { signal }) {
    fake.calls.push(["plan", location, options]);
    await pause(signal);
    failIfAsked("plan");
    return { gpuBytes: 319_000_000, heapBytes: 30_000_000, totalBytes: 349_000_000, fits: true };
  }

  static async isCached(location) {
    failIfAsked("isCached");
    return fake.cached.some(({ url }) => url === location);
  }

  static async deleteCached(location) {
    const before = fake.cached.length;
    fake.cached = fake.cached.filter(({ url }) => url !== location);
    return fake.cached.length < before;
  }

  static async cachedModels() {
    return fake.cached;
  }

  async start(input, options) {
    fake.calls.push(["start", input, options]);
    return this.exclusively(async () => {
      await pause();
      failIfAsked("start");
      fake.live.generations++;
      return new Generation(this, options);
    });
  }

  async session(options) {
    this.#checkLive();
    fake.calls.push(["session", options]);
    failIfAsked("session");
    this.#opening++;
    await pause();
    this.#opening--;
    fake.live.sessions++;
    return new Session(this);
  }

  info() {
    return { modelType: "llama", dtype: "f32", context: 2048, vocabSize: 49152, adapter: "", memory: this.memory() };
  }

  memory() {
    const ledger = { weights: 269_000_000, kvCache: 47_185_920, activations: 3_145_728, other: 65_536 };
    const total = Object.values(ledger).reduce((sum, bytes) => sum + bytes);
    return { ...ledger, total, peak: total, rowCache: 0, heap: 31_457_280 };
  }

  free() {
    if (this.#busy || this.#opening) throw new Error("attempted to take ownership of Rust value while it was borrowed");
    this.#checkLive();
    this.#freed = true;
    fake.live.engines--;
  }

  async exclusively(action) {
    this.#checkLive();
    if (this.#busy) throw new Error("recursive use of an object detected");
    this.#busy = true;
    try {
      return await action();
    } finally {
      this.#busy = false;
    }
  }

  #checkLive() {
    if (this.#freed) throw new Error("null pointer passed to rust");
  }
}

class Session {
  #engine;
  #freed = false;

  constructor(engine) {
    this.#engine = engine;
  }

  start(input, options) {
    if (this.#freed) throw new Error("null pointer passed to rust");
    return this.#engine.start(input, options);
  }

  free() {
    if (this.#freed) throw new Error("null pointer passed to rust");
    this.#freed = true;
    fake.live.sessions--;
  }
}

const WORDS = (
  "A jird is a small and quick desert rodent with a long , furred tail . " +
  "It digs burrows , stores seeds , and stands up on its hind legs to look around ."
).split(" ");

class Generation {
  #engine;
  #limit;
  #newTokens = 0;
  #finishReason;

  constructor(engine, { maxTokens = WORDS.length }) {
    this.#engine = engine;
    this.#limit = Math.min(maxTokens, fake.script?.length ?? maxTokens);
  }

  next(signal) {
    return this.#engine.exclusively(async () => {
      await pause(signal);
      failIfAsked("next");
      if (this.#newTokens >= this.#limit) {
        this.#finishReason = "length";
        return undefined;
      }
      const id = this.#newTokens++;
      // The second word ends in the middle of a character: it has no text yet.
      const words = id === 1 ? [] : [{ type: "text", text: `${WORDS[id % WORDS.length]} ` }];
      return { parts: fake.script?.[id] ?? words, ids: [id] };
    });
  }

  stats() {
    return {
      promptTokens: 4,
      cachedTokens: 3,
      newTokens: this.#newTokens,
      firstTokenMs: 12.5,
      tokensPerSecond: 41.7,
      finishReason: this.#finishReason,
    };
  }

  cancel() {
    this.#finishReason ??= "cancelled";
  }

  free() {
    if (fake.live.generations === 0) throw new Error("null pointer passed to rust");
    fake.live.generations--;
  }
}

async function pause(signal) {
  await new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(aborted());
    const timer = setTimeout(resolve, fake.stepMs);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(aborted());
    });
  });
}

function aborted() {
  return Object.assign(new Error("could not go on: the signal aborted."), { code: "aborted" });
}

function failIfAsked(name) {
  const failure = fake.failures[name];
  delete fake.failures[name];
  if (failure) throw failure;
}
