// What is written down in two places must say the same.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { toJirdError } from "../../../pkg-template/error.js";

const read = (path) => readFile(new URL(`../../../${path}`, import.meta.url), "utf8");
const matches = (text, pattern) => [...text.matchAll(pattern)].map(([, captured]) => captured).sort();

test("the error codes of Rust, JavaScript and the types are the same", async () => {
  const ofRust = matches(await read("src/error.rs"), /Code::\w+ => "(\w+)"/g);
  const types = await read("pkg-template/index.d.ts");
  const union = /export type ErrorCode =([^;]*);/.exec(types)[1];
  assert.ok(ofRust.length > 0);
  assert.deepEqual(matches(union, /"(\w+)"/g), ofRust);
  assert.deepEqual(matches(types, /^ \* - `(\w+)`: /gm), ofRust);
  for (const code of ofRust) assert.equal(toJirdError({ code, message: "" }).code, code);
});

test("the README's ten lines are www/minimal.html's", async () => {
  const script = /<script type="module">[\s\S]*?<\/script>/;
  assert.equal(script.exec(await read("README.md"))[0], script.exec(await read("www/minimal.html"))[0]);
});
