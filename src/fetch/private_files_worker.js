// Reads files of the origin's private file system, in a worker: only there a file can be read without waiting for
// another process. `PrivateFiles` in `host.js` asks.

/** Files that stay open. Opening one takes 1 to 2 ms. */
const KEPT_OPEN = 256;

/** By name, those used last at the end; what an entry resolves to reads a range into an array. */
const open = new Map();

onmessage = async ({ data }) => {
  const answers = await Promise.all(
    data.map(async ({ number, ...question }) => {
      return { number, answer: await answerTo(question).catch(failed) };
    }),
  );
  postMessage(answers, answers.map(({ answer }) => answer?.buffer).filter(Boolean));
};

/** Null where there is no such file, undefined where it cannot be read now. */
const failed = ({ name }) => (name === "NotFoundError" ? null : undefined);

async function answerTo({ folder, name, ranges, close }) {
  if (close) return closeFile(close);
  if (name) return read(folder, name, ranges);
  return "createSyncAccessHandle" in FileSystemFileHandle.prototype;
}

async function read(folder, name, ranges) {
  const file = await opened(folder, name);
  const cuts = ranges ?? [0, await file.size()];
  let length = 0;
  for (let i = 0; i < cuts.length; i += 2) length += cuts[i + 1] - cuts[i];
  const bytes = new Uint8Array(length);
  let at = 0;
  for (let i = 0; i < cuts.length; i += 2) {
    const part = bytes.subarray(at, (at += cuts[i + 1] - cuts[i]));
    if ((await file.read(part, cuts[i])) !== part.length) return null;
  }
  return bytes;
}

async function opened(folder, name) {
  const file = open.get(name) ?? openFile(folder, name);
  open.delete(name);
  open.set(name, file);
  for (const [oldest] of open) {
    if (open.size <= KEPT_OPEN) break;
    closeFile(oldest);
  }
  try {
    return await file;
  } catch (error) {
    open.delete(name);
    throw error;
  }
}

async function openFile(folder, name) {
  const root = await navigator.storage.getDirectory();
  const file = await (await root.getDirectoryHandle(folder)).getFileHandle(name);
  try {
    // Several tabs may read at once where the mode is known; elsewhere the first has it to itself.
    const handle = await file.createSyncAccessHandle({ mode: "read-only" });
    return {
      size: () => handle.getSize(),
      read: (part, at) => handle.read(part, { at }),
      close: () => handle.close(),
    };
  } catch {
    return readSlowly(await file.getFile());
  }
}

/** As a Blob, which is read by way of another process. */
function readSlowly(file) {
  return {
    size: () => file.size,
    read: async (part, at) => {
      const bytes = new Uint8Array(await file.slice(at, at + part.length).arrayBuffer());
      part.set(bytes);
      return bytes.length;
    },
    close: () => {},
  };
}

async function closeFile(name) {
  const file = open.get(name);
  open.delete(name);
  (await file)?.close();
}
