// The packed tarball as a user has it: installed into a fresh Vite app, built, served and driven in Chromium.
//
// JIRD_TARBALL  the tarball that `./run pack` made
// JIRD_MODELS   a folder of models, served to the page with Range and CORS; by default tests/fixtures
// JIRD_MODEL    the model's folder in it; by default llama/tied

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { build, createServer, preview } from "vite";
import { launch } from "../browser.js";
import { freshApp } from "../fresh.js";
import { serve } from "../server.js";

const run = promisify(execFile);
const here = fileURLToPath(new URL("../", import.meta.url));
const models = resolve(process.env.JIRD_MODELS ?? join(here, "../fixtures"));
const model = process.env.JIRD_MODEL ?? "llama/tied";
const PROMPT = "Once upon a time";

let app;
let browser;
let page;
let modelServer;
let site;

before(async () => {
  app = await freshApp();
  await build({ root: app, logLevel: "warn", build: { target: "esnext" } });
  modelServer = await serve({ "/": models });
  site = await preview({ root: app, preview: { port: 0, host: "localhost" } });
  browser = await launch();
  page = await open(site.resolvedUrls.local[0]);
});
after(async () => {
  await browser?.close();
  await site?.close();
  await modelServer?.close();
  if (app) await rm(app, { recursive: true });
});

/** Opens the app in a context of its own (an empty cache) and waits for the package. */
async function open(address, prepare) {
  const context = await browser.newContext();
  const opened = await context.newPage();
  if (prepare) await opened.addInitScript(prepare);
  await opened.goto(address);
  await opened.waitForFunction(() => globalThis.jird);
  await opened.evaluate(() => {
    /** What a failure looks like to the tests, which get copies only. */
    globalThis.caught = async (promise) => {
      try {
        await promise;
      } catch (error) {
        return { name: error?.name, code: error?.code, message: String(error?.message ?? error) };
      }
      return undefined;
    };
  });
  return opened;
}

const addressOfModel = () => `${modelServer.origin}/${model}`;

/** Loads the model into the page (as `globalThis.model`), and resolves to the events and the info. */
const load = (page) =>
  page.evaluate(async (address) => {
    const events = [];
    globalThis.model = await jird.Model.load(address, { onProgress: (event) => events.push(event) });
    return { events, info: model.info };
  }, addressOfModel());

const generate = (page, prompt, options) =>
  page.evaluate(
    async ({ prompt, options }) => {
      const generation = model.generate(prompt, options);
      const pieces = [];
      for await (const piece of generation) pieces.push(piece);
      return { pieces, text: await generation.text(), tokenIds: generation.tokenIds, stats: generation.stats };
    },
    { prompt, options },
  );

test("loads, with progress in bytes and a ledger of memory", async () => {
  const { events, info } = await load(page);
  const downloads = events.filter(({ phase }) => phase === "download");
  assert.ok(downloads.length > 1, "no progress of the weights");
  for (const [index, { loaded, total }] of downloads.entries()) {
    assert.ok(loaded >= (downloads[index - 1]?.loaded ?? 0), "progress went back");
    assert.equal(total, downloads[0].total);
  }
  assert.equal(downloads.at(-1).loaded, downloads.at(-1).total);
  assert.deepEqual(events[0], { phase: "open", file: "config.json" });
  assert.equal(events.at(-1).phase, "compile");
  const { weights: held, kvCache, activations, other, total, heap } = info.memory;
  assert.equal(held + kvCache + activations + other, total);
  assert.ok(held > 0 && kvCache > 0 && activations > 0 && heap > 0);
});

test("a plan tells what a load takes, and a budget below it refuses the load", async () => {
  const { plan, memory, tight, error } = await page.evaluate(async (address) => {
    const plan = await jird.Model.plan(address);
    const memoryBudget = plan.totalBytes - 1;
    const tight = await jird.Model.plan(address, { memoryBudget });
    return { plan, memory: model.memory, tight, error: await caught(jird.Model.load(address, { memoryBudget })) };
  }, addressOfModel());
  for (const part of ["weights", "kvCache", "activations", "other"]) assert.equal(plan[part], memory[part], part);
  assert.equal(plan.gpuBytes, memory.total);
  assert.ok(plan.fits && !tight.fits);
  assert.equal(error.code, "out_of_memory");
  assert.match(error.message, /memoryBudget/);
});

