// @vitest-environment happy-dom
/** A page that is seen again, or has its network back, tries at once: not after what is left of a long wait. */

import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type Client, createClient } from "../src/client";
import type { Live } from "../src/live";
import { Server } from "./server";
import { type FakeTab, Profile } from "./tabs";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const settle = (ms = 10): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const url = "http://forge.test";

describe.each([
  ["online", () => window.dispatchEvent(new Event("online"))],
  ["visibilitychange", () => document.dispatchEvent(new Event("visibilitychange"))],
])("%s", (_, happens) => {
  test("a page connects", async () => {
    const server = new Server();
    server.refused = { connects: 1_000, asks: 0, status: 0 };
    const client = createClient({ url, share: false, fetch: server.fetch });
    const live = client.live("rows");
    live.subscribe(() => {});
    await settle(120_000);
    server.heal();
    await settle();
    expect(live.state.status).toBe("connecting");
    happens();
    await settle();
    expect(live.state.status).toBe("live");
    client.close();
  });

  test("tabs that all have no token ask for one less and less often, and now", async () => {
    const { server, token, clients, lives } = await tabs(3);
    const good = server.tokens;
    server.tokens = new Set();
    token.mockImplementation(() => {
      throw new Error("the issuer is away");
    });
    server.end("end");
    await settle(60_000);
    const first = token.mock.calls.length;
    await settle(300_000);
    token.mockClear();
    await settle(300_000);
    const most = (3 * 300) / 30; // each rests 30 s at the least by now
    expect([first > 3, token.mock.calls.length > 3, token.mock.calls.length <= most]).toEqual([true, true, true]);

    token.mockImplementation(() => "token");
    server.tokens = good;
    const before = lives.map(({ state }) => state.status);
    happens();
    await settle();
    expect([before, lives.map(({ state }) => state.status)]).toEqual([Array(3).fill("stale"), Array(3).fill("live")]);
    expect(server.connections.size).toBe(1);
    for (const client of clients) client.close();
    await settle();
    expect(vi.getTimerCount()).toBe(0);
  });
});

test("what waits to be sent is sent when the stream is back, not after what is left of its own wait", async () => {
  const server = new Server();
  let away = true;
  let sent = 0;
  const client = createClient({
    url,
    share: false,
    fetch: async (input, init) => {
      if (String(input).includes("/mutation/")) sent++;
      if (away) throw new TypeError("fetch failed");
      return server.fetch(input, init);
    },
  });
  const done = client.mutate("pay");
  await settle(200_000);
  const before = sent;
  while (sent === before) await settle(100); // 15 s at the least until the next try
  away = false;
  client.live("rows").subscribe(() => {});
  await settle(1_000);
  expect(sent).toBe(before + 2);
  await done;
  client.close();
});

test("a tab whose token is renewed by one with other claims has a connection of its own", async () => {
  const jwt = (claims: object): string => `h.${btoa(JSON.stringify(claims))}.s`;
  const [member, admin] = [jwt({ sub: "ada" }), jwt({ sub: "ada", role: "admin" })];
  const { server, token, lives, clients } = await tabs(2, member);
  token.mockImplementation(() => admin);
  server.tokens = new Set([`Bearer ${admin}`, `Bearer ${member}`]);
  server.say("auth", { renew: true });
  await settle();
  expect([server.connections.size, token.mock.calls.length]).toEqual([2, 3]);
  expect(lives.map(({ state }) => state.status)).toEqual(["live", "live"]);
  for (const client of clients) client.close();
});

interface Tabs {
  readonly server: Server;
  readonly token: ReturnType<typeof vi.fn<() => string>>;
  readonly clients: Client[];
  readonly lives: Live<unknown>[];
}

/** Tabs of one user, over one connection. */
async function tabs(count: number, given = "token"): Promise<Tabs> {
  const server = new Server();
  server.tokens = new Set([`Bearer ${given}`]);
  const token = vi.fn(() => given);
  const profile = new Profile();
  const clients: Client[] = [];
  const lives: Live<unknown>[] = [];
  for (let number = 0; number < count; number++) {
    inside(profile.open());
    const client = createClient({ url, token, fetch: server.fetch });
    const live = client.live("rows");
    live.subscribe(() => {});
    clients.push(client);
    lives.push(live);
    await settle();
  }
  expect(lives.map(({ state }) => state.status)).toEqual(Array(count).fill("live"));
  expect(server.connections.size).toBe(1);
  return { server, token, clients, lives };
}

/** What a client that is made now takes for its browser. */
function inside({ browser: { locks, wire } }: FakeTab): void {
  vi.stubGlobal("navigator", { locks });
  vi.stubGlobal("BroadcastChannel", function (name: string) {
    return wire?.(name);
  });
}
