// The demo's chat page: picks and loads a model, streams its answers, shows what it costs.

import { JirdError, Model } from "./pkg/index.js";

const byId = (id) => document.getElementById(id);
const log = byId("log");
const prompt = byId("prompt");

/** @type {Model | undefined} */
let model;
let messages = [];
/** What models.json says of the models that it lists, and of the one that is loaded. */
let listed = [];
let described;
/** What the load said about the cache, if that failed. */
let cacheProblem = "";
/** Ends the load or the answer that is under way. */
let running;

byId("model").addEventListener("change", showSourceField);
byId("loader").addEventListener("submit", (event) => {
  event.preventDefault();
  run(load);
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (prompt.value.trim() && limitsAreValid()) run(answer);
});
prompt.addEventListener("keydown", (event) => {
  const sends = event.key === "Enter" && !event.shiftKey && !event.isComposing;
  if (!sends) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
for (const id of ["stop", "cancel"]) byId(id).addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", clearChat);
byId("dismiss").addEventListener("click", () => {
  hideError();
  prompt.focus();
});
await listModels();
showReadiness();
if (listed[0]?.atOnce) run(load);

async function listModels() {
  const select = byId("model");
  const response = await fetch("./models.json").catch(() => undefined);
  listed = response?.ok ? await response.json() : [];
  for (const { name, source } of listed) select.add(new Option(name, source));
  select.add(new Option("Another…", ""));
  showSourceField();
}

function showSourceField() {
  const another = byId("model").value === "";
  byId("source-field").hidden = !another;
  byId("source").required = another;
}

/** Runs one action at a time, with its own way to end it; what fails is shown. */
async function run(action) {
  if (running) return;
  running = new AbortController();
  hideError();
  try {
    await action(running.signal);
  } catch (error) {
    byId("stats").textContent = "";
    if (!running.signal.aborted) showError(error);
  } finally {
    running = undefined;
    showReadiness();
  }
}

async function load(signal) {
  const source = byId("model").value || byId("source").value.trim();
  const dtype = byId("dtype").value || undefined;
  await model?.dispose();
  model = undefined;
  cacheProblem = "";
  described = listed.find((entry) => entry.source === source);
  showLoading();
  try {
    if (described?.prepare) await prepare(described, signal);
    const start = performance.now();
    model = await Model.load(source, { dtype, signal, onProgress: showProgress });
    byId("progress-text").textContent = `Loaded in ${seconds(performance.now() - start)}. ${cacheProblem}`;
  } catch (error) {
    byId("progress-text").textContent = signal.aborted ? "Cancelled. What was downloaded is kept." : "";
    throw error;
  }
  clearChat();
}

/** Has the demo's server fetch a model that it does not have yet. Other servers have it or not, as the load tells. */
async function prepare({ name, prepare }, signal) {
  byId("progress-text").textContent = `The server makes ${name} ready: the first time it fetches it, which takes a while…`;
  const response = await fetch(prepare, { method: "POST", signal });
  if (response.status === 500) throw new Error(await response.text());
}

async function answer(signal) {
  const question = { role: "user", content: prompt.value.trim() };
  prompt.value = "";
  addMessage(question);
  const text = addMessage({ role: "assistant", content: "" });
  showAnswering();
  const generation = model.generate([...messages, question], {
    maxTokens: byId("max-tokens").valueAsNumber,
    temperature: byId("temperature").valueAsNumber,
    contextFull: "slide",
    signal,
  });
  try {
    for await (const part of generation.parts()) {
      const node = part.type === "thinking" ? thoughtBefore(text) : text;
      keepingAtEnd(() => node.appendData(part.text ?? ""));
      showStats(generation.stats);
    }
  } catch (error) {
    const keep = signal.aborted && text.data !== "";
    if (!keep) {
      removeLastExchange(question.content);
      throw error;
    }
  }
  messages.push(question, { role: "assistant", content: text.data });
  showStats(generation.stats);
}

/** Adds a message to the conversation and returns the text node that holds what it says. */
function addMessage({ role, content }) {
  byId("hint").hidden = true;
  const article = document.createElement("article");
  article.className = role;
  const who = document.createElement("h3");
  who.className = "visually-hidden";
  who.textContent = role === "user" ? "You" : "Model";
  const paragraph = document.createElement("p");
  const text = document.createTextNode(content);
  paragraph.append(text);
  article.append(who, paragraph);
  log.append(article);
  log.scrollTop = log.scrollHeight;
  return text;
}

/** The text node of what the model thinks, folded above its answer. */
function thoughtBefore(answer) {
  const paragraph = answer.parentElement;
  if (paragraph.previousElementSibling.localName !== "details") {
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    const thought = document.createElement("div");
    thought.append("");
    details.append(summary, thought);
    paragraph.before(details);
  }
  return paragraph.previousElementSibling.lastChild.firstChild;
}

/** Takes back an exchange that failed; what was asked returns to the input. */
function removeLastExchange(asked) {
  for (const article of [...log.querySelectorAll("article")].slice(-2)) article.remove();
  prompt.value ||= asked;
  byId("hint").hidden = messages.length > 0;
}

/** Follows the end of the conversation, unless the reader has scrolled away from it. */
function keepingAtEnd(change) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function clearChat() {
  messages = [];
  for (const article of log.querySelectorAll("article")) article.remove();
  showHint();
  byId("stats").textContent = "";
  byId("clear").disabled = true;
}

/** What a new chat begins with: what the model is, and what it may be asked. */
function showHint() {
  const keys = "Ask something. Enter sends, Shift+Enter begins a new line, Escape stops.";
  byId("hint").hidden = false;
  byId("hint-text").textContent = described?.about ?? keys;
  byId("examples").replaceChildren(...(described?.examples ?? []).map(exampleButton));
}

function exampleButton(text) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", () => {
    prompt.value = text;
    byId("composer").requestSubmit();
  });
  return button;
}