let first;
test("generates: pieces, text, tokens and numbers agree", async () => {
  first = await generate(page, PROMPT, { maxTokens: 8 });
  assert.equal(first.pieces.join(""), first.text);
  assert.equal(first.tokenIds.length, first.stats.newTokens);
  assert.ok(first.stats.newTokens >= 1 && first.stats.newTokens <= 8);
  assert.ok(first.stats.promptTokens >= 1);
  assert.ok(first.stats.firstTokenMs > 0);
  assert.match(first.stats.finishReason, /^(stop|length)$/);
});

test("messages go through the model's chat template", async () => {
  const chat = await generate(page, [{ role: "user", content: PROMPT }], { maxTokens: 8 });
  assert.ok(chat.stats.promptTokens > first.stats.promptTokens);
});

test("greedy answers repeat, and so do seeded samples", async () => {
  assert.deepEqual((await generate(page, PROMPT, { maxTokens: 8 })).tokenIds, first.tokenIds);
  const sampled = { maxTokens: 8, temperature: 1.5, topK: 50, topP: 0.95, minP: 0.01, seed: 7 };
  const [one, two] = [await generate(page, PROMPT, sampled), await generate(page, PROMPT, sampled)];
  assert.deepEqual(one.tokenIds, two.tokenIds);
});

test("overlapping generations of one model wait for each other", async () => {
  const texts = await page.evaluate(
    (prompt) => Promise.all([1, 2, 3].map(() => model.generate(prompt, { maxTokens: 8 }).text())),
    PROMPT,
  );
  assert.deepEqual(texts, [first.text, first.text, first.text]);
});

test("an abort ends the generation with the signal's reason, and the next one is right", async () => {
  const error = await page.evaluate(async (prompt) => {
    const controller = new AbortController();
    const generation = model.generate(prompt, { signal: controller.signal });
    return caught(
      (async () => {
        for await (const _ of generation) controller.abort();
      })(),
    );
  }, PROMPT);
  assert.equal(error?.name, "AbortError");
  assert.deepEqual((await generate(page, PROMPT, { maxTokens: 8 })).tokenIds, first.tokenIds);
});

test("an abort during the computation of a token rejects as well", async () => {
  const error = await page.evaluate(async (prompt) => {
    const controller = new AbortController();
    const text = model.generate(prompt, { signal: controller.signal }).text();
    setTimeout(() => controller.abort(new RangeError("too slow")), 1);
    return caught(text);
  }, PROMPT);
  assert.deepEqual([error?.name, error?.message], ["RangeError", "too slow"]);
});

test("leaving the loop frees: memory does not grow from call to call", async () => {
  const totals = await page.evaluate(async (prompt) => {
    const totals = [];
    for (let call = 0; call < 4; call++) {
      for await (const _ of model.generate(prompt)) break;
      totals.push(model.memory.total);
    }
    return totals;
  }, PROMPT);
  assert.deepEqual(new Set(totals.slice(1)).size, 1, `GPU bytes after each call: ${totals}`);
});

test("wrong options and prompts that do not fit are typed errors", async () => {
  const errors = await page.evaluate(async () => {
    const attempts = [
      () => model.generate("a", { max_tokens: 8 }).text(),
      () => model.generate("a", { temperature: -1 }).text(),
      () => model.generate("word ".repeat(2 * model.info.context)).text(),
    ];
    return Promise.all(attempts.map((attempt) => caught(new Promise((resolve) => resolve(attempt())))));
  });
  assert.deepEqual(
    errors.map((error) => [error?.name, error?.code]),
    [
      ["JirdError", "invalid_argument"],
      ["JirdError", "invalid_argument"],
      ["JirdError", "context_full"],
    ],
  );
  assert.match(errors[0].message, /Did you mean maxTokens\?/);
});

