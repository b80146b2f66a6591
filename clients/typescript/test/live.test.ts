/** A live result as a page sees it: its states, when the server is asked, and what its watchers may do. */

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type ClientOptions, createClient } from "../src/client";
import type { Live, State } from "../src/live";
import { Cell } from "../src/readable";
import { type Row, Server } from "./server";

let server: Server;
beforeEach(() => {
  vi.useFakeTimers();
  server = new Server();
  server.change([{ id: 1, n: "a" }]);
});
afterEach(() => void vi.useRealTimers());

const client = (options: ClientOptions = {}) =>
  createClient({ url: "http://forge.test/", share: false, fetch: server.fetch, ...options });
const settle = (ms = 10): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const asked = (what: string): number => server.posted.filter(({ path }) => path.endsWith(`/${what}`)).length;

function record<T>(live: Live<T>): { states: State<T>[]; statuses: () => string[]; end: () => void } {
  const states: State<T>[] = [];
  const end = live.subscribe((state) => void states.push(state));
  return { states, statuses: () => states.map(({ status }) => status), end };
}

test("connecting, live, stale, live: data stays, and is the same object while it did not change", async () => {
  const live = client().live<Row[]>("rows");
  const { states, statuses } = record(live);
  expect(states).toEqual([{ status: "connecting", data: undefined, error: undefined, cause: [], snapshot: null }]);
  await settle();
  expect(live.state).toMatchObject({ status: "live", data: [{ id: 1, n: "a" }], snapshot: "2:2:" });
  server.end("break");
  await settle();
  expect(live.state).toMatchObject({ status: "stale", data: [{ id: 1, n: "a" }], error: { kind: "unreachable" } });
  await settle(1_000);
  expect(statuses()).toEqual(["connecting", "live", "stale", "live"]);
  expect(states[3]?.data).toBe(states[1]?.data);
  expect(live.getSnapshot()).toBe(live.getSnapshot());
  expect(server.posted.at(-1)?.body).toMatchObject({ query: "rows", mode: "delta", hash: expect.any(String) });
});

test("the same question is one live result, and one subscription for all who watch", async () => {
  const page = client();
  const live = page.live("rows", { a: 1, b: 2 });
  expect(page.live("rows", { b: 2, a: 1 })).toBe(live);
  expect(page.live("rows", { a: 1, b: 2 }, { mode: "full" })).not.toBe(live);
  record(live);
  record(live);
  await settle();
  expect(asked("subscribe")).toBe(1);
});

test("who goes and comes back soon finds it as it was; later the server is not asked any more", async () => {
  const live = client().live("rows");
  record(live).end();
  await settle(900);
  const second = record(live);
  expect(live.state.status).toBe("live");
  second.end();
  await settle(1_100);
  expect([server.connections.size, asked("subscribe"), live.state.status]).toEqual([0, 1, "stale"]);
  server.change([]);
  record(live);
  await settle();
  expect(live.state).toMatchObject({ status: "live", data: [] });
});

test("of two, one is left: its subscription ends, the stream stays", async () => {
  const page = client();
  const left = record(page.live("rows"));
  record(page.live("count"));
  await settle();
  left.end();
  await settle(1_100);
  expect([asked("unsubscribe"), server.connections.size]).toEqual([1, 1]);
});

test("a query that fails says so, and goes on when it can", async () => {
  const live = client().live("rows");
  record(live);
  await settle();
  server.fail("query_failed");
  await settle();
  expect(live.state).toMatchObject({ status: "stale", error: { code: "query_failed", fix: "wait" } });
  server.recover();
  await settle();
  expect(live.state).toMatchObject({ status: "live", error: undefined });
});

test("a query that is refused is not asked for again before somebody says so", async () => {
  const live = client().live("rows");
  const { statuses } = record(live);
  await settle();
  server.fail("query_refused");
  await settle(5_000);
  expect(live.state).toMatchObject({ status: "error", error: { kind: "refused" }, data: [{ id: 1 }] });
  expect(server.connections.size).toBe(0);
  live.retry();
  await settle();
  expect(statuses()).toEqual(["connecting", "live", "error", "stale", "live"]);
});

