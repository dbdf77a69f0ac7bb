// Tests of the package's hand-written modules over a double of the generated bindings, in Node.

import assert from "node:assert/strict";
import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const folder = await mkdtemp(join(tmpdir(), "jird-unit-"));
after(() => rm(folder, { recursive: true }));
await cp(join(here, "../../../pkg-template"), folder, { recursive: true });
await cp(join(here, "../fake/jird.js"), join(folder, "jird.js"));

const importFrom = (file) => import(new URL(file, pathToFileURL(join(folder, "/"))));
// Before there is a navigator with a GPU: the import must not need one.
const { Model, JirdError } = await importFrom("index.js");
const { EMPTY_WASM, fake } = await importFrom("jird.js");

const URL_OF_MODEL = "https://models.example/smollm2/";
const setGlobal = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true });

beforeEach(() => {
  setGlobal("navigator", { gpu: {} });
  setGlobal("isSecureContext", true);
  setGlobal("fetch", async () => new Response(EMPTY_WASM));
  Object.assign(fake, { stepMs: 0, script: undefined, failures: {}, calls: [], cached: [] });
  fake.live = { engines: 0, sessions: 0, generations: 0 };
});

const load = (options) => Model.load(URL_OF_MODEL, options);
const rejectsWith = (code, message) => (error) => {
  assert.ok(error instanceof JirdError, `a JirdError, not ${error}`);
  assert.equal(error.name, "JirdError");
  assert.equal(error.code, code);
  assert.match(error.message, message);
  return true;
};
const collect = async (generation) => {
  const pieces = [];
  for await (const text of generation) pieces.push(text);
  return pieces;
};
const settle = (ms = 5) => new Promise((resolve) => setTimeout(resolve, ms));

test("iterating yields the pieces that have text, and fills stats and tokenIds", async () => {
  const model = await load();
  const generation = model.generate("Hello", { maxTokens: 4 });
  assert.deepEqual(generation.stats, { promptTokens: 0, cachedTokens: 0, newTokens: 0 });
  assert.deepEqual(await collect(generation), ["A ", "is ", "a "]);
  assert.deepEqual(generation.tokenIds, [0, 1, 2, 3]);
  assert.equal(generation.stats.newTokens, 4);
  assert.equal(generation.stats.finishReason, "length");
  assert.equal(await generation.text(), "A is a ");
  assert.equal(fake.live.generations, 0);
});

test("nothing is computed before it is asked for", async () => {
  const model = await load();
  const generation = model.generate("Hello", { maxTokens: 2 });
  await settle();
  assert.equal(fake.calls.filter(([name]) => name === "start").length, 0);
  const [first, second] = await Promise.all([generation.text(), generation.text()]);
  assert.equal(first, "A ");
  assert.equal(second, first);
  assert.equal(fake.calls.filter(([name]) => name === "start").length, 1);
});

test("text() of an iteration under way waits for its end", async () => {
  const model = await load();
  const generation = model.generate("Hello", { maxTokens: 3 });
  const iteration = collect(generation);
  assert.equal(await generation.text(), (await iteration).join(""));
});

test("a generation is iterated once", async () => {
  const model = await load();
  const generation = model.generate("Hello", { maxTokens: 1 });
  await collect(generation);
  await assert.rejects(collect(generation), rejectsWith("invalid_argument", /already begun/));
});

test("break frees the generation and lets the next one run", async () => {
  const model = await load();
  const broken = model.generate("Hello");
  for await (const text of broken) {
    assert.equal(text, "A ");
    break;
  }
  assert.equal(fake.live.generations, 0);
  assert.equal(broken.stats.finishReason, "cancelled");
  assert.equal(await broken.text(), "A ");
  assert.equal(await model.generate("Hello", { maxTokens: 1 }).text(), "A ");
});

test("a loop body that throws frees the generation too", async () => {
  const model = await load();
  const loop = async () => {
    for await (const _ of model.generate("Hello")) throw new RangeError("mine");
  };
  await assert.rejects(loop(), new RangeError("mine"));
  assert.equal(fake.live.generations, 0);
});