function showLoading() {
  byId("memory").hidden = true;
  byId("loading").hidden = false;
  byId("progress").removeAttribute("value");
  byId("progress-text").textContent = "Starting…";
  byId("load").hidden = true;
  byId("cancel").hidden = false;
  setFieldsDisabled(true);
}

function showProgress(event) {
  const text = byId("progress-text");
  if (event.phase === "open") text.textContent = `Reading ${event.file}…`;
  if (event.phase === "retry") text.textContent = `Trying again in ${Math.ceil(event.delayMs / 1000)} s: ${event.message}`;
  if (event.phase === "restart") text.textContent = "A file has changed on its server: beginning anew…";
  if (event.phase === "uncached") cacheProblem = `It is not kept in the browser's cache: ${event.message}`;
  if (event.phase === "unused") console.debug("Tensors that are not used:", event.tensors);
  if (event.phase === "compile") {
    text.textContent = "Preparing the GPU…";
    byId("progress").removeAttribute("value");
  }
  if (event.phase !== "download") return;
  const { loaded, total, fromCache } = event;
  byId("progress").max = total;
  byId("progress").value = loaded;
  const cached = fromCache > 0 ? `, ${bytes(fromCache)} from the cache` : "";
  text.textContent = `${bytes(loaded)} of ${bytes(total)}${cached}`;
}

function showAnswering() {
  log.setAttribute("aria-busy", "true");
  byId("send").hidden = true;
  byId("stop").hidden = false;
  byId("stats").textContent = "Reading…";
  setFieldsDisabled(true);
}

/** The page between two actions. */
function showReadiness() {
  log.removeAttribute("aria-busy");
  byId("loading").hidden = true;
  byId("cancel").hidden = true;
  byId("stop").hidden = true;
  byId("load").hidden = false;
  byId("send").hidden = false;
  setFieldsDisabled(false);
  byId("clear").disabled = messages.length === 0;
  showMemory();
  if (model && byId("error").hidden) prompt.focus();
}

function setFieldsDisabled(disabled) {
  for (const id of ["model", "source", "dtype", "load"]) byId(id).disabled = disabled;
  // While an answer comes, the next question may be written already.
  prompt.disabled = !model;
  byId("send").disabled = disabled || !model;
  if (disabled) byId("clear").disabled = true;
}

function showStats({ promptTokens, cachedTokens, newTokens, firstTokenMs, tokensPerSecond, finishReason }) {
  const parts = [`${promptTokens - cachedTokens} tokens read, ${newTokens} written`];
  if (firstTokenMs !== undefined) parts.push(`first after ${seconds(firstTokenMs)}`);
  if (tokensPerSecond !== undefined) parts.push(`${tokensPerSecond.toFixed(1)} tokens/s`);
  if (finishReason === "length") parts.push("cut off at the limit");
  if (finishReason === "context") parts.push("cut off: the context is full");
  if (finishReason === "cancelled") parts.push("stopped");
  byId("stats").textContent = parts.join(" · ");
}

function showMemory() {
  byId("memory").hidden = !model;
  if (!model) return;
  const ledger = model.memory;
  for (const cell of document.querySelectorAll("[data-bytes]")) cell.textContent = bytes(ledger[cell.dataset.bytes]);
  for (const part of document.querySelectorAll("[data-share]")) part.style.flexGrow = ledger[part.dataset.share];
}

function limitsAreValid() {
  return ["temperature", "max-tokens"].every((id) => byId(id).reportValidity());
}

function showError(error) {
  byId("error").hidden = false;
  byId("error-message").textContent = error instanceof JirdError ? error.message : String(error);
}

function hideError() {
  byId("error").hidden = true;
  byId("error-message").textContent = "";
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(count, 1)) / 3), units.length - 1);
  const amount = count / 1000 ** power;
  return `${power === 0 || amount >= 100 ? amount.toFixed(0) : amount.toFixed(1)} ${units[power]}`;
}

function seconds(ms) {
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
