/**
 * The page's side of its worker: asks, and takes answers and results of live queries.
 *
 * What always holds: every question is answered or fails, also when the worker cannot be started or the watcher is
 * closed.
 */

import { closed, ForgeError } from "../errors.js";
import type { LocalLive } from "./local.js";
import type { Reply, Requests } from "./protocol.js";
import type { Params } from "./values.js";

export class Calls {
  readonly #worker: Worker;
  readonly #asked = new Map<number, { resolve: (answer: never) => void; reject: (error: ForgeError) => void }>();
  readonly #lives = new Map<number, LocalLive<unknown>>();
  #last = 0;
  #broken: ForgeError | undefined;

  constructor(worker: Worker) {
    this.#worker = worker;
    worker.addEventListener("message", ({ data }: MessageEvent<Reply>) => this.#take(data));
    worker.addEventListener("error", (event) => {
      const fix = "see that its script is found, calls serveWatcher, and is started with type: 'module'";
      const message = `the worker failed: ${event.message ?? "its script cannot be loaded"}`;
      this.#fail(new ForgeError("failed", message, fix, { code: "worker" }));
    });
  }

  ask<Name extends keyof Requests>(ask: Name, what: Requests[Name][0]): Promise<Requests[Name][1]> {
    if (this.#broken) return Promise.reject(this.#broken);
    return new Promise((resolve, reject) => {
      const id = ++this.#last;
      this.#asked.set(id, { resolve, reject });
      this.#worker.postMessage({ id, ask, ...what });
    });
  }

  /** A number of its own each time: what comes late for one that ended is for nobody. */
  watch(live: LocalLive<unknown>, sql: string, params: Params): number {
    const number = ++this.#last;
    this.#lives.set(number, live);
    this.ask("watch", { live: number, sql, params }).catch((error: ForgeError) => live.fail(error));
    return number;
  }

  unwatch(number: number): void {
    this.#lives.delete(number);
    // of a worker that is gone there is nothing to end
    this.ask("unwatch", { live: number }).catch(() => undefined);
  }

  end(): void {
    this.#fail(closed());
    this.#worker.terminate();
  }

  #take(reply: Reply): void {
    if ("live" in reply) {
      const live = this.#lives.get(reply.live);
      if ("rows" in reply) live?.push(reply.rows);
      else live?.fail(ForgeError.of(reply.error));
      return;
    }
    const asked = this.#asked.get(reply.id);
    this.#asked.delete(reply.id);
    if ("error" in reply) asked?.reject(ForgeError.of(reply.error));
    else asked?.resolve(reply.answer as never);
  }

  #fail(error: ForgeError): void {
    this.#broken = error;
    for (const { reject } of this.#asked.values()) reject(error);
    for (const live of this.#lives.values()) live.fail(error);
    this.#asked.clear();
  }
}
