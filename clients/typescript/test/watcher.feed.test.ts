/** The raw feed on its way into local tables: its place is stored with what it brought, and before it brought any. */

import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Token } from "../src/tokens";
import type { RemoteChange } from "../src/watcher/changes";
import { Feed, type FeedState, type Store } from "../src/watcher/feed";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const settle = (ms = 10): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const quiet = (place: string): string => `: \nid: ${place}\n\n`;
const change = (place: string, id: number): string =>
  `event: change\nid: ${place}\ndata: {"table":"orders","operation":"INSERT","after":{"id":${id}}}\n\n`;

/** A server whose streams the test speaks on, and a store in memory. */
class World implements Store {
  readonly asked: URLSearchParams[] = [];
  readonly written: (readonly [number, string])[] = [];
  readonly states: FeedState[] = [];
  stored: string | null = null;
  say: (text: string) => void = () => {};
  end: () => void = () => {};
  readonly #ended = new AbortController();

  constructor() {
    const page = new EventTarget();
    vi.stubGlobal("addEventListener", page.addEventListener.bind(page));
    vi.stubGlobal("fetch", async (url: string, { signal }: RequestInit) => {
      this.asked.push(new URL(url).searchParams);
      const body = new ReadableStream({
        start: (stream) => {
          this.say = (text) => stream.enqueue(new TextEncoder().encode(text));
          this.end = () => stream.close();
          signal?.addEventListener("abort", () => stream.error(signal.reason));
        },
      });
      return new Response(body, { headers: { "content-type": "text/event-stream" } });
    });
  }

  async follow(token?: Token): Promise<void> {
    const options = { url: "http://forge.test", tables: { "public.orders": "orders" }, ...(token && { token }) };
    const feed = new Feed(options, this);
    feed.subscribe((state) => void this.states.push(state));
    void feed.run(this.#ended.signal);
    await settle();
  }

  stop(): void {
    this.#ended.abort();
  }

  cursor(): Promise<string | null> {
    return Promise.resolve(this.stored);
  }

  write(changes: readonly RemoteChange[], cursor: string): Promise<void> {
    this.written.push([changes.length, cursor]);
    this.stored = cursor;
    return Promise.resolve();
  }
}

it("goes on from where it began when the stream ends before anything changed", async () => {
  const world = new World();
  await world.follow();
  expect(Object.fromEntries(world.asked[0] ?? [])).toEqual({
    from: "now",
    backpressure: "pause",
    table: "public.orders",
  });
  world.say(quiet("c1"));
  await settle();
  world.end();
  await settle(1_000);
  expect(world.asked.map((query) => query.get("from"))).toEqual(["now", "c1"]);
  world.stop();
});

it("writes what comes with the place behind it, and tells its state when that changes", async () => {
  const world = new World();
  world.stored = "c0";
  await world.follow();
  world.say(change("c1", 1) + change("c2", 2));
  world.say(quiet("c2"));
  await settle();
  expect(world.written.map(([count]) => count).reduce((sum, count) => sum + count)).toBe(2);
  expect(world.stored).toBe("c2");
  expect(world.states.map(({ status }) => status)).toEqual(["waiting", "connecting", "live"]);
  world.stop();
});

it("stores the place of a feed that is quiet now and then, so that it does not grow old", async () => {
  const world = new World();
  world.stored = "c0";
  await world.follow();
  for (let minute = 1; minute <= 25; minute++) {
    world.say(quiet(`c${minute}`));
    await settle(30_000);
    world.say(quiet(`c${minute}`));
    await settle(30_000);
  }
  expect(world.written.length).toBe(2);
  expect(world.written.every(([count]) => count === 0)).toBe(true);
  world.stop();
});

it("gives up a stream that says nothing, from its beginning on", async () => {
  const world = new World();
  await world.follow();
  await settle(46_000);
  expect(world.asked.length).toBe(2);
  expect(world.states.at(-1)?.status).toBe("connecting");
  world.stop();
});

it("stores no place ahead of a change that came with it", async () => {
  const world = new World();
  await world.follow();
  world.say(`event: auth\ndata: {"renew":true}\n\n${change("c1", 1)}`);
  await settle();
  expect(world.written).toEqual([[1, "c1"]]);
  world.stop();
});

it.each([true, false])("asks a function for another token when one is not taken: %s", async (renewable) => {
  const world = new World();
  const stream = globalThis.fetch;
  const given: string[] = [];
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    const { authorization } = init.headers as Record<string, string>;
    given.push(authorization ?? "");
    const error = { code: "auth_failed", message: "expired", fix: "" };
    if (authorization === "Bearer 5") return stream(url, init);
    return Promise.resolve(Response.json({ error }, { status: 401 }));
  });
  let tokens = 0;
  await world.follow(renewable ? () => String(++tokens) : "1");
  await settle(60_000);
  const last = world.states.at(-1)?.status;
  expect([given.at(-1), last]).toEqual(renewable ? ["Bearer 5", "connecting"] : ["Bearer 1", "error"]);
  world.stop();
});