test("overlapping generations run one after the other, in order", async () => {
  fake.stepMs = 1;
  const model = await load();
  const order = [];
  const run = async (name) => {
    for await (const _ of model.generate(name, { maxTokens: 3 })) order.push(name);
  };
  await Promise.all([run("a"), run("b"), run("c")]);
  assert.deepEqual(order, ["a", "a", "b", "b", "c", "c"]);
});

test("an abort while waiting in the queue gives up that turn only", async () => {
  fake.stepMs = 1;
  const model = await load();
  const controller = new AbortController();
  const first = model.generate("a", { maxTokens: 5 }).text();
  const waiting = model.generate("b", { signal: controller.signal }).text();
  const third = model.generate("c", { maxTokens: 1 }).text();
  const reason = new Error("changed my mind");
  controller.abort(reason);
  await assert.rejects(waiting, (error) => error === reason);
  assert.equal(await third, "A ");
  assert.equal(await first, "A is a small ");
  assert.deepEqual(
    fake.calls.filter(([name]) => name === "start").map(([, input]) => input),
    ["a", "c"],
  );
});

test("an abort during a step rejects with the signal's reason", async () => {
  fake.stepMs = 5;
  const model = await load();
  const controller = new AbortController();
  const generation = model.generate("a", { signal: controller.signal });
  const text = generation.text();
  setTimeout(() => controller.abort(), 25);
  await assert.rejects(text, { name: "AbortError" });
  assert.equal(generation.stats.finishReason, "cancelled");
  assert.equal(fake.live.generations, 0);
});

test("an abort between two pulls gives the turn back at once", async () => {
  const model = await load();
  const controller = new AbortController();
  const generation = model.generate("a", { signal: controller.signal });
  const iterator = generation[Symbol.asyncIterator]();
  await iterator.next();
  controller.abort();
  assert.equal(fake.live.generations, 0);
  assert.equal(await model.generate("b", { maxTokens: 1 }).text(), "A ");
  await assert.rejects(iterator.next(), { name: "AbortError" });
  await assert.rejects(generation.text(), { name: "AbortError" });
  assert.deepEqual(await iterator.next(), { value: undefined, done: true });
});

test("an aborted signal rejects before anything starts", async () => {
  await assert.rejects(load({ signal: AbortSignal.abort("enough") }), (error) => error === "enough");
  assert.deepEqual(fake.calls, []);
  const model = await load();
  const text = model.generate("a", { signal: AbortSignal.abort("enough") }).text();
  await assert.rejects(text, (error) => error === "enough");
  assert.deepEqual(fake.calls.map(([name]) => name), ["load"]);
});

test("a load can be aborted half way, and tried again", async () => {
  fake.stepMs = 2;
  const controller = new AbortController();
  const onProgress = (event) => event.loaded > event.total / 2 && controller.abort();
  await assert.rejects(load({ signal: controller.signal, onProgress }), { name: "AbortError" });
  assert.equal(fake.live.engines, 0);
  await load();
  assert.equal(fake.live.engines, 1);
});

test("an error of the progress listener ends the load", async () => {
  const mine = new TypeError("mine");
  const onProgress = () => {
    throw mine;
  };
  await assert.rejects(load({ onProgress }), (error) => error === mine);
});

test("errors of the core keep their code and message, and become the cause", async () => {
  const model = await load();
  const thrown = Object.assign(new Error("could not generate: the prompt is too long."), { code: "context_full" });
  fake.failures.start = thrown;
  const generation = model.generate("a");
  await assert.rejects(generation.text(), (error) => {
    assert.equal(error.cause, thrown);
    return rejectsWith("context_full", /^could not generate: the prompt is too long\.$/)(error);
  });
  assert.equal(await model.generate("b", { maxTokens: 1 }).text(), "A ");
});

test("an error in the middle frees the generation", async () => {
  const model = await load();
  const generation = model.generate("a");
  const iterator = generation[Symbol.asyncIterator]();
  await iterator.next();
  fake.failures.next = Object.assign(new Error("the GPU was lost."), { code: "device_lost" });
  await assert.rejects(iterator.next(), rejectsWith("device_lost", /lost/));
  await assert.rejects(generation.text(), rejectsWith("device_lost", /lost/));
  assert.equal(fake.live.generations, 0);
});