test("results that never have their hash end it after a few", async () => {
  const live = client().live("rows");
  const { statuses } = record(live);
  await settle();
  server.broken = true;
  server.change([]);
  await settle(60_000);
  expect(live.state).toMatchObject({ status: "error", error: { kind: "mismatch" }, data: [{ id: 1 }] });
  expect([asked("subscribe"), statuses().at(2)]).toEqual([4, "stale"]);
  expect(server.posted.at(-1)?.body).not.toHaveProperty("hash");
});

test("a watcher that throws harms no other, and is not silenced", async () => {
  const live = client().live("rows");
  const thrown: unknown[] = [];
  const heard = (error: unknown): void => void thrown.push(error);
  process.on("uncaughtException", heard);
  live.subscribe(() => {
    throw new Error("mine");
  });
  const { statuses } = record(live);
  await settle();
  process.off("uncaughtException", heard);
  expect(statuses()).toEqual(["connecting", "live"]);
  expect(thrown).toHaveLength(2);
});

test("whoever has left is told nothing more, also by the change at which it left", () => {
  const cell = new Cell(0);
  const heard: number[] = [];
  const leaving: (() => void)[] = [];
  cell.subscribe((value) => void (value === 1 && leaving[0]?.()));
  leaving.push(cell.subscribe((value) => void heard.push(value)));
  cell.set(1);
  expect(heard).toEqual([0]);
});

test("an iterator has the latest, and ends with its client", async () => {
  const page = client();
  const live = page.live<Row[]>("rows");
  const found: number[] = [];
  const reading = (async () => {
    for await (const rows of live) found.push(rows.length);
  })();
  await settle();
  server.change([]);
  server.change([{ id: 1, n: "a" }, { id: 2, n: "b" }]);
  await settle();
  page.close();
  await reading;
  expect(found.at(0)).toBe(1);
  expect(found.at(-1)).toBe(2);
  expect(live.state.error?.kind).toBe("closed");
  record(live);
  expect(live.state.status).toBe("error");
});

test("an iterator throws what is final", async () => {
  const page = client({ token: "expired" });
  server.refused = { connects: 9, asks: 0, status: 401 };
  const reading = page.live("rows")[Symbol.asyncIterator]().next();
  await Promise.all([expect(reading).rejects.toMatchObject({ kind: "unauthorized", status: 401 }), settle()]);
});

test("a stream on which nothing comes is given up, and the wait for another ends when the page is seen", async () => {
  const live = client().live("rows");
  const { statuses } = record(live);
  await settle();
  for (const connection of server.connections) connection.mute = true;
  await settle(44_000);
  expect(statuses()).toEqual(["connecting", "live"]);
  await settle(2_000);
  expect(statuses()).toEqual(["connecting", "live", "stale", "live"]);
});

test("a stream on which nothing comes is given up, however the clock is set meanwhile", async () => {
  const { statuses } = record(client().live("rows"));
  await settle();
  for (const connection of server.connections) connection.mute = true;
  vi.setSystemTime(Date.now() - 86_400_000);
  await settle(47_000);
  expect(statuses()).toEqual(["connecting", "live", "stale", "live"]);
});

test("changes of mutations under way are on top, and go with the push that shows them", async () => {
  const live = client().live<Row[]>("rows");
  const { states } = record(live);
  await settle();
  let patched = true;
  const settled: (string | null)[] = [];
  live.overlay = {
    settle: (snapshot) => {
      settled.push(snapshot);
      patched = false;
    },
    view: (base) => (patched ? [...(base as Row[]), { id: 9, n: "mine" }] : base),
  };
  live.refresh();
  expect(live.state.data?.map(({ id }) => id)).toEqual([1, 9]);
  expect(live.base?.map(({ id }) => id)).toEqual([1]);
  server.change([{ id: 1, n: "a" }, { id: 2, n: "b" }]);
  await settle();
  expect(states.slice(2).map(({ data }) => data?.map(({ id }) => id))).toEqual([[1, 9], [1, 2]]);
  expect(settled).toEqual(["3:3:"]);
});
