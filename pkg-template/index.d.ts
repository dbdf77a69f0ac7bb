/// <reference lib="dom" />
/// <reference lib="esnext.disposable" />

/**
 * An open language model inside a web page, on its WebGPU.
 *
 * ```js
 * const model = await Model.load("HuggingFaceTB/SmolLM2-135M-Instruct");
 * for await (const text of model.generate("Once upon a time", { maxTokens: 64 })) console.log(text);
 * await model.dispose();
 * ```
 *
 * Every failure is a {@link JirdError}, except that an aborted call rejects with its signal's `reason`, as `fetch` does.
 */
export class Model {
  private constructor();

  /**
   * Downloads a model, or reads it from the browser's cache, and puts it on the GPU.
   *
   * What cannot fit into memory, and what jird does not know, is refused before the weights are downloaded.
   */
  static load(source: ModelSource, options?: LoadOptions): Promise<Model>;

  /**
   * What a load with these options would take, in bytes. Only the configuration and the headers of the weights are
   * read, and nothing is allocated. Rejects as the load would, except that a plan above `memoryBudget` resolves, with
   * `fits: false`.
   */
  static plan(source: ModelSource, options?: LoadOptions): Promise<MemoryPlan>;

  /**
   * Whether the model loads without a network: all that its last load read is in the browser's cache.
   *
   * @throws JirdError with code `storage` where there is no cache; so do the two methods below.
   */
  static isCached(source: string | URL): Promise<boolean>;

  /** Deletes what the browser's cache has of the model. Resolves to whether there was something. */
  static deleteCached(source: string | URL): Promise<boolean>;

  /** The models of which the browser's cache has something. */
  static cachedModels(): Promise<CachedModel[]>;

  /**
   * Prepares a generation. Nothing is computed before its text is asked for, and only as much as is asked for.
   *
   * A string is continued as it is; messages go through the model's chat template. Generations of one
   * model run one at a time, in the order in which they are first read from; the others wait.
   *
   * What the model holds of the input's beginning, from the generation before, is not computed again: so a
   * further turn of a conversation costs its own tokens only. Conversations that take turns with each other
   * should have a {@link session} each.
   *
   * @throws JirdError at once, with code `invalid_argument` or `disposed`.
   */
  generate(input: string | readonly Message[], options?: GenerateOptions): Generation;

  /**
   * Opens a conversation beside the model's own, with a KV cache of its own in the model's memory.
   * Rejects with `out_of_memory` when that does not fit.
   */
  session(options?: SessionOptions): Promise<Session>;

  /** What was loaded. */
  readonly info: ModelInfo;

  /** What the model holds in memory now. */
  readonly memory: MemoryLedger;

  /**
   * Frees the model's memory and its sessions'. Running and waiting generations reject with code `disposed`.
   * Resolves when the memory is free. A second call does nothing.
   */
  dispose(): Promise<void>;

  /** The same as {@link dispose}, for `using model = await Model.load(…)`. */
  [Symbol.dispose](): void;
}

export interface SessionOptions {
  /** Tokens of prompt and answer together that it remembers. Default: as many as the model. */
  context?: number;
}

/** A conversation that the model remembers while it answers in others. Made by {@link Model.session}. */
export interface Session {
  /** As {@link Model.generate}, in this conversation. The model runs one generation at a time over all of them. */
  generate(input: string | readonly Message[], options?: GenerateOptions): Generation;

  /** Frees the session's memory. Its running and waiting generations reject with code `disposed`. */
  dispose(): Promise<void>;

  /** The same as {@link dispose}. */
  [Symbol.dispose](): void;
}

/**
 * Where a model's files lie:
 * - the address of the folder with its `config.json`: absolute, or relative to the page and beginning with `./`,
 *   `../` or `/`;
 * - a hub id, `"owner/name"` or `"owner/name@revision"`;
 * - the files themselves: a `FileList` of an `<input type="file" multiple>` (or `webkitdirectory`), an array of `File`,
 *   or an object of Blobs by file name;
 * - a handle to the folder that holds them, of `showDirectoryPicker()`.
 */
export type ModelSource = string | URL | FileSystemDirectoryHandle | FileList | readonly File[] | Readonly<Record<string, Blob>>;