test("what carries no known code is internal", async () => {
  for (const thrown of [new WebAssembly.RuntimeError("unreachable"), new DOMException("x", "DataError"), "text"]) {
    fake.failures.load = thrown;
    await assert.rejects(load(), (error) => {
      assert.equal(error.cause, thrown);
      return rejectsWith("internal", /bug of jird/)(error);
    });
  }
});

test("dispose frees once; later calls reject with disposed", async () => {
  const model = await load();
  const generation = model.generate("a");
  await Promise.all([model.dispose(), model.dispose()]);
  assert.equal(fake.live.engines, 0);
  const disposed = rejectsWith("disposed", /disposed of/);
  assert.throws(() => model.generate("a"), disposed);
  assert.throws(() => model.info, disposed);
  assert.throws(() => model.memory, disposed);
  await assert.rejects(generation.text(), disposed);
});

test("dispose ends running and waiting generations, then frees", async () => {
  fake.stepMs = 3;
  const model = await load();
  const running = model.generate("a").text();
  const waiting = model.generate("b").text();
  await settle(10);
  const disposed = rejectsWith("disposed", /disposed of/);
  const rejections = [assert.rejects(running, disposed), assert.rejects(waiting, disposed)];
  await model.dispose();
  assert.deepEqual(fake.live, { engines: 0, sessions: 0, generations: 0 });
  await Promise.all(rejections);
});

test("dispose does not wait for an iterator that nobody pulls", async () => {
  const model = await load();
  const iterator = model.generate("a")[Symbol.asyncIterator]();
  await iterator.next();
  await model.dispose();
  assert.deepEqual(fake.live, { engines: 0, sessions: 0, generations: 0 });
  await assert.rejects(iterator.next(), rejectsWith("disposed", /disposed of/));
});

test("Symbol.dispose disposes", { skip: !Symbol.dispose }, async () => {
  const model = await load();
  model[Symbol.dispose]();
  assert.throws(() => model.info, rejectsWith("disposed", /disposed of/));
  await model.dispose();
  assert.equal(fake.live.engines, 0);
});

const CALL = { name: "weather", arguments: { city: "Köln", days: [1, 2.5, null] } };
const SCRIPT = [
  [{ type: "thinking", text: "Where " }],
  [{ type: "thinking", text: "is it?" }],
  [],
  [{ type: "text", text: "Let me " }],
  [{ type: "text", text: "see." }, { type: "toolCall", ...CALL }],
  [{ type: "malformedToolCall", raw: "call:", problem: "it names no function" }],
];

test("parts are thinking, text and tool calls; iterating yields the text alone", async () => {
  fake.script = SCRIPT;
  const model = await load();
  assert.deepEqual(await collect(model.generate("a").parts()), SCRIPT.flat());
  const generation = model.generate("a");
  assert.deepEqual(await collect(generation), ["Let me ", "see."]);
  assert.equal(await generation.text(), "Let me see.");
  await assert.rejects(collect(generation.parts()), rejectsWith("invalid_argument", /already begun/));
});

test("leaving the parts frees the generation", async () => {
  const model = await load();
  for await (const part of model.generate("a").parts()) {
    assert.deepEqual(part, { type: "text", text: "A " });
    break;
  }
  assert.equal(fake.live.generations, 0);
});

test("a message can be given back as it is, with what its tools gave", async () => {
  fake.script = SCRIPT;
  const model = await load();
  const message = await model.generate("a").message();
  assert.deepEqual(message, {
    role: "assistant",
    content: "Let me see.",
    thinking: "Where is it?",
    toolCalls: [CALL],
    malformedToolCalls: [{ raw: "call:", problem: "it names no function" }],
  });
  const messages = [{ role: "user", content: "Weather?" }, message];
  messages.push({ role: "tool", name: "weather", content: { sky: "clear\ud800" } });
  messages.push({ role: "tool", name: "weather", content: [1, undefined] });
  const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
  await model.generate(messages, { tools, thinking: false, contextFull: "slide", maxTokens: 1 }).text();
  assert.deepEqual(fake.calls.at(-1), [
    "start",
    [
      { role: "user", content: "Weather?" },
      {
        role: "assistant",
        content: "Let me see.",
        reasoning_content: "Where is it?",
        tool_calls: [{ type: "function", function: CALL }],
      },
      { role: "tool", name: "weather", content: { sky: "clear\ufffd" } },
      { role: "tool", name: "weather", content: "[1,null]" },
    ],
    { tools, thinking: false, contextFull: "slide", maxTokens: 1 },
  ]);
  await model.generate(messages, { tools: [], maxTokens: 1 }).text();
  assert.deepEqual(fake.calls.at(-1)[2], { maxTokens: 1 });
});

