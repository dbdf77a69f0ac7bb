// The package's surface, written by hand over the generated bindings in jird.js. Importing it touches
// nothing of the browser, so that it can be imported where pages are rendered on a server.

import { follow, unlessAborted } from "./abort.js";
import { JirdError, toJirdError } from "./error.js";
import init, { Engine } from "./jird.js";
import { checkGenerateOptions, checkInput, checkLoadOptions, checkSource } from "./options.js";
import { Queue } from "./queue.js";

export { JirdError };

export class Model {
  #engine;
  /** Calls of one engine must not overlap. */
  #queue = new Queue();
  /** Aborts with the "disposed" error that waiting and running calls reject with. */
  #closing = new AbortController();
  #closed;

  constructor(engine) {
    if (!(engine instanceof Engine)) {
      throw new JirdError("invalid_argument", "could not make a model: use Model.load in place of new Model.");
    }
    this.#engine = engine;
  }

  static async load(source, options = {}) {
    const call = (...request) => Engine.load(...request);
    return new Model(await request(source, options, call));
  }

  static async plan(source, options = {}) {
    return request(source, options, (...request) => Engine.plan(...request));
  }

  generate(input, options = {}) {
    this.#checkOpen("generate");
    const { signal, ...settings } = checkGenerateOptions(options);
    const checked = checkInput(input);
    return new Generation({
      start: () => this.#engine.start(checked, settings),
      queue: this.#queue,
      signals: [signal, this.#closing.signal],
    });
  }

  get info() {
    this.#checkOpen("describe the model");
    return this.#engine.info();
  }

  get memory() {
    this.#checkOpen("count the model's memory");
    return this.#engine.memory();
  }

  dispose() {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close() {
    this.#closing.abort(new JirdError("disposed", "could not go on: the model was disposed of. Load it again."));
    await this.#queue.enter();
    this.#engine.free();
  }

  #checkOpen(asked) {
    if (!this.#closed) return;
    throw new JirdError("disposed", `could not ${asked}: the model was disposed of. Load it again.`);
  }
}

// Symbol.dispose is younger than WebGPU in some browsers.
if (Symbol.dispose) {
  Model.prototype[Symbol.dispose] = function () {
    this.dispose();
  };
}

/** What `call` resolves to for a model's location, its options and the callbacks of the wasm core. */
async function request(source, options, call) {
  const { signal, onProgress, ...settings } = checkLoadOptions(options);
  const location = checkSource(source);
  const stop = new AbortController();
  const unfollow = follow(stop, signal);
  // A listener that throws ends the load, and its error is what the load rejects with.
  const report = (event) => {
    try {
      onProgress?.(event);
    } catch (error) {
      stop.abort(error);
    }
  };
  try {
    stop.signal.throwIfAborted();
    checkWebGpu();
    await unlessAborted(startWasm(), stop.signal);
    const callbacks = { onProgress: report, signal: stop.signal };
    return await settled(() => call(location, settings, callbacks), stop.signal);
  } finally {
    unfollow();
  }
}

class Generation {
  #job;
  #begun = false;
  #stop = new AbortController();
  /** The wasm side, while the turn in the queue is held. */
  #run;
  /** A call into the wasm side is under way, so that it cannot be freed now. */
  #busy = false;
  #release = () => {};
  #text = "";
  #tokenIds = [];
  #stats = { promptTokens: 0, newTokens: 0 };
  /** Settles once, with the whole text or the error. */
  #outcome;
  #resolve;
  #reject;

  constructor(job) {
    this.#job = job;
    this.#outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever iterates sees the error there; the outcome is for those who also ask for the text.
    this.#outcome.catch(() => {});
  }

  get stats() {
    return this.#stats;
  }

  get tokenIds() {
    return this.#tokenIds;
  }

  async text() {
    if (!this.#begun) for await (const _ of this);
    return this.#outcome;
  }

  async *[Symbol.asyncIterator]() {
    if (this.#begun) {
      throw new JirdError(
        "invalid_argument",
        "could not iterate: this generation was already begun. Call generate again, or read text().",
      );
    }
    this.#begun = true;
    try {
      await this.#start();
      for (let text; (text = await this.#next()) !== undefined; ) {
        // Tokens that end in the middle of a character have no text of their own yet.
        if (text) yield text;
      }
    } catch (error) {
      this.#reject(error);
      throw error;
    } finally {
      this.#end();
      this.#resolve(this.#text);
    }
  }

  async #start() {
    const { queue, signals, start } = this.#job;
    const { signal } = this.#stop;
    const unfollow = follow(this.#stop, ...signals);
    this.#release = unfollow;
    const leave = await queue.enter(signal);
    this.#release = () => {
      unfollow();
      leave();
    };
    signal.throwIfAborted();
    this.#run = await this.#call(start);
    // While nobody pulls, an abort must give the turn back by itself.
    signal.addEventListener("abort", () => {
      if (this.#busy) return;
      this.#end();
      this.#reject(signal.reason);
    });
  }

  /** The next tokens' text, or undefined at the end. */
  async #next() {
    this.#stop.signal.throwIfAborted();
    const step = await this.#call(() => this.#run.next(this.#stop.signal));
    this.#stats = this.#run.stats();
    if (!step) return undefined;
    this.#text += step.text;
    this.#tokenIds.push(...step.ids);
    return step.text;
  }

  async #call(action) {
    this.#busy = true;
    try {
      return await settled(action, this.#stop.signal);
    } finally {
      this.#busy = false;
    }
  }

  /** Frees the wasm side and gives the turn back; does nothing the second time. */
  #end() {
    const run = this.#run;
    this.#run = undefined;
    try {
      run?.cancel();
      this.#stats = run?.stats() ?? this.#stats;
      run?.free();
    } catch {
      // After a trap nothing of the wasm side can be freed; the call that trapped has reported it.
    } finally {
      this.#release();
    }
  }
}

/** What `action` resolves to; it rejects with the signal's reason when that has aborted, else with a JirdError. */
async function settled(action, signal) {
  try {
    return await action();
  } catch (error) {
    throw signal.aborted ? signal.reason : toJirdError(error);
  }
}

function checkWebGpu() {
  if (globalThis.navigator?.gpu) return;
  const why =
    globalThis.isSecureContext === false
      ? "this page is not secure, and browsers offer WebGPU to secure pages only. " +
        "Serve it over https, or open it at localhost."
      : "this browser offers no WebGPU. " +
        "Use a current Chrome, Edge, Safari or Firefox with hardware acceleration switched on.";
  throw new JirdError("no_webgpu", `could not load the model: ${why}`);
}

let starting;

/** Starts the wasm core once; a failed start may be tried again. */
function startWasm() {
  starting ??= fetchWasm().catch((error) => {
    starting = undefined;
    throw error;
  });
  return starting;
}

async function fetchWasm() {
  const url = new URL("./jird_bg.wasm", import.meta.url);
  const served = "Serve jird_bg.wasm beside the package's modules.";
  const response = await fetch(url).catch((cause) => {
    throw new JirdError("network", `could not fetch ${url} (${cause}). ${served}`, { cause });
  });
  if (!response.ok) throw new JirdError("network", `could not fetch ${url}: got ${response.status}. ${served}`);
  await init({ module_or_path: response }).catch((cause) => {
    const remedy =
      "Check that this address serves the wasm file, and that the Content-Security-Policy allows 'wasm-unsafe-eval'.";
    throw new JirdError("unsupported", `could not start ${url} (${cause}). ${remedy}`, { cause });
  });
}