/**
 * How weights are kept on the GPU: as the checkpoint stores them (`auto`), as floating-point numbers, or quantised
 * while loading. `q4` keeps at 8 bits what 4 would harm.
 */
export type Dtype = "auto" | "f32" | "f16" | "q8" | "q4";

export interface LoadOptions {
  /** How weights are kept on the GPU. Default: `auto`. */
  dtype?: Dtype;
  /** Tokens of prompt and answer together that the model is to remember; bounds the KV cache. */
  context?: number;
  /**
   * Bytes that the model may take, on the GPU and on the heap together. A load that would take more is refused before
   * the weights are downloaded. The default is no bound: browsers do not tell how much there is.
   */
  memoryBudget?: number;
  /** Whether downloaded files are kept in the browser's cache, and read from it. Default: true. */
  cache?: boolean;
  /**
   * Hashes that files must have, by file name, as in Subresource Integrity: `{ "model.safetensors": "sha256-…" }`.
   * Such a file is downloaded as a whole and checked as it comes; a file that fails is deleted from the cache, and
   * the load rejects with code `checkpoint`.
   */
  integrity?: Readonly<Record<string, string>>;
  /**
   * Makes every request for the model's files in place of the global `fetch`, as to add an access token. It gets
   * an address and `{ headers, cache, signal }`, and must send the `Range` header on.
   */
  fetch?: (url: string, init: RequestInit) => Promise<Response>;
  /** Called as the load goes on. If it throws, the load rejects with what it threw. */
  onProgress?: (event: LoadProgress) => void;
  /** Ends the load when it aborts. What was downloaded stays in the cache. */
  signal?: AbortSignal;
}

/** A step of a load. */
export type LoadProgress =
  /** What there is to load is being found out. The first event, at once, is of this phase. */
  | { phase: "open"; file: string }
  /**
   * Bytes of the tokenizer or the weights arrived. `loaded` only grows and ends at `total`, which never changes: it
   * counts what is needed of all files. `fromCache` of `loaded` did not come from the network.
   */
  | { phase: "download"; file: string; loaded: number; total: number; fromCache: number }
  /** A request failed, and is made again after `delayMs`. */
  | { phase: "retry"; file: string; delayMs: number; message: string }
  /** A file changed on its server in the middle of the load, which begins anew, and with it all numbers. Once. */
  | { phase: "restart" }
  /** The GPU's pipelines are being made. */
  | { phase: "compile" }
  /** The browser's cache could not keep a file, or has no room for the model. The load goes on without it. */
  | { phase: "uncached"; file: string; message: string }
  /** The text model has tensors that jird does not read. Harmless where another tool left something over. */
  | { phase: "unused"; tensors: string[] };

/** What a model takes, in bytes. What is on the GPU is exact; what is on the heap is an upper estimate. */
export interface MemoryPlan {
  weights: number;
  kvCache: number;
  activations: number;
  /** Other buffers on the GPU: uniforms, readback. */
  other: number;
  /** All of the above. */
  gpuBytes: number;
  /** The tokenizer's tables, on the heap. */
  tokenizer: number;
  /** The cache, on the heap, of rows that are read where they are stored: of Gemma 4's per-layer embeddings. */
  rows: number;
  /** What the heap holds while weights stream through it. */
  staging: number;
  /** The highest that the heap comes to. */
  heapBytes: number;
  /** `gpuBytes` and `heapBytes`. */
  totalBytes: number;
  /** What is fetched, or read from the cache. */
  downloadBytes: number;
  /** Whether `totalBytes` are within `memoryBudget`; true without one. */
  fits: boolean;
}

/** A model in the browser's cache. */
export interface CachedModel {
  /** As it was given to {@link Model.load}: a hub id or an address. */
  id: string;
  /** The address of the folder with its files. */
  url: string;
  /** Bytes that are stored. */
  bytes: number;
  /** The names of its files of which something is stored. */
  files: string[];
  /** Whether it loads without a network. */
  complete: boolean;
}