test("content may come in parts", async () => {
  const model = await load();
  const content = [{ type: "text", text: "What is this?" }, { type: "image", image: new Blob() }];
  await model.generate([{ role: "user", content }], { maxTokens: 1 }).text();
  const [message] = fake.calls.at(-1)[1];
  assert.deepEqual(message.content, [{ type: "text", text: "What is this?" }, { type: "image" }]);
});

test("sessions wait for each other's generations, and are freed alone", async () => {
  fake.stepMs = 1;
  const model = await load();
  const session = await model.session({ context: 512 });
  assert.deepEqual(fake.calls.at(-1), ["session", { context: 512 }]);
  const order = [];
  const run = async (from, name) => {
    for await (const _ of from.generate(name, { maxTokens: 3 })) order.push(name);
  };
  await Promise.all([run(model, "a"), run(session, "b")]);
  assert.deepEqual(order, ["a", "a", "b", "b"]);

  const text = session.generate("c").text();
  await settle(10);
  const disposed = rejectsWith("disposed", /session was disposed of/);
  const rejection = assert.rejects(text, disposed);
  await session.dispose();
  await rejection;
  assert.deepEqual(fake.live, { engines: 1, sessions: 0, generations: 0 });
  assert.throws(() => session.generate("d"), disposed);
  assert.equal(await model.generate("e", { maxTokens: 1 }).text(), "A ");
});

test("a session is disposed of while another's iterator is held", async () => {
  const model = await load();
  const session = await model.session();
  const held = model.generate("a")[Symbol.asyncIterator]();
  await held.next();
  const waiting = session.generate("b").text();
  const rejection = assert.rejects(waiting, rejectsWith("disposed", /session was disposed of/));
  await session.dispose();
  await rejection;
  assert.equal(fake.live.sessions, 0);
  await held.return();
});

test("disposing of the model disposes of its sessions", async () => {
  fake.stepMs = 2;
  const model = await load();
  const sessions = [await model.session(), await model.session()];
  const texts = sessions.map((session) => session.generate("a").text());
  const rejections = texts.map((text) => assert.rejects(text, rejectsWith("disposed", /disposed of/)));
  await settle();
  await model.dispose();
  await Promise.all(rejections);
  assert.deepEqual(fake.live, { engines: 0, sessions: 0, generations: 0 });
  await assert.rejects(model.session(), rejectsWith("disposed", /open a session: the model was disposed of/));
});

test("disposing of the model waits for a session that is being opened, and disposes of it", async () => {
  fake.stepMs = 2;
  const model = await load();
  const opening = model.session();
  await model.dispose();
  const session = await opening;
  assert.throws(() => session.generate("a"), rejectsWith("disposed", /disposed of/));
  assert.deepEqual(fake.live, { engines: 0, sessions: 0, generations: 0 });
});

test("a session that cannot be opened says why", async () => {
  const model = await load();
  fake.failures.session = Object.assign(new Error("could not allocate k cache."), { code: "out_of_memory" });
  await assert.rejects(model.session(), rejectsWith("out_of_memory", /k cache/));
  await assert.rejects(model.session({ context: 0 }), rejectsWith("invalid_argument", /open a session.*option context/));
});

test("info and memory are the core's", async () => {
  const model = await load();
  assert.equal(model.info.modelType, "llama");
  assert.equal(model.memory.weights, 269_000_000);
});

test("models are made by load only", () => {
  assert.throws(() => new Model({}), rejectsWith("invalid_argument", /Model\.load/));
});

