// Measures prefill and decode in this browser: prints a table and JSON, and posts the JSON to /result for
// whoever drives the page. Parameters of the page: model, dtype, context, cache (0: without), prompt and new (tokens),
// runs (0: the load alone), kept (1: begin when all is in the browser's cache). Prompts may be several, as in
// prompt=128,2048,8192: decode slows down as the context grows.

import { Model } from "./pkg/index.js";

const WORDS = "the small animal ran over the warm sand and looked for seeds near its home before night".split(" ");
const status = document.getElementById("status");
const parameters = new URLSearchParams(location.search);
const tokens = (name, standard) => Number(parameters.get(name) ?? standard);

const result = await bench().catch((error) => ({ error: { code: error.code, message: String(error) } }));
status.textContent = result.error ? result.error.message : "Done.";
document.getElementById("json").textContent = JSON.stringify(result, undefined, 2);
// Only servers that drive the page take this; others answer 404 or 405, which is well.
await fetch("/result", { method: "POST", body: JSON.stringify(result) }).catch(() => {});

async function bench() {
  const source = parameters.get("model") ?? "./models/smollm2";
  const prompts = (parameters.get("prompt") ?? "128").split(",").map(Number);
  const maxTokens = tokens("new", 64);
  const runCount = tokens("runs", 3);
  // A prompt comes out a little longer or shorter than wished.
  const context = Math.ceil(Math.max(...prompts) * 1.05) + maxTokens + 64;
  const started = performance.now();
  const model = await Model.load(source, {
    dtype: parameters.get("dtype") ?? undefined,
    context: parameters.has("context") || context > 2048 ? tokens("context", context) : undefined,
    cache: parameters.get("cache") !== "0",
    onProgress: ({ phase, loaded }) => (status.textContent = `Loading: ${phase} ${loaded ?? ""}`),
  });
  const loadMs = performance.now() - started;
  showLoad(loadMs, model.memory);
  if (parameters.get("kept") === "1") await untilKept(source);
  const results = [];
  for (const promptTokens of runCount > 0 ? prompts : []) {
    const promptOf = await prompter(model, promptTokens);
    const runs = [];
    for (let run = 1; run <= runCount; run++) {
      status.textContent = `${promptTokens} tokens, run ${run}…`;
      runs.push(await measure(model, promptOf(run), maxTokens));
      showRun(run, runs.at(-1));
    }
    results.push({
      promptTokens,
      prefillTokensPerSecond: median(runs.map((run) => run.prefillTokensPerSecond)),
      decodeTokensPerSecond: median(runs.map((run) => run.decodeTokensPerSecond)),
      runs,
    });
  }
  const { memory, ...info } = model.info;
  await model.dispose();
  return {
    source,
    ...info,
    loadMs,
    ...results[0],
    results,
    memory,
    adapter: await describeAdapter(),
    userAgent: navigator.userAgent,
  };
}

/**
 * Makes prompts of about `count` tokens, which differ from the first word on: of a prompt that begins as the last
 * one did, the beginning would not be computed again. A first generation tells how many tokens a word takes, and
 * warms up.
 */
async function prompter(model, count) {
  status.textContent = "Warming up…";
  const words = (length, first) => Array.from({ length }, (_, i) => WORDS[(i + first) % WORDS.length]).join(" ");
  const trialWords = Math.min(count, 128);
  const trial = model.generate(words(trialWords, 0), { maxTokens: 2 });
  await trial.text();
  const length = Math.max(1, Math.round((count * trialWords) / trial.stats.promptTokens));
  return (run) => words(length, run);
}

/** Waits until the tables that a model reads while it generates are in the browser's cache. */
async function untilKept(source) {
  status.textContent = "Downloading tables…";
  while (!(await Model.isCached(source))) await new Promise((resolve) => setTimeout(resolve, 500));
}

async function measure(model, prompt, maxTokens) {
  const generation = model.generate(prompt, { maxTokens });
  await generation.text();
  const { promptTokens, firstTokenMs, newTokens, tokensPerSecond, rows } = generation.stats;
  return {
    promptTokens,
    firstTokenMs,
    prefillTokensPerSecond: (promptTokens * 1000) / firstTokenMs,
    newTokens,
    decodeTokensPerSecond: tokensPerSecond,
    rows,
  };
}

/** The highest that the wasm heap, which never shrinks, and the GPU's bytes came to. */
function showLoad(loadMs, { heap, peak, weights }) {
  const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
  const row = document.getElementById("load").tBodies[0].insertRow();
  for (const cell of [(loadMs / 1000).toFixed(1), megabytes(weights), megabytes(peak), megabytes(heap)]) {
    row.insertCell().textContent = cell;
  }
}

function showRun(number, run) {
  const table = document.getElementById("table");
  table.hidden = false;
  const row = table.tBodies[0].insertRow();
  const { promptTokens, firstTokenMs, prefillTokensPerSecond, newTokens, decodeTokensPerSecond } = run;
  const rounded = (value) => value?.toFixed(1) ?? "–";
  const prefill = [promptTokens, rounded(firstTokenMs), rounded(prefillTokensPerSecond)];
  for (const cell of [number, ...prefill, newTokens, rounded(decodeTokensPerSecond)]) {
    row.insertCell().textContent = cell;
  }
}

function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  if (sorted.length === 0) return undefined;
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

async function describeAdapter() {
  const adapter = await navigator.gpu.requestAdapter();
  const { vendor, architecture, device, description } = adapter?.info ?? {};
  return { vendor, architecture, device, description };
}
