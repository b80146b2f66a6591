// @vitest-environment happy-dom
/** A watcher whose worker is broken can be closed. */

import { expect, it, vi } from "vitest";
import { openWatcher } from "../src/watcher/watcher";

class FakeWorker extends EventTarget {
  readonly terminate = vi.fn();

  postMessage({ id, ask }: { id: number; ask: string }): void {
    const message = { data: { id, answer: "memory" } };
    if (ask === "open") queueMicrotask(() => this.dispatchEvent(Object.assign(new Event("message"), message)));
  }
}

it("ends the worker, and its queries, however that is", async () => {
  const worker = new FakeWorker();
  const watcher = await openWatcher({ worker: worker as unknown as Worker, name: "shop", schema: [] });
  const live = watcher.live("SELECT 1");
  live.subscribe(() => {});
  worker.dispatchEvent(Object.assign(new Event("error"), { message: "it crashed" }));
  expect(live.state).toMatchObject({ status: "error", error: { code: "worker" } });
  await watcher.close();
  expect(worker.terminate).toHaveBeenCalledOnce();
  expect(live.state.error?.kind).toBe("closed");
});