test("without WebGPU the error says why", async () => {
  setGlobal("navigator", {});
  await assert.rejects(load(), rejectsWith("no_webgpu", /this browser offers no WebGPU/));
  setGlobal("isSecureContext", false);
  await assert.rejects(load(), rejectsWith("no_webgpu", /not secure.*https/));
  setGlobal("navigator", undefined);
  await assert.rejects(load(), rejectsWith("no_webgpu", /WebGPU/));
});

test("a wasm file that cannot be fetched or started is named, and tried again later", async () => {
  // A copy of its own, since the wasm core starts once per module.
  const { Model: Fresh, JirdError: FreshError } = await importFrom("index.js?fresh");
  assert.equal(FreshError, JirdError);
  const loadFresh = () => Fresh.load(URL_OF_MODEL);
  setGlobal("fetch", async () => new Response("", { status: 404 }));
  await assert.rejects(loadFresh(), rejectsWith("network", /jird_bg\.wasm: got 404/));
  setGlobal("fetch", async () => Promise.reject(new TypeError("Failed to fetch")));
  await assert.rejects(loadFresh(), rejectsWith("network", /jird_bg\.wasm \(TypeError: Failed to fetch\)/));
  setGlobal("fetch", async () => new Response(EMPTY_WASM));
  fake.failures.init = new WebAssembly.CompileError("refused");
  await assert.rejects(loadFresh(), rejectsWith("unsupported", /refused.*wasm-unsafe-eval/));
  // A server that answers every address with its start page.
  setGlobal("fetch", async () => new Response("<!doctype html>"));
  await assert.rejects(loadFresh(), rejectsWith("unsupported", /Check that this address serves the wasm file/));
  setGlobal("fetch", async () => new Response(EMPTY_WASM));
  await loadFresh();
});

test("options of load and generate are passed on as given", async () => {
  const model = await load({ dtype: "q4", context: 512, cache: false, onProgress: undefined });
  await model.generate("a", { maxTokens: 1, temperature: 0.7, topK: 40, topP: 0.9, minP: 0, seed: 7, stop: "\n" }).text();
  assert.deepEqual(fake.calls, [
    ["load", URL_OF_MODEL, { dtype: "q4", context: 512, cache: false }],
    ["start", "a", { maxTokens: 1, temperature: 0.7, topK: 40, topP: 0.9, minP: 0, seed: 7, stop: ["\n"] }],
  ]);
});

