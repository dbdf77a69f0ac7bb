// Checks what callers pass in, before anything is downloaded or computed. Each check returns what
// the wasm core takes and throws a JirdError that names the key, what was expected and what was got.

import { JirdError } from "./error.js";

const integerFrom = (least) => ({
  expected: `a whole number of at least ${least}`,
  accepts: (value) => Number.isSafeInteger(value) && value >= least,
});
const probability = {
  expected: "a number from 0 to 1",
  accepts: (value) => typeof value === "number" && value >= 0 && value <= 1,
};
const abortSignal = { expected: "an AbortSignal", accepts: (value) => value instanceof AbortSignal };

const boolean = { expected: "true or false", accepts: (value) => typeof value === "boolean" };
const SHA256 = /^sha256-[A-Za-z0-9+/]{43}=$/;

const LOAD_OPTIONS = {
  dtype: { expected: "a string", accepts: (value) => typeof value === "string" },
  context: integerFrom(1),
  memoryBudget: integerFrom(1),
  cache: boolean,
  fetch: { expected: "a function", accepts: (value) => typeof value === "function" },
  integrity: {
    expected: 'an object of hashes ("sha256-…") by file name',
    accepts: (value) => isPlainObject(value) && Object.values(value).every((hash) => SHA256.test(hash)),
  },
  onProgress: { expected: "a function", accepts: (value) => typeof value === "function" },
  signal: abortSignal,
};

const GENERATE_OPTIONS = {
  maxTokens: integerFrom(1),
  temperature: { expected: "a number of at least 0", accepts: (value) => Number.isFinite(value) && value >= 0 },
  topK: integerFrom(1),
  topP: probability,
  minP: probability,
  seed: integerFrom(0),
  stop: {
    expected: "a string or an array of strings, none of them empty",
    accepts: (value) => [value].flat().every((text) => typeof text === "string" && text !== ""),
  },
  tools: {
    expected: 'an array of { type: "function", function: { name, description, parameters } }',
    accepts: (value) => Array.isArray(value) && value.every(isTool),
  },
  thinking: boolean,
  contextFull: { expected: '"error" or "slide"', accepts: (value) => value === "error" || value === "slide" },
  signal: abortSignal,
};

const SESSION_OPTIONS = { context: integerFrom(1) };

/** The options of `Model.load` that were given, checked. */
export function checkLoadOptions(options) {
  return checkOptions("load the model", options, LOAD_OPTIONS);
}

/** The options of `model.session` that were given, checked. */
export function checkSessionOptions(asked, options) {
  return checkOptions(asked, options, SESSION_OPTIONS);
}

/** The options of `generate` that were given, checked; `stop` as an array, no empty `tools`. */
export function checkGenerateOptions(options) {
  const checked = checkOptions("generate", options, GENERATE_OPTIONS);
  if (checked.stop !== undefined) checked.stop = [checked.stop].flat().map((text) => text.toWellFormed());
  if (checked.tools !== undefined) checked.tools = plainJson("generate", checked.tools, "option tools");
  if (checked.tools?.length === 0) delete checked.tools;
  return checked;
}

function isTool(tool) {
  return isPlainObject(tool) && tool.type === "function" && isPlainObject(tool.function) && isName(tool.function.name);
}

const isName = (value) => typeof value === "string" && value !== "";

/**
 * A prompt, or messages as chat templates expect them (`tool_calls`, `reasoning_content`), with lone surrogates
 * replaced by U+FFFD.
 */
export function checkInput(input) {
  const asked = "generate";
  if (typeof input === "string") return input.toWellFormed();
  if (!Array.isArray(input)) {
    throw invalid(asked, "a prompt (a string) or an array of messages", show(input));
  }
  if (input.length === 0) throw invalid(asked, "at least one message", "an empty array");
  return input.map((message, index) => checkMessage(asked, message, `messages[${index}]`));
}

const MESSAGE_KEYS = ["role", "content", "name", "thinking", "toolCalls", "malformedToolCalls"];

