// A tab that is killed in the middle of a load: the next load fetches what is missing, and nothing else.

import assert from "node:assert/strict";
import { cp, mkdir, open, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { build, preview } from "vite";
import { launch } from "../browser.js";
import { freshApp } from "../fresh.js";
import { serve } from "../server.js";

const KILLS = 10;
const BLOCK = 8 << 20;
const FIXTURE = fileURLToPath(new URL("../../fixtures/llama/tied/", import.meta.url));
/** Slow enough that a load takes a while. */
const DELAY_MS = 150;

let app;
let size;
let site;
let server;

before(async () => {
  app = await freshApp();
  await build({ root: app, logLevel: "warn", build: { target: "esnext" } });
  size = await makeModel(join(app, "model"));
  server = await serve({ "/model/": join(app, "model") }, { delayMs: DELAY_MS });
  site = await preview({ root: app, preview: { port: 0, host: "localhost" } });
});
after(async () => {
  await site?.close();
  await server?.close();
  if (app) await rm(app, { recursive: true });
});

/** A model of several blocks: the tiny Llama with wide layers of zeros. Resolves to the size of its weights. */
async function makeModel(folder) {
  await mkdir(folder);
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) await cp(join(FIXTURE, name), join(folder, name));
  const config = JSON.parse(await readFile(join(FIXTURE, "config.json"), "utf8"));
  Object.assign(config, { intermediate_size: 16_384, num_hidden_layers: 8 });
  await writeFile(join(folder, "config.json"), JSON.stringify(config));
  const { hidden_size: hidden, intermediate_size: wide, vocab_size: vocabulary } = config;
  const shapes = { "model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden] };
  for (let layer = 0; layer < config.num_hidden_layers; layer++) {
    const name = (part) => `model.layers.${layer}.${part}.weight`;
    for (const norm of ["input_layernorm", "post_attention_layernorm"]) shapes[name(norm)] = [hidden];
    for (const projection of ["q", "o"]) shapes[name(`self_attn.${projection}_proj`)] = [hidden, hidden];
    for (const projection of ["k", "v"]) shapes[name(`self_attn.${projection}_proj`)] = [hidden / 2, hidden];
    for (const projection of ["gate", "up"]) shapes[name(`mlp.${projection}_proj`)] = [wide, hidden];
    shapes[name("mlp.down_proj")] = [hidden, wide];
  }
  let end = 0;
  const header = {};
  for (const [name, shape] of Object.entries(shapes)) {
    const start = end;
    end += shape.reduce((product, dimension) => product * dimension) * 2;
    header[name] = { dtype: "BF16", shape, data_offsets: [start, end] };
  }
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  const file = await open(join(folder, "model.safetensors"), "w");
  await file.write(Buffer.concat([length, json]));
  await file.truncate(8 + json.length + end);
  await file.close();
  return 8 + json.length + end;
}

async function openPage(context) {
  const page = await context.newPage();
  await page.goto(site.resolvedUrls.local[0]);
  await page.waitForFunction(() => globalThis.jird);
  return page;
}

const address = () => `${server.origin}/model/`;

/** Ends the process of every page, as the system does when memory runs out. */
async function killRenderers(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const renderers = processInfo.filter(({ type }) => type === "renderer");
  assert.ok(renderers.length > 0, "no renderer");
  for (const { id } of renderers) process.kill(id, "SIGKILL");
}

/** The numbers of the blocks of the weights that the cache has. */
const storedBlocks = (page) =>
  page.evaluate(async () => {
    const cache = await caches.open("jird-blocks-v1");
    const urls = (await cache.keys()).map(({ url }) => new URL(url));
    const blocks = urls.filter(({ pathname, search }) => pathname === "/block" && search.includes("model.safetensors"));
    return blocks.map(({ searchParams }) => Number(searchParams.get("block"))).sort((a, b) => a - b);
  });

const blockRanges = () =>
  Array.from({ length: Math.ceil(size / BLOCK) }, (_, block) => {
    return `bytes=${block * BLOCK}-${Math.min((block + 1) * BLOCK, size) - 1}`;
  });

test(`a load killed at ${KILLS} moments goes on with what is missing`, async (t) => {
  const ranges = blockRanges();
  assert.ok(ranges.length > 4, `${ranges.length} blocks`);
  const kept = [];
  for (let kill = 0; kill < KILLS; kill++) {
    const browser = await launch();
    try {
      const context = await browser.newContext();
      const victim = await openPage(context);
      const crashed = new Promise((resolve) => victim.once("crash", resolve));
      const before = server.requests.length;
      await victim.evaluate((address) => void jird.Model.load(address).catch(() => {}), address());
      // After the first, the second … block has been asked for, and a while by chance.
      const asksBefore = 1 + (kill % ranges.length);
      const asks = () => server.requests.slice(before).filter(({ range }) => ranges.includes(range)).length;
      while (asks() < asksBefore) await setTimeout(5);
      await setTimeout(Math.random() * 4 * DELAY_MS);
      await killRenderers(browser);
      await crashed;

      // The process that the browser held ready for the next page was killed too, which it may not have noticed yet.
      const page = await openPage(context).catch(() => openPage(context));
      const stored = await storedBlocks(page);
      kept.push(stored.length);
      // What the killed page had asked for may still be answered.
      await setTimeout(2 * DELAY_MS);
      const asked = server.requests.length;
      const complete = await page.evaluate(async (address) => {
        const model = await jird.Model.load(address);
        await model.dispose();
        return jird.Model.isCached(address);
      }, address());
      const fetched = server.requests.slice(asked).filter(({ path }) => path.endsWith("model.safetensors"));
      const missing = ranges.filter((_, block) => !stored.includes(block));
      assert.deepEqual(fetched.map(({ range }) => range).sort(), ["bytes=0-0", ...missing].sort());
      assert.ok(complete, "the model is not complete");
    } finally {
      await browser.close();
    }
  }
  t.diagnostic(`blocks of ${ranges.length} that were kept: ${kept.join(", ")}`);
});

test("a kept model loads while the server is away, is listed, and is deleted", async () => {
  const browser = await launch();
  try {
    const page = await openPage(await browser.newContext());
    const load = () =>
      page.evaluate(async (address) => {
        const model = await jird.Model.load(address);
        await model.dispose();
      }, address());
    await load();
    const asked = server.requests.length;
    await page.route(`${server.origin}/**`, (route) => route.abort());
    await load();
    assert.equal(server.requests.length, asked);
    const [model, ...others] = await page.evaluate(() => jird.Model.cachedModels());
    assert.equal(others.length, 0);
    assert.deepEqual([model.id, model.url, model.complete], [address(), address(), true]);
    assert.ok(model.bytes > size && model.files.includes("model.safetensors"));
    const deleted = await page.evaluate(async (address) => {
      const was = await jird.Model.deleteCached(address);
      return [was, await jird.Model.deleteCached(address), (await jird.Model.cachedModels()).length];
    }, address());
    assert.deepEqual(deleted, [true, false, 0]);
  } finally {
    await browser.close();
  }
});

test("an abort ends the requests at once, and what has arrived is kept", async () => {
  const browser = await launch();
  try {
    const page = await openPage(await browser.newContext());
    const { error, ms } = await page.evaluate(async (address) => {
      const controller = new AbortController();
      const signals = [];
      const fetching = (url, init) => {
        signals.push(init.signal);
        return fetch(url, init);
      };
      let blocks = 0;
      let aborted;
      const onProgress = ({ phase }) => {
        if (phase !== "download" || ++blocks !== 3) return;
        aborted = performance.now();
        controller.abort(new RangeError("enough"));
      };
      const options = { signal: controller.signal, fetch: fetching, onProgress };
      const error = await jird.Model.load(address, options).catch((error) => String(error));
      return { error, ms: performance.now() - aborted, open: signals.filter(({ aborted }) => !aborted).length };
    }, address());
    assert.equal(error, "RangeError: enough");
    assert.ok(ms < DELAY_MS, `the load ended ${ms} ms after its abort`);
    assert.ok((await storedBlocks(page)).length >= 1);
  } finally {
    await browser.close();
  }
});