test("a disposed model says so", async () => {
  const error = await page.evaluate(async () => {
    const generation = model.generate("a");
    await model.dispose();
    return caught(generation.text());
  });
  assert.deepEqual([error?.name, error?.code], ["JirdError", "disposed"]);
});

test("a second load reads the weights from the cache", async () => {
  const asked = modelServer.requests.length;
  const { events } = await load(page);
  const { fromCache, total } = events.findLast(({ phase }) => phase === "download");
  assert.equal(fromCache, total);
  // One small range tells the file's size and ETag; the bytes themselves are not fetched again.
  const fetched = modelServer.requests.slice(asked).filter(({ path }) => path.endsWith(".safetensors"));
  assert.ok(fetched.length <= 1, `fetched again: ${JSON.stringify(fetched)}`);
  assert.deepEqual((await generate(page, PROMPT, { maxTokens: 8 })).tokenIds, first.tokenIds);
  await page.evaluate(() => model.dispose());
});

test("picked files load as well", async () => {
  const tokenIds = await page.evaluate(
    async ({ address, prompt }) => {
      const files = {};
      for (const name of ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]) {
        files[name] = await (await fetch(`${address}/${name}`)).blob();
      }
      const model = await jird.Model.load(files);
      const generation = model.generate(prompt, { maxTokens: 8 });
      await generation.text();
      await model.dispose();
      return generation.tokenIds;
    },
    { address: addressOfModel(), prompt: PROMPT },
  );
  assert.deepEqual(tokenIds, first.tokenIds);
});

test("what is missing is named: a model, a server", async () => {
  const failOf = (address) => page.evaluate((address) => caught(jird.Model.load(address)), address);
  const missing = await failOf(`${modelServer.origin}/no-such-model`);
  assert.deepEqual([missing?.name, missing?.code], ["JirdError", "checkpoint"]);
  assert.match(missing.message, /config\.json/);
  const unreachable = await failOf("http://localhost:9/model");
  assert.deepEqual([unreachable?.name, unreachable?.code], ["JirdError", "network"]);
  assert.match(unreachable.message, /localhost:9/);
});

test("a load ends when its signal aborts, at once or half way", async () => {
  const errors = await page.evaluate(async (address) => {
    const before = await caught(jird.Model.load(address, { signal: AbortSignal.abort() }));
    const controller = new AbortController();
    const onProgress = () => controller.abort();
    const within = await caught(jird.Model.load(address, { signal: controller.signal, onProgress, cache: false }));
    return [before, within];
  }, addressOfModel());
  assert.deepEqual(errors.map((error) => error?.name), ["AbortError", "AbortError"]);
});

test("without WebGPU the error says so before anything is fetched", async () => {
  const without = await open(site.resolvedUrls.local[0], () => {
    delete Navigator.prototype.gpu;
  });
  const asked = modelServer.requests.length;
  const error = await without.evaluate((address) => caught(jird.Model.load(address)), addressOfModel());
  await without.context().close();
  assert.deepEqual([error?.name, error?.code], ["JirdError", "no_webgpu"]);
  assert.equal(modelServer.requests.length, asked);
});

test("a lost device is a typed error, and the model can be loaded again", async () => {
  const losing = await open(site.resolvedUrls.local[0], () => {
    const { requestDevice } = GPUAdapter.prototype;
    GPUAdapter.prototype.requestDevice = async function (descriptor) {
      return (globalThis.lastDevice = await requestDevice.call(this, descriptor));
    };
  });
  await load(losing);
  const error = await losing.evaluate(async (prompt) => {
    const generate = async () => {
      for await (const _ of model.generate(prompt)) lastDevice.destroy();
    };
    const error = await caught(generate());
    await model.dispose();
    return error;
  }, PROMPT);
  assert.deepEqual([error?.name, error?.code], ["JirdError", "device_lost"]);
  await load(losing);
  assert.deepEqual((await generate(losing, PROMPT, { maxTokens: 8 })).tokenIds, first.tokenIds);
  await losing.context().close();
});

