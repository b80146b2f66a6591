/**
 * The worker's side: call `serveWatcher` in a worker of your own, with sqlite-wasm's initialisation.
 *
 * The data is in a file of the origin's private file system that all tabs share, where the browser has that and Web
 * Locks; else in memory, for this tab alone, and nothing is announced. The page is told which.
 */

import type { Sqlite3Static } from "@sqlite.org/sqlite-wasm";
import { ForgeError } from "../errors.js";
import { Engine } from "./engine.js";
import type { Kind, Message, Reply, Request } from "./protocol.js";
import { alone, LockTurn, MemoryFiles, OpfsFiles, Turns } from "./turns.js";

/** Before it, a file that cannot be opened is deleted. */
const OLDEST = 3_054_000;

/** What a worker is to this: where the page's messages come from and go to. */
interface Port {
  postMessage(message: unknown): void;
  addEventListener(type: "message", listener: (event: MessageEvent<Request>) => void): void;
}

/** Serves the page that started this worker. */
export function serveWatcher(init: () => Promise<Sqlite3Static>, port: Port = globalThis as unknown as Port): void {
  let serving: Promise<Engine | undefined> | undefined;
  const reply = (message: Reply): void => port.postMessage(message);
  port.addEventListener("message", ({ data: request }) => {
    if (request.ask !== "open") return void serving?.then((engine) => engine?.handle(request));
    const { id, name, schema } = request;
    serving = open(init, name, schema, reply).then(
      ({ engine, kind }) => {
        reply({ id, answer: kind });
        return engine;
      },
      (error: unknown) => {
        reply({ id, error: asError(error).toJSON() });
        return undefined;
      },
    );
  });
}

async function open(
  init: () => Promise<Sqlite3Static>,
  name: string,
  schema: readonly string[],
  reply: (message: Reply) => void,
): Promise<{ engine: Engine; kind: Kind }> {
  const sqlite3 = await init();
  if (sqlite3.version.libVersionNumber < OLDEST) {
    const message = `sqlite-wasm ${sqlite3.version.libVersion} is too old`;
    const fix = "install @sqlite.org/sqlite-wasm 3.54 or newer";
    throw new ForgeError("refused", message, fix, { code: "sqlite_version" });
  }
  const shared = await isShareable();
  const channel = shared ? new BroadcastChannel(`forge:watcher:${name}`) : undefined;
  const announce = (message: Message): void => channel?.postMessage(message);
  const engine = new Engine(reply, announce);
  const files = shared ? new OpfsFiles(sqlite3, name) : new MemoryFiles(sqlite3);
  const turn = shared ? new LockTurn(`forge:watcher:${name}`, () => announce({ kind: "want" })) : alone;
  channel?.addEventListener("message", ({ data }: MessageEvent<Message>) => engine.hear(data));
  await engine.open(new Turns(files, turn, (connection) => engine.opened(connection)), schema);
  return { engine, kind: shared ? "opfs" : "memory" };
}

/** Whether tabs can share a file here: some browsers have the functions, and refuse in a private window. */
async function isShareable(): Promise<boolean> {
  const handles = (globalThis as { FileSystemFileHandle?: { prototype: object } }).FileSystemFileHandle;
  if (!handles || !("createSyncAccessHandle" in handles.prototype)) return false;
  if (!("locks" in navigator) || !("BroadcastChannel" in globalThis)) return false;
  return navigator.storage.getDirectory().then(
    () => true,
    () => false,
  );
}

function asError(error: unknown): ForgeError {
  if (error instanceof ForgeError) return error;
  const message = `the database cannot be opened: ${error instanceof Error ? error.message : String(error)}`;
  return new ForgeError("failed", message, "see that the worker finds sqlite3.wasm beside sqlite-wasm's module");
}
