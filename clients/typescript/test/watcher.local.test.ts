/** The store of a local query: the same contract as a live result of the server. */

import { afterEach, beforeEach, expect, expectTypeOf, it, vi } from "vitest";
import { closed, ForgeError } from "../src/errors";
import type { State } from "../src/live";
import type { useLive } from "../src/react";
import { LocalLive } from "../src/watcher/local";

interface Order {
  readonly id: number;
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function made(): { live: LocalLive<Order>; said: string[] } {
  const said: string[] = [];
  return { live: new LocalLive<Order>(() => said.push("started"), () => said.push("ended")), said };
}

it("keeps the rows that did not change", () => {
  const { live } = made();
  const states: State<readonly Order[]>[] = [];
  live.subscribe((state) => void states.push(state));
  live.push([{ id: 1 }, { id: 2 }]);
  live.push([1, { id: 3 }, 0]);
  expect(states.map(({ status, data }) => [status, data?.map(({ id }) => id).join()])).toEqual([
    ["connecting", undefined],
    ["live", "1,2"],
    ["live", "2,3,1"],
  ]);
  expect(states[2]?.data?.[2]).toBe(states[1]?.data?.[0]);
  expect(live.getSnapshot()).toBe(states[2]);
});

it("is asked for while somebody watches, and a moment longer", () => {
  const { live, said } = made();
  const end = live.subscribe(() => undefined);
  live.push([{ id: 1 }]);
  end();
  live.subscribe(() => undefined)();
  vi.advanceTimersByTime(99);
  expect(said).toEqual(["started", "started"]);
  vi.advanceTimersByTime(1);
  expect(said).toEqual(["started", "started", "ended"]);
  expect(live.state).toMatchObject({ status: "stale", data: [{ id: 1 }] });
});

it("is iterated: the latest result, an error, the end", async () => {
  const { live } = made();
  live.push([{ id: 1 }]);
  live.push([{ id: 2 }]);
  const results = live[Symbol.asyncIterator]();
  expect(await results.next()).toEqual({ done: false, value: [{ id: 2 }] });
  const next = results.next();
  live.push([{ id: 3 }]);
  expect(await next).toEqual({ done: false, value: [{ id: 3 }] });
  const failing = results.next();
  live.fail(new ForgeError("failed", "no such table", "make it"));
  await expect(failing).rejects.toThrow("no such table");
  const over = live[Symbol.asyncIterator]();
  live.fail(closed());
  expect(await over.next()).toEqual({ done: true, value: undefined });
});

it("is what useLive takes", () => {
  expectTypeOf<LocalLive<Order>>().toExtend<Parameters<typeof useLive<readonly Order[]>>[0]>();
});