function checkMessage(asked, message, where) {
  if (!isPlainObject(message)) throw invalid(asked, `${where} to be { role, content }`, show(message));
  rejectUnknownKeys(asked, message, MESSAGE_KEYS, `${where}.`);
  const { role, content, name, thinking, toolCalls } = message;
  if (!isName(role)) throw invalid(asked, `${where}.role to be a string such as "user"`, show(role));
  const checked = { role: role.toWellFormed() };
  checked.content =
    role === "tool" ? checkResult(asked, content, `${where}.content`) : checkContent(asked, content, `${where}.content`);
  if (name !== undefined) {
    if (!isName(name)) throw invalid(asked, `${where}.name to be a string that is not empty`, show(name));
    checked.name = name.toWellFormed();
  }
  if (thinking) {
    if (typeof thinking !== "string") throw invalid(asked, `${where}.thinking to be a string`, show(thinking));
    checked.reasoning_content = thinking.toWellFormed();
  }
  const calls = checkToolCalls(asked, toolCalls, `${where}.toolCalls`);
  if (calls.length > 0) checked.tool_calls = calls;
  return checked;
}

/** A text, or parts, of which texts are kept; of an image or a sound only that it is one. */
function checkContent(asked, content, where) {
  if (typeof content === "string") return content.toWellFormed();
  if (!Array.isArray(content)) throw invalid(asked, `${where} to be a string or an array of parts`, show(content));
  return content.map((part, index) => {
    if (part?.type === "image" || part?.type === "audio") return { type: part.type };
    if (part?.type === "text" && typeof part.text === "string") return { type: "text", text: part.text.toWellFormed() };
    throw invalid(asked, `${where}[${index}] to be { type: "text", text }`, show(part));
  });
}

/** What a tool gave: a text, or any other JSON value. */
function checkResult(asked, content, where) {
  if (content === undefined) throw invalid(asked, `${where} to be a string or a JSON value`, show(content));
  const result = plainJson(asked, content, where);
  // Templates tell texts and objects apart, and know nothing else.
  return typeof result === "string" || isPlainObject(result) ? result : JSON.stringify(result);
}

function checkToolCalls(asked, calls = [], where) {
  if (!Array.isArray(calls)) throw invalid(asked, `${where} to be an array`, show(calls));
  return calls.map((call, index) => {
    if (!isPlainObject(call) || !isName(call.name) || !isPlainObject(call.arguments)) {
      throw invalid(asked, `${where}[${index}] to be { name, arguments }`, show(call));
    }
    const { name, arguments: given } = call;
    const called = { name: name.toWellFormed(), arguments: plainJson(asked, given, `${where}[${index}].arguments`) };
    return { type: "function", function: called };
  });
}

/** A copy of `value` as JSON has it, with lone surrogates replaced by U+FFFD. */
function plainJson(asked, value, where) {
  const wellFormed = (_, value) => (typeof value === "string" ? value.toWellFormed() : value);
  let json;
  try {
    json = JSON.stringify(value);
  } catch {
    // A cycle, or a BigInt.
  }
  if (json === undefined) throw invalid(asked, `${where} to be a JSON value`, show(value));
  return JSON.parse(json, wellFormed);
}

/**
 * Where a model lies, as the wasm core takes it: the absolute address of its folder (ending in "/"),
 * a hub id, `{ files }` by path inside the model's folder, or `{ directory }` for a handle to that folder.
 */
export function checkSource(source) {
  if (source instanceof URL || typeof source === "string") return checkAddress(source);
  const { FileSystemDirectoryHandle } = globalThis;
  if (FileSystemDirectoryHandle && source instanceof FileSystemDirectoryHandle) return { directory: source };
  return { files: filesByPath(source) };
}

/** The address of a model's folder, or a hub id: a model that comes over the network. */
export function checkAddress(source) {
  if (source instanceof URL) return folderAddress(source);
  if (typeof source === "string") return checkLocation(source);
  throw invalid("find the model", "an address or a hub id", show(source));
}

/** How deep folders of a picked one are looked into. */
const MAX_DEPTH = 4;

/** The files below a directory handle, by path. */
export async function filesOfDirectory(directory, prefix = "", depth = 0) {
  const files = {};
  for await (const [name, handle] of directory.entries()) {
    if (handle.kind === "file") files[prefix + name] = await handle.getFile();
    else if (depth < MAX_DEPTH) Object.assign(files, await filesOfDirectory(handle, `${prefix}${name}/`, depth + 1));
  }
  return files;
}