/** The tiny E2B with its table behind the first block of the weights, so that the load itself does not read it. */
async function makeModelWithTable(folder) {
  const fixtures = join(here, "../fixtures");
  await mkdir(folder);
  await cp(join(fixtures, "gemma4/e2b/config.json"), join(folder, "config.json"));
  // The tokenizer of another fixture has as many entries.
  await cp(join(fixtures, "llama/tied/tokenizer.json"), join(folder, "tokenizer.json"));
  const file = await readFile(join(fixtures, "gemma4/e2b/model.safetensors"));
  const end = 8 + Number(file.readBigUInt64LE());
  const header = JSON.parse(file.subarray(8, end));
  const data = file.subarray(end);
  const table = header["model.language_model.embed_tokens_per_layer.weight"];
  const place = table.data_offsets;
  const behind = data.length + (8 << 20);
  const bytes = ([from, to]) => ({ dtype: "U8", shape: [to - from], data_offsets: [from, to] });
  header["vision_tower.hole"] = bytes(place);
  header["vision_tower.gap"] = bytes([data.length, behind]);
  table.data_offsets = [behind, behind + place[1] - place[0]];
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  const parts = [length, json, data, Buffer.alloc(8 << 20), data.subarray(...place)];
  await writeFile(join(folder, "model.safetensors"), Buffer.concat(parts));
}

/** Loads the model at `address`, waits for its table, generates, and resolves to what that took. */
const generateWithTable = (page, address) =>
  page.evaluate(async (address) => {
    const model = await jird.Model.load(address);
    while (!(await jird.Model.isCached(address))) await new Promise((resolve) => setTimeout(resolve, 20));
    const generation = model.generate("the quick fox", { maxTokens: 4 });
    await generation.text();
    await model.dispose();
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("jird-blocks-v1");
    const files = [];
    for await (const name of folder.keys()) files.push(name);
    return { files: files.length, rows: generation.stats.rows, tokenIds: generation.tokenIds };
  }, address);

test("a table lies in a private file, which the package's worker reads, built and in development", async (t) => {
  const folder = join(app, "table");
  await makeModelWithTable(folder);
  const server = await serve({ "/": folder });
  t.after(() => server.close());
  const development = await createServer({ root: app, logLevel: "warn", server: { port: 0, host: "localhost" } });
  t.after(() => development.close());
  await development.listen();
  const outcomes = [];
  for (const { resolvedUrls } of [site, development]) {
    const opened = await open(resolvedUrls.local[0]);
    outcomes.push(await generateWithTable(opened, `${server.origin}/`));
    await opened.context().close();
  }
  for (const { files, rows, tokenIds } of outcomes) {
    assert.equal(files, 1);
    assert.ok(rows.misses > 0, "no row was read");
    assert.deepEqual(tokenIds, outcomes[0].tokenIds);
  }
});

test("Vite's development server serves the package too", async (t) => {
  const server = await createServer({ root: app, logLevel: "warn", server: { port: 0, host: "localhost" } });
  t.after(() => server.close());
  await server.listen();
  const developed = await open(server.resolvedUrls.local[0]);
  await load(developed);
  assert.deepEqual((await generate(developed, PROMPT, { maxTokens: 8 })).tokenIds, first.tokenIds);
  await developed.context().close();
});

test("the package can be imported where there is no browser", async () => {
  const script = 'const { Model } = await import("jird"); process.stdout.write(typeof Model.load);';
  const { stdout } = await run(process.execPath, ["--input-type=module", "--eval", script], { cwd: app });
  assert.equal(stdout, "function");
});

test("TypeScript finds the types, with either way of looking", async () => {
  await cp(join(here, "types/consumer.ts"), join(app, "consumer.ts"));
  const tsc = join(here, "node_modules/.bin/tsc");
  const options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom,dom.iterable", "--types", ""];
  for (const module of [["nodenext"], ["esnext", "--moduleResolution", "bundler"]]) {
    await run(tsc, [...options, "--module", ...module, "consumer.ts"], { cwd: app });
  }
});
