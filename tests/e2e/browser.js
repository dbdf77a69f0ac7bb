// The browser of the tests: the system's Chromium with WebGPU on its software adapter.

import { chromium } from "playwright-core";

export function launch() {
  return chromium.launch({
    executablePath: process.env.JIRD_CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--enable-unsafe-webgpu",
      "--use-webgpu-adapter=swiftshader",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
}
