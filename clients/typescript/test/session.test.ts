/** Tokens, refusals and farewells: what keeps a session open, and when another is opened. */

import { createHash } from "node:crypto";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type ClientOptions, createClient } from "../src/client";
import { Server } from "./server";

let server: Server;
beforeEach(() => {
  vi.useFakeTimers();
  server = new Server();
});
afterEach(() => void vi.useRealTimers());

const watching = (options: ClientOptions = {}) => {
  const client = createClient({ url: "http://forge.test", share: false, fetch: server.fetch, ...options });
  const live = client.live("rows");
  live.subscribe(() => {});
  return { client, live };
};
const settle = (ms = 10): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const said = (what: string) => server.posted.filter(({ path }) => path.endsWith(`/${what}`)).map(({ body }) => body);

test("a function is asked for a token, and for another one when that is not taken", async () => {
  const tokens = ["old", "new"];
  const token = vi.fn(async () => tokens.shift() as string);
  server.tokens = new Set(["Bearer new"]);
  const { live } = watching({ token });
  await settle();
  expect([live.state.status, token.mock.calls.length]).toEqual(["live", 2]);
});

test("a function whose token is not taken is asked again, until it has one that is", async () => {
  let newest = "old";
  server.tokens = new Set(["Bearer new"]);
  const { live } = watching({ token: () => newest });
  await settle(5_000);
  expect(live.state).toMatchObject({ status: "error", error: { kind: "unauthorized" } });
  newest = "new";
  await settle(10_000);
  expect(live.state.status).toBe("live");
});

test("a text that is not taken is the end", async () => {
  server.tokens = new Set();
  const { live } = watching({ token: "old" });
  await settle(60_000);
  expect(live.state).toMatchObject({ status: "error", error: { kind: "unauthorized", message: "the token is expired" } });
  expect(server.connections.size).toBe(0);
});

test("a token that expires is renewed on the open session", async () => {
  const token = vi.fn(() => `token ${token.mock.calls.length}`);
  const { live } = watching({ token });
  await settle();
  server.say("auth", { expires_at: 1, renew: true });
  await settle();
  expect(said("auth")).toEqual([{ token: "token 2" }]);
  expect([live.state.status, said("subscribe").length]).toEqual(["live", 1]);
});

test("who is sent away comes back with another token; with the same text, not at all", async () => {
  const token = vi.fn(() => `token ${token.mock.calls.length}`);
  const { live } = watching({ token });
  const { live: other } = watching({ token: "text" });
  await settle();
  server.say("auth", { reason: "revoked" });
  server.end("end");
  await settle(1_000);
  expect([live.state.status, token.mock.calls.length]).toEqual(["live", 2]);
  expect(other.state).toMatchObject({ status: "error", error: { kind: "unauthorized", code: "revoked" } });
});

test("a function that has no token is asked again", async () => {
  let there = false;
  const token = (): string => {
    if (there) return "token";
    throw new Error("signed out");
  };
  const { live } = watching({ token });
  await settle(3_000);
  expect(live.state).toMatchObject({ status: "connecting", error: { kind: "unreachable" } });
  there = true;
  await settle(10_000);
  expect(live.state.status).toBe("live");
});

test("a server that says bye is left alone for as long as it asks", async () => {
  const { live } = watching();
  await settle();
  server.end("bye");
  await settle(600);
  expect([live.state.status, server.connections.size]).toEqual(["stale", 0]);
  await settle(400);
  expect(live.state.status).toBe("live");
});

test.each([404, 200])("what is no Forge server is known by its answer: %i", async (status) => {
  const fetch = async (): Promise<Response> => new Response("<h1>hello</h1>", { status });
  const { live } = watching({ fetch });
  await settle();
  expect(live.state).toMatchObject({ status: "error", error: { kind: "not_forge", status } });
});

test("what cannot be read is told, and not tried forever", async () => {
  const { live } = watching();
  await settle();
  for (const { send } of server.connections) send("update", '"hash":');
  await settle(60_000);
  expect(live.state).toMatchObject({ status: "error", error: { kind: "protocol" } });
});

test("what can be in no request is refused, and what is behind it runs", async () => {
  const { client } = watching({ token: "mine" });
  for (const [name, key] of [["pay", "a\nb"], ["pay", "ключ"], ["\ud800", undefined]] as const) {
    await expect(client.mutate(name, {}, { key: key as string })).rejects.toMatchObject({ code: "bad_arguments" });
  }
  await expect(client.mutate("pay", { order: 1 }, { key: "" })).resolves.toMatchObject({ xid: "1" });
  const sent = server.posted.filter(({ path }) => path === "/forge/mutation/pay");
  expect(sent.map(({ headers }) => /^[0-9a-f]{32}$/.test(headers["idempotency-key"] ?? ""))).toEqual([true]);
});

test("a mutation's changes have its key as their trace, or what can be made of that", async () => {
  const { client } = watching();
  const hex = "5f0e6b62f3b14e5a8f0c9f0d8b1f6f11";
  const digest = createHash("sha256").update("order-7").digest("hex").slice(0, 32);
  for (const key of [hex, "order-7", undefined]) await client.mutate("pay", {}, key === undefined ? {} : { key });
  const sent = server.posted.filter(({ path }) => path === "/forge/mutation/pay").map(({ headers }) => headers);
  const traces = sent.map(({ traceparent }) => /^00-([0-9a-f]{32})-[0-9a-f]{16}-00$/.exec(traceparent ?? "")?.[1]);
  expect(traces).toEqual([hex, digest, sent[2]?.["idempotency-key"]]);
});

test("calls have the token, tell the server's errors, and queries show what was written", async () => {
  const { client } = watching({ token: "mine" });
  server.change([{ id: 1, n: "a" }]);
  await expect(client.mutate("pay", { order: 1 })).resolves.toEqual({ result: 1, xid: "2" });
  await expect(client.query("count")).resolves.toBe(1);
  const [mutation, query] = ["/forge/mutation/pay", "/forge/query/count"].map((at) =>
    server.posted.find(({ path }) => path === at),
  );
  expect(mutation).toMatchObject({ body: { order: 1 }, headers: { authorization: "Bearer mine" } });
  expect(query?.headers).toMatchObject({ "forge-after": "2" });
  const error = { code: "bad_arguments", message: "pay: no", fix: "see" };
  const refusing = createClient({ share: false, fetch: async () => Response.json({ error }, { status: 400 }) });
  await expect(refusing.query("pay")).rejects.toMatchObject({ ...error, kind: "refused", status: 400 });
  client.close();
  await expect(client.query("count")).rejects.toMatchObject({ kind: "closed" });
});
