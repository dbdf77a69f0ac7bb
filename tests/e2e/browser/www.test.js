// The demo's chat page over a double of the wasm core: what a person sees and can do.
// With JIRD_SCREENSHOTS naming a folder, each test leaves its pictures there.

import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch } from "../browser.js";
import { EMPTY_WASM } from "../fake/jird.js";
import { serve } from "../server.js";

const repository = fileURLToPath(new URL("../../../", import.meta.url));
const DESKTOP = { width: 1280, height: 800 };
const PHONE = { width: 375, height: 667 };

let browser;
let site;
before(async () => {
  site = await serve({
    "/pkg/jird.js": join(repository, "tests/e2e/fake/jird.js"),
    "/pkg/": join(repository, "pkg-template"),
    "/": join(repository, "www"),
  });
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await site?.close();
});

const SMOLLM2 = { name: "SmolLM2", source: "./models/smollm2" };

/**
 * Opens the page with a double whose steps take `stepMs`, and with these models to choose from; null leaves it its own.
 * What the page logs as an error fails the test, unless it is `tolerated`.
 */
async function open(t, { path = "/index.html", models = [SMOLLM2], tolerated, ...options } = {}) {
  const { stepMs = 5, uncached = false, script, failures = {}, ...context } = options;
  const page = await browser.newPage({ viewport: DESKTOP, ...context });
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !tolerated?.test(message.text())) problems.push(message.text());
  });
  t.after(async () => {
    await page.close();
    assert.deepEqual(problems, []);
  });
  await page.route("**/pkg/jird_bg.wasm", (route) => route.fulfill({ body: Buffer.from(EMPTY_WASM) }));
  if (models) await page.route("**/models.json", (route) => route.fulfill({ json: models }));
  await page.goto(site.origin + path);
  await page.evaluate(
    async ({ stepMs, uncached, script, failures }) => {
      const { fake } = await import("/pkg/jird.js");
      Object.assign(fake, { stepMs, uncached, script });
      for (const [name, { code, message }] of Object.entries(failures)) {
        fake.failures[name] = Object.assign(new Error(message), { code });
      }
    },
    { stepMs, uncached, script, failures },
  );
  return page;
}

const loadModel = async (page) => {
  await page.getByRole("button", { name: "Load" }).click();
  await page.getByText("Loaded in").waitFor();
};
const ask = async (page, text) => {
  await page.getByLabel("Message").fill(text);
  await page.keyboard.press("Enter");
};
const picture = async (page, name) => {
  const folder = process.env.JIRD_SCREENSHOTS;
  if (folder) await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
};

for (const [name, context] of Object.entries({
  desktop: { viewport: DESKTOP },
  phone: { viewport: PHONE },
  dark: { viewport: DESKTOP, colorScheme: "dark" },
})) {
  test(`load and chat: ${name}`, async (t) => {
    const page = await open(t, { stepMs: 40, ...context });
    await picture(page, `${name}-empty`);
    await page.getByRole("button", { name: "Load" }).click();
    await page.getByText("of 269 MB").waitFor();
    await picture(page, `${name}-loading`);
    await page.getByText("Loaded in").waitFor();
    await ask(page, "What is a jird?");
    await page.getByText("small and quick").waitFor();
    await picture(page, `${name}-answering`);
    await page.getByText("tokens/s").waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
    await ask(page, "Thank you.\nAnd what does it eat, and where does it live?");
    await page.getByRole("button", { name: "Send" }).waitFor();
    await picture(page, `${name}-answered`);
    const articles = await page.getByRole("article").allInnerTexts();
    assert.equal(articles.length, 4);
    assert.match(articles[1], /A is a small and quick desert rodent/);
    assert.match(await page.getByLabel("Memory").innerText(), /Weights\s+269 MB[\s\S]*On the GPU\s+319 MB/);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `the page is ${overflow} px wider than the screen`);
    const inputs = await page.evaluate(async () => (await import("/pkg/jird.js")).fake.calls.map(([, input]) => input));
    assert.deepEqual(
      inputs.at(-1).map(({ role }) => role),
      ["user", "assistant", "user"],
    );
  });
}

test("what the model thinks is folded above its answer", async (t) => {
  const script = [
    [{ type: "thinking", text: "A small " }],
    [{ type: "thinking", text: "rodent." }],
    [{ type: "text", text: "It is a jird." }],
  ];
  const page = await open(t, { script });
  await loadModel(page);
  await ask(page, "What is it?");
  await page.getByText("It is a jird.").waitFor();
  assert.equal(await page.getByText("A small rodent.").isVisible(), false);
  await page.getByText("Thoughts").click();
  assert.equal(await page.getByText("A small rodent.").isVisible(), true);
  await picture(page, "thoughts");
  await page.getByRole("button", { name: "Send" }).waitFor();
  await ask(page, "Thank you.");
  await page.getByRole("button", { name: "Send" }).waitFor();
  const inputs = await page.evaluate(async () => (await import("/pkg/jird.js")).fake.calls.map(([, input]) => input));
  assert.equal(inputs.at(-1)[1].content, "It is a jird.");
});

test("a stopped answer stays and counts as part of the conversation", async (t) => {
  const page = await open(t, { stepMs: 30 });
  await loadModel(page);
  await ask(page, "What is a jird?");
  await page.getByText("A is a").waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("stopped").waitFor();
  assert.equal(await page.getByRole("article").count(), 2);
  assert.equal(await page.getByRole("alert").isVisible(), false);
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.getByRole("article").count(), 0);
});

