// The package's surface, written by hand over the generated bindings in jird.js. Importing it touches
// nothing of the browser, so that it can be imported where pages are rendered on a server.

import { follow, unlessAborted } from "./abort.js";
import { JirdError, toJirdError } from "./error.js";
import init, { Engine } from "./jird.js";
import {
  checkAddress,
  checkGenerateOptions,
  checkInput,
  checkLoadOptions,
  checkSessionOptions,
  checkSource,
  filesOfDirectory,
} from "./options.js";
import { Queue } from "./queue.js";

export { JirdError };

export class Model {
  #engine;
  /** Generations of all conversations, which must not overlap. */
  #queue = new Queue();
  #conversation;
  #sessions = new Set();
  /** Promises of sessions that are being opened. */
  #openings = new Set();
  #closed;

  constructor(engine) {
    if (!(engine instanceof Engine)) {
      throw new JirdError("invalid_argument", "could not make a model: use Model.load in place of new Model.");
    }
    this.#engine = engine;
    this.#conversation = new Conversation(engine, this.#queue, "the model was disposed of. Load it again.");
  }

  static async load(source, options = {}) {
    const call = (...request) => Engine.load(...request);
    return new Model(await request(source, options, call));
  }

  static async plan(source, options = {}) {
    return request(source, options, (...request) => Engine.plan(...request));
  }

  static isCached(source) {
    return withCore(() => Engine.isCached(checkAddress(source)));
  }

  static deleteCached(source) {
    return withCore(() => Engine.deleteCached(checkAddress(source)));
  }

  static cachedModels() {
    return withCore(() => Engine.cachedModels());
  }

  generate(input, options) {
    return this.#conversation.generate(input, options);
  }

