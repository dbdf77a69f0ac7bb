// Measures the Cache API with blocks of several sizes, and posts the rows to /result for whoever drives the page.

const TOTAL = 256 << 20;
const SLICES = 50;
const NAME = "jird-block-sizes";
const key = (number) => `https://jird.invalid/size?block=${number}`;
const body = document.querySelector("tbody");
const rows = [];
for (const mebibytes of [2, 4, 8, 16, 32]) {
  const measured = await measure(mebibytes << 20);
  rows.push({ mebibytes, ...measured });
  const cells = [mebibytes, measured.putMBs.toFixed(0), measured.getMBs.toFixed(0), measured.sliceMs.toFixed(2)];
  const row = body.insertRow();
  for (const cell of cells) row.insertCell().textContent = cell;
}
document.getElementById("status").textContent = "Done.";
// Only servers that drive the page take this; others answer 404 or 405, which is well.
await fetch("/result", { method: "POST", body: JSON.stringify(rows) }).catch(() => {});

async function measure(size) {
  const count = TOTAL / size;
  const bytes = noise(size);
  await caches.delete(NAME);
  const cache = await caches.open(NAME);
  const putMs = await timed(count, (i) => cache.put(key(i), new Response(bytes)));
  const getMs = await timed(count, async (i) => (await cache.match(key(i))).arrayBuffer());
  const blob = await (await cache.match(key(0))).blob();
  const slicesMs = await timed(SLICES, (i) => blob.slice(i * 9000, i * 9000 + 4500).arrayBuffer());
  await caches.delete(NAME);
  return { putMBs: TOTAL / putMs / 1e3, getMBs: TOTAL / getMs / 1e3, sliceMs: slicesMs / SLICES };
}

/** Milliseconds of `count` calls, one after the other. */
async function timed(count, call) {
  const started = performance.now();
  for (let i = 0; i < count; i++) await call(i);
  return performance.now() - started;
}

/** Bytes that do not compress. */
function noise(size) {
  const bytes = new Uint8Array(size);
  for (let i = 0; i < size; i += 65_536) crypto.getRandomValues(bytes.subarray(i, i + 65_536));
  return bytes;
}