/** One message of a chat. What {@link Generation.message} resolves to can be given back as it is. */
export interface Message {
  /** As the model's chat template knows them; the usual ones are named here. */
  role: "system" | "user" | "assistant" | "tool" | (string & {});
  /** What is said; in a message of role `tool`, what the function gave, as text or as any JSON value. */
  content: string | readonly ContentPart[] | JsonValue;
  /** In a message of role `tool`: the function's name. Several results stand in the order of the calls. */
  name?: string;
  /** What the model thought. It is shown to the model again only between its tool calls, not in later turns. */
  thinking?: string;
  /** The functions that the model asked to be called. */
  toolCalls?: readonly ToolCall[];
  /** Not shown to the model again. */
  malformedToolCalls?: readonly MalformedToolCall[];
}

/** A part of a message. Images and sounds are refused with code `unsupported`: jird reads text only so far. */
export type ContentPart = { type: "text"; text: string } | { type: "image" } | { type: "audio" };

export type JsonValue = string | number | boolean | null | readonly JsonValue[] | { readonly [key: string]: JsonValue };

/** A function that the model may ask to be called, in the form that OpenAI's API made common. */
export interface Tool {
  type: "function";
  function: {
    name: string;
    description?: string;
    /** A JSON Schema of the arguments, of type `object`. */
    parameters?: object;
  };
}

/** The model asks for a call. Its arguments are as the model wrote them: check them before you use them. */
export interface ToolCall {
  name: string;
  arguments: { [name: string]: JsonValue };
}

/** What the model marked as a call and could not be read as one. */
export interface MalformedToolCall {
  /** The text between the call's markers. */
  raw: string;
  /** What is wrong with it. */
  problem: string;
}

/** A piece of the output. */
export type OutputPart =
  /** Of the answer. */
  | { type: "text"; text: string }
  /** Of what the model thinks before it answers. */
  | { type: "thinking"; text: string }
  | ({ type: "toolCall" } & ToolCall)
  | ({ type: "malformedToolCall" } & MalformedToolCall);

/** What the model said, as a message to go on with. */
export interface AssistantMessage extends Message {
  role: "assistant";
  content: string;
  thinking: string;
  toolCalls: ToolCall[];
  malformedToolCalls?: MalformedToolCall[];
}

export interface GenerateOptions {
  /** At most so many new tokens. The default is what the context has room for. */
  maxTokens?: number;
  /** 0, the default, always takes the likeliest token; 1 samples from the model's own distribution. */
  temperature?: number;
  /** Sample among the `topK` likeliest tokens only. */
  topK?: number;
  /** Sample among the fewest tokens whose probabilities reach `topP` in sum, from 0 to 1. */
  topP?: number;
  /** Leave out tokens less likely than `minP` times the likeliest one, from 0 to 1. */
  minP?: number;
  /** Makes sampling repeatable. A whole number of at least 0. */
  seed?: number;
  /** The answer's text ends before any of these strings. */
  stop?: string | readonly string[];
  /** Functions that the model may ask to be called. For messages. */
  tools?: readonly Tool[];
  /** Whether the model is to think before it answers, if it can. Default: as its chat template has it. For messages. */
  thinking?: boolean;
  /**
   * What to do when the context is full. `error`, the default: a prompt that leaves no room rejects with
   * `context_full`, and an answer that fills the context ends (`finishReason: "context"`).
   *
   * `slide`: what is oldest is left out. Of messages whose prompt leaves less room than `maxTokens` (at most a
   * quarter of the context), the oldest turns are left out, as few as bring it down to half the context. A turn is
   * a user message with all that follows it before the next; the last turn and the messages before the first one
   * (the system message) stay. Of a string, its beginning-of-text token and the newest tokens stay. An answer that
   * fills the context goes on after the prompt was shortened in this way, or ends when no turn is left to leave out.
   */
  contextFull?: "error" | "slide";
  /** Ends this generation, or its waiting, when it aborts. */
  signal?: AbortSignal;
}

/**
 * The output being generated. As an async iterable it is the answer's text in pieces; {@link parts} has the
 * thinking and the tool calls too. It can be iterated once, in one of the two ways.
 *
 * Leaving the loop early ends the generation and frees what it held. An iterator that is neither
 * finished nor aborted makes the model's other generations wait.
 */
export interface Generation extends AsyncIterable<string> {
  /** Everything that the model says, in order. */
  parts(): AsyncIterable<OutputPart>;