  async session(options = {}) {
    const asked = "open a session";
    this.#conversation.checkOpen(asked);
    const settings = checkSessionOptions(asked, options);
    const opening = coreCall(() => this.#engine.session(settings));
    this.#openings.add(opening);
    try {
      const session = new Session(await opening, this.#queue, () => this.#sessions.delete(session));
      this.#sessions.add(session);
      return session;
    } finally {
      this.#openings.delete(opening);
    }
  }

  get info() {
    this.#conversation.checkOpen("describe the model");
    return this.#engine.info();
  }

  get memory() {
    this.#conversation.checkOpen("count the model's memory");
    return this.#engine.memory();
  }

  dispose() {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close() {
    const disposeOfSessions = () => [...this.#sessions].map((session) => session.dispose());
    const ended = [this.#conversation.close(), ...disposeOfSessions()];
    await Promise.allSettled(this.#openings);
    await Promise.all([...ended, ...disposeOfSessions()]);
    this.#engine.free();
  }
}

class Session {
  #core;
  #conversation;
  #forget;
  #closed;

  constructor(core, queue, forget) {
    this.#core = core;
    this.#conversation = new Conversation(core, queue, "the session was disposed of. Open another one.");
    this.#forget = forget;
  }

  generate(input, options) {
    return this.#conversation.generate(input, options);
  }

  dispose() {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close() {
    await this.#conversation.close();
    this.#core.free();
    this.#forget();
  }
}

// Symbol.dispose is younger than WebGPU in some browsers.
if (Symbol.dispose) {
  for (const { prototype } of [Model, Session]) {
    prototype[Symbol.dispose] = function () {
      this.dispose();
    };
  }
}

/** The generations of one conversation: they run in order, and end when it closes. */
class Conversation {
  #core;
  /** Its own queue before that of the device, so that it can close while others run. */
  #queue = new Queue();
  #deviceQueue;
  #disposed;
  /** Aborts with the "disposed" error that waiting and running calls reject with. */
  #closing = new AbortController();

  constructor(core, deviceQueue, disposed) {
    this.#core = core;
    this.#deviceQueue = deviceQueue;
    this.#disposed = disposed;
  }

  generate(input, options = {}) {
    this.checkOpen("generate");
    const { signal, ...settings } = checkGenerateOptions(options);
    const checked = checkInput(input);
    return new Generation({
      start: () => this.#core.start(checked, settings),
      queues: [this.#queue, this.#deviceQueue],
      signals: [signal, this.#closing.signal],
    });
  }

  checkOpen(asked) {
    if (this.#closing.signal.aborted) throw new JirdError("disposed", `could not ${asked}: ${this.#disposed}`);
  }

  /** Ends what runs and what waits; when that is done, nothing calls the core. */
  async close() {
    this.#closing.abort(new JirdError("disposed", `could not go on: ${this.#disposed}`));
    await this.#queue.enter();
  }
}

/** What `call` resolves to for a model's location, its options and the callbacks of the wasm core. */
async function request(source, options, call) {
  const { signal, onProgress, fetch, ...settings } = checkLoadOptions(options);
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
    const callbacks = { onProgress: report, signal: stop.signal, fetch };
    const made = async () => {
      const { directory } = location;
      const files = directory && { files: await filesOfDirectory(directory) };
      return call(files ?? location, settings, callbacks);
    };
    return await settled(made, stop.signal);
  } finally {
    unfollow();
  }
}

class Generation {
  #job;
  #begun = false;
  #stop = new AbortController();
  /** The wasm side, while the turn in the queues is held. */
  #run;
  /** A call into the wasm side is under way, so that it cannot be freed now. */
  #busy = false;
  /** What is to be undone at the end. */
  #releases = [];
  #message = { role: "assistant", content: "", thinking: "", toolCalls: [] };
  #tokenIds = [];
  #stats = { promptTokens: 0, cachedTokens: 0, newTokens: 0 };
  /** Settles once, at the end or with the error. */
  #ended;
  #resolve;
  #reject;

  constructor(job) {
    this.#job = job;
    this.#ended = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever iterates sees the error there; this one is for those who also ask for the whole.
    this.#ended.catch(() => {});
  }

  get stats() {
    return this.#stats;
  }

  get tokenIds() {
    return this.#tokenIds;
  }

  async text() {
    return (await this.message()).content;
  }

  async message() {
    if (!this.#begun) for await (const _ of this.parts());
    await this.#ended;
    return this.#message;
  }

  async *[Symbol.asyncIterator]() {
    for await (const part of this.parts()) {
      if (part.type === "text") yield part.text;
    }
  }

  async *parts() {
    if (this.#begun) {
      throw new JirdError(
        "invalid_argument",
        "could not iterate: this generation was already begun. Call generate again, or read text().",
      );
    }
    this.#begun = true;
    try {
      await this.#start();
      // Tokens that end in the middle of a character, or of a tool call, bring no part of their own yet.
      for (let parts; (parts = await this.#next()); ) yield* parts;
    } catch (error) {
      this.#reject(error);
      throw error;
    } finally {
      this.#end();
      this.#resolve();
    }
  }

  async #start() {
    const { queues, signals, start } = this.#job;
    const { signal } = this.#stop;
    this.#releases.push(follow(this.#stop, ...signals));
    for (const queue of queues) this.#releases.push(await queue.enter(signal));
    signal.throwIfAborted();
    this.#run = await this.#call(start);
    // While nobody pulls, an abort must give the turn back by itself.
    signal.addEventListener("abort", () => {
      if (this.#busy) return;
      this.#end();
      this.#reject(signal.reason);
    });
  }

  /** The parts that the next tokens bring, or undefined at the end. */
  async #next() {
    this.#stop.signal.throwIfAborted();
    const step = await this.#call(() => this.#run.next(this.#stop.signal));
    this.#stats = this.#run.stats();
    if (!step) return undefined;
    this.#tokenIds.push(...step.ids);
    for (const part of step.parts) this.#keep(part);
    return step.parts;
  }

  #keep({ type, ...part }) {
    const message = this.#message;
    if (type === "text") message.content += part.text;
    else if (type === "thinking") message.thinking += part.text;
    else if (type === "toolCall") message.toolCalls.push(part);
    else (message.malformedToolCalls ??= []).push(part);
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
      for (const release of this.#releases.splice(0)) release();
    }
  }
}

/** What `action`, which needs the wasm core and no GPU, resolves to; it rejects with a JirdError. */
async function withCore(action) {
  await startWasm();
  return coreCall(action);
}

/** What `action` resolves to; it rejects with the signal's reason when that has aborted, else with a JirdError. */
async function settled(action, signal) {
  try {
    return await action();
  } catch (error) {
    throw signal.aborted ? signal.reason : toJirdError(error);
  }
}

/** What `action` resolves to; it rejects with a JirdError. */
async function coreCall(action) {
  try {
    return await action();
  } catch (error) {
    throw toJirdError(error);
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
