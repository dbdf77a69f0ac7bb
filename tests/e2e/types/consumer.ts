// A consumer of the package, for `tsc --strict`: what must compile, and what must not.

import { JirdError, Model } from "jird";
import type {
  CachedModel,
  ErrorCode,
  Generation,
  GenerationStats,
  LoadProgress,
  MemoryLedger,
  MemoryPlan,
  Message,
  ModelInfo,
  OutputPart,
  Session,
  Tool,
} from "jird";

const controller = new AbortController();

export async function use(files: FileList, file: File, directory: FileSystemDirectoryHandle): Promise<string> {
  const model: Model = await Model.load("HuggingFaceTB/SmolLM2-135M-Instruct", {
    dtype: "f16",
    context: 2048,
    cache: false,
    integrity: { "model.safetensors": "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=" },
    fetch: (url, init) => fetch(url, { ...init, credentials: "include" }),
    signal: controller.signal,
    onProgress: (event) => console.log(describe(event)),
  });
  await Model.load(new URL("https://models.example/smollm2/"));
  await Model.load(files);
  await Model.load(directory);
  const kept: CachedModel[] = await Model.cachedModels();
  if (await Model.isCached("a/b")) await Model.deleteCached(new URL(kept[0]?.url ?? "./model"));
  await Model.load([file]);
  await Model.load({ "config.json": new Blob(["{}"]) });

  const messages = [{ role: "user", content: "Hello" }] as const satisfies Message[];
  const generation: Generation = model.generate(messages, {
    maxTokens: 64,
    temperature: 0.7,
    topK: 40,
    topP: 0.9,
    minP: 0.05,
    seed: 1,
    stop: ["\n\n", "User:"],
    signal: controller.signal,
  });
  for await (const text of generation) console.log(text.length);
  const stats: GenerationStats = generation.stats;
  const rate: number = stats.tokensPerSecond ?? 0;
  const ids: readonly number[] = generation.tokenIds;
  const info: ModelInfo = model.info;
  const memory: MemoryLedger = model.memory;
  console.log(rate, ids.length, info.modelType, memory.total + memory.heap);

  const text: string = await model.generate("Once upon a time", { stop: "." }).text();
  await model.dispose();
  return text;
}

export async function fits(): Promise<boolean> {
  const plan: MemoryPlan = await Model.plan("owner/name", { dtype: "q4", memoryBudget: 1_500_000_000 });
  return plan.fits && plan.gpuBytes + plan.heapBytes === plan.totalBytes;
}

const weather: Tool = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

export async function converse(model: Model): Promise<string> {
  const session: Session = await model.session({ context: 1024 });
  const messages: Message[] = [{ role: "user", content: [{ type: "text", text: "Weather in Köln?" }] }];
  for (;;) {
    const generation = session.generate(messages, { tools: [weather], thinking: true, contextFull: "slide" });
    for await (const part of generation.parts()) console.log(show(part));
    const message = await generation.message();
    messages.push(message);
    for (const { name, arguments: given } of message.toolCalls) {
      messages.push({ role: "tool", name, content: { sky: "clear", asked: given.city ?? null } });
    }
    if (generation.stats.finishReason !== "tool_calls") break;
    console.log(generation.stats.cachedTokens + 1);
  }
  await session.dispose();
  return messages.map(({ content }) => JSON.stringify(content)).join("\n");
}

function show(part: OutputPart): string {
  switch (part.type) {
    case "text":
    case "thinking":
      return part.text;
    case "toolCall":
      return part.name + Object.keys(part.arguments).join();
    case "malformedToolCall":
      return part.raw + part.problem;
    default:
      return part satisfies never;
  }
}

export async function scoped(): Promise<void> {
  using model = await Model.load("./models/smollm2");
  console.log(model.info.context);
}

function describe(event: LoadProgress): string {
  switch (event.phase) {
    case "open":
      return event.file;
    case "download":
      return `${event.loaded - event.fromCache} of ${event.total}`;
    case "retry":
      return `${event.message} (${event.delayMs} ms)`;
    case "restart":
      return "restarting";
    case "compile":
      return "compiling";
    case "uncached":
      return event.message;
    case "unused":
      return event.tensors.join();
    default:
      return event satisfies never;
  }
}

export function isWorthRetrying(error: unknown): boolean {
  if (!(error instanceof JirdError)) return false;
  const code: ErrorCode = error.code;
  const cause: unknown = error.cause;
  return code === "network" || (code === "device_lost" && cause !== undefined);
}

export function mustNotCompile(model: Model, error: JirdError): void {
  // @ts-expect-error: models are made by Model.load.
  new Model();
  // @ts-expect-error: a number is no source.
  void Model.load(42);
  // @ts-expect-error: no such dtype.
  void Model.load("a/b", { dtype: "int3" });
  // @ts-expect-error: a misspelt option.
  void Model.load("a/b", { onprogress: () => {} });
  // @ts-expect-error: a misspelt option.
  model.generate("a", { max_tokens: 8 });
  // @ts-expect-error: a number as text.
  model.generate("a", { temperature: "0.7" });
  // @ts-expect-error: a message needs its content.
  model.generate([{ role: "user" }]);
  // @ts-expect-error: a tool needs a name.
  model.generate([], { tools: [{ type: "function", function: {} }] });
  // @ts-expect-error: no such policy.
  model.generate("a", { contextFull: "drop" });
  // @ts-expect-error: a generation is no promise of text.
  model.generate("a").then;
  // @ts-expect-error: stats are read-only.
  model.generate("a").stats = { promptTokens: 0, cachedTokens: 0, newTokens: 0 };
  // @ts-expect-error: no such code.
  if (error.code === "oops") return;
  // @ts-expect-error: the package's modules are not part of its surface.
  void import("jird/options.js");
}