const HUB_ID = /^[\w.-]+\/[\w.-]+(@[\w./-]+)?$/;

function checkLocation(location) {
  // Relative addresses begin with "./", "../" or "/", so that "owner/name" is always a hub id.
  const isAddress = /^(https?:|\.{0,2}\/)/i.test(location);
  if (!isAddress && HUB_ID.test(location)) return location;
  const address = isAddress && parseAddress(location);
  if (address) return folderAddress(address);
  throw invalid(
    "load the model",
    'the address of its folder, or a hub id such as "owner/name"',
    show(location),
    'Begin a relative address with "./" or "/".',
  );
}

function parseAddress(location) {
  try {
    return new URL(location, globalThis.document?.baseURI ?? globalThis.location?.href);
  } catch {
    return undefined;
  }
}

function folderAddress(url) {
  if (!/^https?:$/.test(url.protocol) || url.search || url.hash) {
    throw invalid("load the model", "an http(s) address without query or fragment", show(url.href));
  }
  return url.href.endsWith("/") ? url.href : `${url.href}/`;
}

function filesByPath(source) {
  const expected = "an address, a hub id, a directory handle, a FileList, an array of File, or an object of Blobs by file name";
  const isList = Array.isArray(source) || (globalThis.FileList && source instanceof FileList);
  if (!isList && !isPlainObject(source)) throw invalid("load the model", expected, show(source));
  const entries = isList ? Array.from(source, (file) => [pathInFolder(file), file]) : Object.entries(source);
  const files = {};
  for (const [path, file] of entries) {
    if (!(file instanceof Blob) || path === undefined) throw invalid("load the model", expected, show(file));
    if (Object.hasOwn(files, path)) throw invalid("load the model", "files of different names", `${show(path)} twice`);
    files[path] = file;
  }
  if (entries.length === 0) throw invalid("load the model", "at least one file", "none");
  return files;
}

/** A picked folder's files carry the folder's own name in front ("smollm2/config.json"). */
function pathInFolder(file) {
  return file?.webkitRelativePath ? file.webkitRelativePath.replace(/^[^/]*\//, "") : file?.name;
}

function checkOptions(asked, options, table) {
  if (!isPlainObject(options)) throw invalid(asked, "an object of options", show(options));
  rejectUnknownKeys(asked, options, Object.keys(table), "option ");
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  for (const [key, value] of given) {
    const { expected, accepts } = table[key];
    if (!accepts(value)) throw invalid(asked, `option ${key} to be ${expected}`, show(value));
  }
  return Object.fromEntries(given);
}

function rejectUnknownKeys(asked, object, known, where) {
  for (const key of Object.keys(object)) {
    if (known.includes(key)) continue;
    const nearest = known.toSorted((a, b) => editDistance(key, a) - editDistance(key, b))[0];
    throw invalid(asked, `only ${known.join(", ")}`, `${where}${key}`, `Did you mean ${nearest}?`);
  }
}

function invalid(asked, expected, got, remedy) {
  const message = `could not ${asked}: expected ${expected}, got ${got}.`;
  return new JirdError("invalid_argument", remedy ? `${message} ${remedy}` : message);
}

function isPlainObject(value) {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  // By name, since an object of another frame has another Object.prototype.
  return prototype === null || prototype.constructor?.name === "Object";
}

/** A value in few characters, for a message. */
function show(value) {
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? `${value.slice(0, 59)}…` : value);
  if (typeof value === "function") return "a function";
  if (typeof value !== "object" || value === null) return String(value);
  return Array.isArray(value) ? `an array of ${value.length}` : `an object of ${value.constructor?.name ?? "no class"}`;
}

/** Levenshtein's distance, blind to case: "max_tokens" and "MaxToken" are both near "maxTokens". */
function editDistance(a, b) {
  a = a.toLowerCase();
  b = b.toLowerCase();
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 0; i < a.length; i++) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j++) {
      next.push(Math.min(row[j] + (a[i] === b[j] ? 0 : 1), row[j + 1] + 1, next[j] + 1));
    }
    row = next;
  }
  return row[b.length];
}