test("the whole way by keyboard", async (t) => {
  const page = await open(t, { stepMs: 20 });
  await page.getByRole("combobox", { name: "Model" }).focus();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByText("Loaded in").waitFor();
  // The load leaves the focus where the question goes.
  await page.keyboard.type("What is a jird?");
  await page.keyboard.press("Enter");
  await page.getByText("A is a").waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("stopped").waitFor();
});

test("a load can be cancelled and begun again", async (t) => {
  const page = await open(t, { stepMs: 60 });
  await page.getByRole("button", { name: "Load" }).click();
  await page.getByText("of 269 MB").waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByText("Cancelled").waitFor();
  await loadModel(page);
});

test("errors are announced, and the question is kept", async (t) => {
  const message = "could not generate: expected at most 2048 tokens, got 4000. Begin a new chat or ask for fewer tokens.";
  const page = await open(t, { failures: { start: { code: "context_full", message } } });
  await loadModel(page);
  await ask(page, "What is a jird?");
  await page.getByRole("alert").waitFor();
  assert.match(await page.getByRole("alert").innerText(), /expected at most 2048 tokens/);
  await picture(page, "error");
  assert.equal(await page.getByRole("article").count(), 0);
  assert.equal(await page.getByLabel("Message").inputValue(), "What is a jird?");
  await page.getByRole("button", { name: "Dismiss" }).click();
  await page.keyboard.press("Enter");
  await page.getByText("tokens/s").waitFor();
});

test("a model that the cache cannot keep loads, and the page says so", async (t) => {
  const page = await open(t, { uncached: true });
  await loadModel(page);
  await page.getByText("not kept in the browser's cache: the quota is used up").waitFor();
});

test("the repository's model loads at once, says what it is, and its examples ask", async (t) => {
  const page = await open(t, { models: null });
  await page.getByText("Loaded in").waitFor();
  await page.getByText("everything else with nonsense").waitFor();
  await picture(page, "pocket");
  const example = page.getByLabel("Examples").getByRole("button").first();
  const question = await example.innerText();
  await example.click();
  await page.getByText("tokens/s").waitFor();
  const [asked] = await page.getByRole("article").allInnerTexts();
  assert.ok(asked.includes(question), asked);
  await page.getByRole("button", { name: "Send" }).waitFor();
  assert.equal(await example.isVisible(), false);
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await example.isVisible(), true);
});

test("a model that the server does not have is made ready first", async (t) => {
  const models = [SMOLLM2, { name: "Larger", source: "./models/larger", prepare: "./prepare/larger" }];
  const page = await open(t, { models, tolerated: /status of 500/ });
  let answer = { status: 500, body: "python packages are missing" };
  await page.route("**/prepare/larger", (route) => route.fulfill(answer));
  await page.getByRole("combobox", { name: "Model" }).selectOption("Larger");
  await page.getByRole("button", { name: "Load" }).click();
  await page.getByRole("alert").waitFor();
  assert.match(await page.getByRole("alert").innerText(), /python packages are missing/);
  answer = { status: 204 };
  await loadModel(page);
  const calls = await page.evaluate(async () => (await import("/pkg/jird.js")).fake.calls.map(([, source]) => source));
  assert.deepEqual(calls, [`${site.origin}/models/larger/`]);
});

test("another model's address is asked for and passed on", async (t) => {
  const page = await open(t);
  await page.getByRole("combobox", { name: "Model" }).selectOption("Another…");
  await page.getByLabel("Address or hub id").fill("owner");
  await page.getByRole("button", { name: "Load" }).click();
  await page.getByRole("alert").waitFor();
  assert.match(await page.getByRole("alert").innerText(), /hub id such as "owner\/name", got "owner"/);
  await page.getByLabel("Address or hub id").fill("owner/name");
  await page.getByLabel("Weights").selectOption("4 bits");
  await loadModel(page);
  const [call] = await page.evaluate(async () => (await import("/pkg/jird.js")).fake.calls);
  assert.deepEqual(call, ["load", "owner/name", { dtype: "q4" }]);
});

test("the ten lines of minimal.html write the answer", async (t) => {
  const page = await open(t, { path: "/minimal.html" });
  await page.getByText("stands up on its hind legs").waitFor();
});

test("bench.html shows and posts what it measured", async (t) => {
  const page = await browser.newPage();
  t.after(() => page.close());
  await page.route("**/pkg/jird_bg.wasm", (route) => route.fulfill({ body: Buffer.from(EMPTY_WASM) }));
  const posted = new Promise((resolve) => {
    page.route("**/result", (route) => {
      resolve(route.request().postDataJSON());
      return route.fulfill({ status: 204 });
    });
  });
  await page.goto(`${site.origin}/bench.html?prompt=32&new=8&runs=2&dtype=f32`);
  const result = await posted;
  assert.equal(result.error, undefined);
  assert.equal(result.runs.length, 2);
  assert.equal(result.runs[0].newTokens, 8);
  assert.equal(result.prefillTokensPerSecond, 4 / 0.0125);
  assert.equal(result.decodeTokensPerSecond, 41.7);
  await page.getByText("Done.").waitFor();
  assert.equal(await page.locator("#load tbody tr").count(), 1);
  assert.equal(await page.locator("#table tbody tr").count(), 2);
  await picture(page, "bench");
});