test("wrong options are named with what was expected and got", async () => {
  const model = await load();
  const wrong = [
    [{ maxTokens: 0 }, /option maxTokens to be a whole number of at least 1, got 0/],
    [{ maxTokens: 1.5 }, /maxTokens.*got 1\.5/],
    [{ maxTokens: "8" }, /maxTokens.*got "8"/],
    [{ temperature: -1 }, /temperature.*got -1/],
    [{ temperature: NaN }, /temperature.*got NaN/],
    [{ topK: Infinity }, /topK.*got Infinity/],
    [{ topP: 1.1 }, /topP.*from 0 to 1, got 1\.1/],
    [{ minP: "0.1" }, /minP.*got "0\.1"/],
    [{ seed: 2 ** 53 }, /seed.*got 9007199254740992/],
    [{ seed: null }, /seed.*got null/],
    [{ stop: "" }, /stop.*none of them empty, got ""/],
    [{ stop: ["a", 1] }, /stop.*got an array of 2/],
    [{ tools: [{ name: "f" }] }, /tools.*an array of \{ type: "function"/],
    [{ thinking: "high" }, /thinking.*true or false, got "high"/],
    [{ contextFull: "drop" }, /contextFull.*"error" or "slide", got "drop"/],
    [{ signal: new AbortController() }, /signal.*an AbortSignal, got an object of AbortController/],
    [{ max_tokens: 8 }, /got option max_tokens\. Did you mean maxTokens\?/],
    [{ temprature: 1 }, /Did you mean temperature\?/],
    [[], /an object of options, got an array of 0/],
    [null, /an object of options, got null/],
  ];
  for (const [options, message] of wrong) {
    assert.throws(() => model.generate("a", options), rejectsWith("invalid_argument", message));
  }
  await assert.rejects(load({ onprogress: () => {} }), rejectsWith("invalid_argument", /Did you mean onProgress\?/));
  await assert.rejects(load({ cache: "no" }), rejectsWith("invalid_argument", /cache.*true or false, got "no"/));
});

test("wrong inputs are named", async () => {
  const model = await load();
  const wrong = [
    [undefined, /a prompt \(a string\) or an array of messages, got undefined/],
    [42, /got 42/],
    [{ role: "user", content: "x" }, /got an object of Object/],
    [[], /at least one message, got an empty array/],
    [["x"], /messages\[0\] to be \{ role, content \}, got "x"/],
    [[{ role: "user" }], /messages\[0\]\.content to be a string or an array of parts, got undefined/],
    [[{ role: "user", content: [{ type: "text" }] }], /messages\[0\]\.content\[0\] to be \{ type: "text", text \}/],
    [[{ role: "user", content: [null] }], /messages\[0\]\.content\[0\].*got null/],
    [[{ role: "tool" }], /messages\[0\]\.content to be a string or a JSON value/],
    [[{ role: "tool", content: 1n }], /messages\[0\]\.content to be a JSON value, got 1/],
    [[{ role: "assistant", content: "", toolCalls: [{ name: "f" }] }], /toolCalls\[0\] to be \{ name, arguments \}/],
    [[{ role: "assistant", content: "", toolCalls: {} }], /toolCalls to be an array/],
    [[{ role: "assistant", content: "", thinking: 1 }], /thinking to be a string, got 1/],
    [[{ role: "", content: "x" }], /messages\[0\]\.role/],
    [[{ role: "user", content: "x" }, { role: "user", contents: "x" }], /messages\[1\]\.contents\. Did you mean content\?/],
  ];
  for (const [input, message] of wrong) {
    assert.throws(() => model.generate(input), rejectsWith("invalid_argument", message));
  }
});

test("lone surrogates become U+FFFD", async () => {
  const model = await load();
  await model.generate("a\ud800", { maxTokens: 1 }).text();
  await model.generate([{ role: "user", content: "\udc00😀" }], { maxTokens: 1 }).text();
  const inputs = fake.calls.filter(([name]) => name === "start").map(([, input]) => input);
  assert.deepEqual(inputs, ["a\ufffd", [{ role: "user", content: "\ufffd😀" }]]);
});

test("locations become absolute folders, hub ids or files", async () => {
  setGlobal("document", { baseURI: "https://page.example/app/index.html" });
  const locationOf = async (source) => {
    await Model.load(source);
    return fake.calls.at(-1)[1];
  };
  assert.equal(await locationOf("./models/smollm2"), "https://page.example/app/models/smollm2/");
  assert.equal(await locationOf("../m/"), "https://page.example/m/");
  assert.equal(await locationOf("/m"), "https://page.example/m/");
  assert.equal(await locationOf("HTTPS://models.example/a%20b"), "https://models.example/a%20b/");
  assert.equal(await locationOf(new URL("http://localhost:8000/m")), "http://localhost:8000/m/");
  assert.equal(await locationOf("owner/name"), "owner/name");
  assert.equal(await locationOf("owner/name@refs/pr/1"), "owner/name@refs/pr/1");
  const config = new Blob(["{}"]);
  assert.deepEqual(await locationOf({ "config.json": config }), { files: { "config.json": config } });
  const picked = (path, name) => Object.assign(new File([], name), { webkitRelativePath: path });
  const folder = await locationOf([picked("smollm2/config.json", "config.json"), picked("smollm2/a/b.json", "b.json")]);
  assert.deepEqual(Object.keys(folder.files), ["config.json", "a/b.json"]);
  const loose = await locationOf([new File([], "config.json"), new File([], "tokenizer.json")]);
  assert.deepEqual(Object.keys(loose.files), ["config.json", "tokenizer.json"]);
  delete globalThis.document;
});

test("wrong locations are named", async () => {
  const wrong = [
    ["", /hub id.*got ""\./],
    ["smollm2", /got "smollm2"\. Begin a relative address with/],
    ["ftp://models.example/m", /got "ftp:/],
    ["https://", /got "https:\/\/"/],
    ["https://models.example/m?token=1", /without query or fragment/],
    [new URL("file:///m"), /an http\(s\) address/],
    [undefined, /got undefined/],
    [[], /at least one file, got none/],
    [{ "config.json": "{}" }, /got "\{\}"/],
    [[new Blob([])], /got an object of Blob/],
    [[new File([], "a"), new File([], "a")], /files of different names, got "a" twice/],
  ];
  for (const [source, message] of wrong) {
    await assert.rejects(Model.load(source), rejectsWith("invalid_argument", message));
  }
  assert.deepEqual(fake.calls, []);
});

test("plan passes its options on, can be aborted, and maps errors as load does", async () => {
  const plan = await Model.plan(URL_OF_MODEL, { dtype: "q4", memoryBudget: 1_500_000_000 });
  assert.equal(plan.totalBytes, plan.gpuBytes + plan.heapBytes);
  assert.deepEqual(fake.calls, [["plan", URL_OF_MODEL, { dtype: "q4", memoryBudget: 1_500_000_000 }]]);
  assert.equal(fake.live.engines, 0);
  fake.failures.plan = Object.assign(new Error("could not load the model."), { code: "out_of_memory" });
  await assert.rejects(Model.plan(URL_OF_MODEL), rejectsWith("out_of_memory", /could not load/));
  await assert.rejects(Model.plan(URL_OF_MODEL, { signal: AbortSignal.abort() }), { name: "AbortError" });
  await assert.rejects(Model.plan(URL_OF_MODEL, { memoryBudget: 0.5 }), rejectsWith("invalid_argument", /memoryBudget/));
});

test("the cache is listed, asked and emptied, without a GPU", async () => {
  setGlobal("navigator", {});
  fake.cached = [{ id: "a/b", url: URL_OF_MODEL, bytes: 7, files: ["config.json"], complete: true }];
  assert.deepEqual(await Model.cachedModels(), fake.cached);
  assert.equal(await Model.isCached(URL_OF_MODEL.slice(0, -1)), true);
  assert.equal(await Model.isCached(new URL("https://models.example/other")), false);
  assert.equal(await Model.deleteCached(URL_OF_MODEL), true);
  assert.equal(await Model.deleteCached(URL_OF_MODEL), false);
  await assert.rejects(Model.isCached([]), rejectsWith("invalid_argument", /an address or a hub id/));
  fake.failures.isCached = Object.assign(new Error("could not open the cache."), { code: "storage" });
  await assert.rejects(Model.isCached("a/b"), rejectsWith("storage", /open the cache/));
});

test("a fetch of the caller's own and integrity are passed on, and checked", async () => {
  const asked = [];
  const integrity = { "model.safetensors": "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=" };
  await load({ fetch: async (url) => asked.push(url), integrity });
  assert.deepEqual(asked, ["config.json"]);
  assert.deepEqual(fake.calls[0][2], { integrity });
  await assert.rejects(load({ fetch: "fetch" }), rejectsWith("invalid_argument", /option fetch/));
  for (const wrong of ["sha256-x", { a: "md5-x" }, { a: 1 }]) {
    await assert.rejects(load({ integrity: wrong }), rejectsWith("invalid_argument", /option integrity/));
  }
});

test("a directory's files are found by their paths", async () => {
  const file = (name) => ({ kind: "file", getFile: async () => new Blob([name]) });
  class FileSystemDirectoryHandle {
    kind = "directory";
    constructor(children) {
      this.children = children;
    }
    async *entries() {
      yield* Object.entries(this.children);
    }
  }
  setGlobal("FileSystemDirectoryHandle", FileSystemDirectoryHandle);
  const inner = new FileSystemDirectoryHandle({ "model.safetensors": file("weights") });
  await Model.load(new FileSystemDirectoryHandle({ "config.json": file("config"), weights: inner }));
  const { files } = fake.calls[0][1];
  assert.deepEqual(Object.keys(files), ["config.json", "weights/model.safetensors"]);
  assert.equal(await files["weights/model.safetensors"].text(), "weights");
  setGlobal("FileSystemDirectoryHandle", undefined);
});
