// A new Vite app with the packed tarball installed, as a user makes one.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp } from "node:fs/promises";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const here = fileURLToPath(new URL(".", import.meta.url));

/** The app's folder, inside this one, where it finds Vite. JIRD_TARBALL names the tarball that `./run pack` made. */
export async function freshApp() {
  const tarball = process.env.JIRD_TARBALL;
  assert.ok(tarball, "JIRD_TARBALL names no tarball. Make one with ./run pack.");
  const work = join(here, ".work");
  await mkdir(work, { recursive: true });
  const folder = await mkdtemp(join(work, "app-"));
  await cp(join(here, "app"), folder, { recursive: true });
  const install = ["install", "--offline", "--no-audit", "--no-fund", resolve(tarball)];
  await promisify(execFile)("npm", install, { cwd: folder });
  return folder;
}