  /**
   * The whole text: generates it, if nobody has begun to iterate, or waits for the end of the iteration.
   * After an early end it is the text so far.
   */
  text(): Promise<string>;

  /** The same as {@link text}, with thinking and tool calls, as a message to append to the conversation. */
  message(): Promise<AssistantMessage>;

  /** The numbers so far. */
  readonly stats: GenerationStats;

  /** The tokens generated so far. */
  readonly tokenIds: readonly number[];
}

export interface GenerationStats {
  /** Tokens of the prompt, as the tokenizer and the chat template made them, without what was left out. */
  promptTokens: number;
  /** Those of them that the model still held and did not compute again. */
  cachedTokens: number;
  newTokens: number;
  /** Milliseconds from the start of the computation to the first new token. */
  firstTokenMs?: number;
  /** New tokens per second after the first one. */
  tokensPerSecond?: number;
  /** What reading the rows of a table outside of the GPU took, for models that have one. */
  rows?: RowStats;
  /**
   * Why it ended: the model or a stop string ended it, the model waits for the results of its tool calls,
   * `maxTokens` were reached, the context is full, or the caller stopped.
   */
  finishReason?: "stop" | "tool_calls" | "length" | "context" | "cancelled";
}

/**
 * Gemma 4 reads a row of a large table for every token. The table stays in the browser's cache, or on the server as long
 * as it has not been downloaded, and only the rows used last are in memory.
 */
export interface RowStats {
  /** Rows that were in memory when they were needed. */
  hits: number;
  /** Rows that had to be read from the cache or the network. */
  misses: number;
  /** Bytes of them. */
  bytes: number;
  /** Milliseconds spent waiting for them. */
  stallMs: number;
}

export interface ModelInfo {
  /** `model_type` of the checkpoint's `config.json`. */
  modelType: string;
  dtype: Dtype;
  /** Tokens of prompt and answer together that the model can remember. */
  context: number;
  vocabSize: number;
  /** The graphics card, as far as the browser tells; may be empty. */
  adapter: string;
  memory: MemoryLedger;
  /** What reading the rows of its table has taken so far, for models that have one. */
  rows?: RowStats;
}

/** Bytes by purpose. */
export interface MemoryLedger {
  weights: number;
  kvCache: number;
  activations: number;
  /** Other buffers on the GPU: uniforms, staging, readback. */
  other: number;
  /** All of the GPU's bytes above. */
  total: number;
  /** The highest `total` since the model was loaded. */
  peak: number;
  /** Rows of a table outside of the GPU; a part of `heap`. */
  rowCache: number;
  /** The wasm module's linear memory, which all models of the page share. */
  heap: number;
}

/**
 * What went wrong, for the program:
 * - `aborted`: the call was aborted
 * - `checkpoint`: a file of the model is damaged or contradicts itself
 * - `config`: `config.json` cannot be used
 * - `context_full`: the prompt and the tokens asked for do not fit into the context
 * - `device_lost`: the GPU was reset or taken away; load the model again
 * - `disposed`: the model was disposed of
 * - `internal`: a bug of jird
 * - `invalid_argument`: an argument of the call is wrong
 * - `missing_tensor`: the checkpoint lacks a tensor that the model needs
 * - `network`: the network or the server failed
 * - `no_webgpu`: there is no usable WebGPU here
 * - `out_of_memory`: the device or the budget cannot hold what was asked for
 * - `storage`: the browser's cache failed
 * - `template`: the chat template failed
 * - `tokenizer`: the tokenizer's files cannot be used, or the text cannot be encoded
 * - `unsupported`: a model type, dtype or feature that jird does not know
 */
export type ErrorCode =
  | "aborted"
  | "checkpoint"
  | "config"
  | "context_full"
  | "device_lost"
  | "disposed"
  | "internal"
  | "invalid_argument"
  | "missing_tensor"
  | "network"
  | "no_webgpu"
  | "out_of_memory"
  | "storage"
  | "template"
  | "tokenizer"
  | "unsupported";

/** The error that jird throws. Its message says what was asked, what was expected, what was got, and what to do. */
export class JirdError extends Error {
  constructor(code: ErrorCode, message: string, options?: ErrorOptions);
  readonly name: "JirdError";
  readonly code: ErrorCode;
  readonly cause?: unknown;
}
