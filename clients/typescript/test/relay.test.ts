/** Tabs over one connection: whatever happens to them, all that are open show what the server has. */

import { createHash } from "node:crypto";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ForgeError } from "../src/errors";
import { Seat } from "../src/leader";
import { Live } from "../src/live";
import { Relay } from "../src/relay";
import { type Asked, keyOf, type Push, type Sink, type Upstream } from "../src/upstream";
import { type FakeTab, Profile } from "./tabs";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const LONG = 60_000;

/** A result of each query, and who is subscribed to it by which connection. */
class Server {
  readonly values = new Map<string, number>();
  readonly sessions = new Set<FakeSession>();

  lines(query: string): string[] {
    const value = this.values.get(query) ?? 0;
    return [`{"id":1,"n":${value}}`, `{"id":2,"n":0}`];
  }

  change(query: string): void {
    const from = hashOf(this.lines(query));
    this.values.set(query, (this.values.get(query) ?? 0) + 1);
    for (const session of this.sessions) session.changed(query, from);
  }

  get subscriptions(): number {
    return [...this.sessions].reduce((sum, session) => sum + session.sinks.size, 0);
  }
}

const hashOf = (lines: string[]): string => createHash("sha256").update(lines.join("\n")).digest("hex").slice(0, 32);

/** A connection that asks again when a sink says that something does not fit. */
class FakeSession implements Upstream {
  readonly sinks = new Map<Sink, boolean>();

  constructor(
    readonly server: Server,
    readonly tab: FakeTab,
  ) {
    server.sessions.add(this);
  }

  add(sink: Sink): void {
    if (this.sinks.has(sink)) return;
    this.sinks.set(sink, false);
    this.tab.does(() => this.#snapshot(sink));
  }

  remove(sink: Sink): void {
    this.sinks.delete(sink);
  }

  changed(query: string, from: string): void {
    for (const [sink, answered] of this.sinks) {
      if (sink.asked.query !== query || !answered) continue;
      const lines = this.server.lines(query);
      const delta = { removed: [], changed: [lines[0] as string], added: [], at: [] };
      const push: Push = { event: "delta", hash: hashOf(lines), snapshot: null, cause: [], from, ...delta };
      this.tab.does(() => this.#push(sink, push));
    }
  }

  fail(error: ForgeError, final: boolean): void {
    const sinks = [...this.sinks.keys()];
    if (final) this.sinks.clear();
    for (const sink of sinks) sink.fault(error, final);
  }

  wake(): void {}

  close(): void {
    this.fail(new ForgeError("closed", "closed", ""), true);
  }

  #snapshot(sink: Sink): void {
    if (!this.sinks.has(sink)) return;
    this.sinks.set(sink, true);
    const lines = this.server.lines(sink.asked.query);
    const hash = hashOf(lines);
    const body = sink.hash === hash ? { unchanged: true } : { rows: lines };
    this.#push(sink, { event: "snapshot", hash, snapshot: null, cause: [], key: ["id"], ...body });
  }

  #push(sink: Sink, push: Push): void {
    if (!this.sinks.has(sink)) return;
    try {
      sink.push(push);
    } catch {
      this.#snapshot(sink);
    }
  }
}

class Tab {
  readonly lives = new Map<string, { live: Live<unknown>; end: () => void }>();
  readonly session: FakeSession;
  readonly seat: Seat;
  readonly relay: Relay;

  constructor(
    readonly server: Server,
    readonly fake: FakeTab,
    group: string | Promise<string> = "group",
  ) {
    this.seat = new Seat(() => Promise.resolve(group), fake.browser);
    this.session = new FakeSession(server, fake);
    this.relay = new Relay(this.seat, this.session);
  }

  show(query: string): void {
    if (this.lives.has(query)) return;
    const asked: Asked = { query, args: "{}", mode: "delta" };
    const live = new Live<unknown>(asked, this.relay, 10);
    this.lives.set(query, { live, end: live.subscribe(() => {}) });
  }

  hide(query: string): void {
    this.lives.get(query)?.end();
    this.lives.delete(query);
  }

  /** Without a word, as when it crashes. */
  kill(): void {
    this.fake.close();
    this.server.sessions.delete(this.session);
    this.seat.close();
  }

  shown(query: string): unknown {
    return this.lives.get(query)?.live.state.data;
  }
}

function world(count: number): { server: Server; profile: Profile; tabs: Tab[]; open: () => Tab } {
  const server = new Server();
  const profile = new Profile();
  const open = (): Tab => {
    const tab = new Tab(server, profile.open());
    tabs.push(tab);
    return tab;
  };
  const tabs: Tab[] = [];
  for (let number = 0; number < count; number++) open();
  return { server, profile, tabs, open };
}

const settle = (ms = 100): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const rows = (server: Server, query: string): unknown => server.lines(query).map((line) => JSON.parse(line) as unknown);

test("tabs share one subscription, and each shows it", async () => {
  const { server, tabs } = world(3);
  for (const tab of tabs) tab.show("orders");
  await settle();
  server.change("orders");
  await settle();
  expect(server.subscriptions).toBe(1);
  for (const tab of tabs) expect(tab.shown("orders")).toEqual(rows(server, "orders"));
  expect(tabs.filter((tab) => tab.seat.leading)).toHaveLength(1);
});

test("a question that only another tab has is asked, handed on to who comes, and ended with its tab", async () => {
  const { server, tabs } = world(3);
  const [leader, second, third] = tabs as [Tab, Tab, Tab];
  leader.show("orders");
  await settle();
  second.show("items");
  await settle();
  server.change("items");
  await settle();
  third.show("items");
  await settle();
  expect(third.shown("items")).toEqual(rows(server, "items"));
  expect(server.subscriptions).toBe(2);
  second.kill();
  third.hide("items");
  await settle();
  expect([...leader.session.sinks.keys()].map((sink) => keyOf(sink.asked))).toEqual(["delta orders {}"]);
});

test("the next tab leads when the first is gone, and nothing that is held is sent again", async () => {
  const { server, tabs } = world(2);
  const [first, second] = tabs as [Tab, Tab];
  for (const tab of tabs) tab.show("orders");
  await settle();
  const seen = second.shown("orders");
  first.kill();
  await settle();
  expect(second.seat.leading).toBe(true);
  expect(second.shown("orders")).toBe(seen);
  server.change("orders");
  await settle();
  expect(second.shown("orders")).toEqual(rows(server, "orders"));
});

test("a leader that is suspended loses the lead, and follows when it comes back", async () => {
  const { server, tabs } = world(3);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const leader = tabs.find((tab) => tab.seat.leading) as Tab;
  leader.fake.suspend();
  server.change("orders");
  await settle(LONG);
  const others = tabs.filter((tab) => tab !== leader);
  expect(others.filter((tab) => tab.seat.leading)).toHaveLength(1);
  for (const tab of others) expect(tab.shown("orders")).toEqual(rows(server, "orders"));
  leader.fake.resume();
  server.change("orders");
  await settle(LONG);
  expect(tabs.filter((tab) => tab.seat.leading)).toHaveLength(1);
  expect(server.subscriptions).toBe(1);
  for (const tab of tabs) expect(tab.shown("orders")).toEqual(rows(server, "orders"));
});

test("a hidden tab takes the lead from nobody", async () => {
  const { tabs } = world(2);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const [leader, hidden] = [...tabs].sort((tab) => (tab.seat.leading ? -1 : 1)) as [Tab, Tab];
  hidden.fake.visible = false;
  leader.fake.suspend();
  await settle(LONG);
  expect(hidden.seat.leading).toBe(false);
});

test("an error reaches all tabs; a token that is not taken is only its own tab's", async () => {
  const { server, tabs } = world(2);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const [leader, other] = [...tabs].sort((tab) => (tab.seat.leading ? -1 : 1)) as [Tab, Tab];
  const state = (tab: Tab) => tab.lives.get("orders")?.live.state;
  leader.session.fail(new ForgeError("unreachable", "away", ""), false);
  await settle();
  expect(tabs.map((tab) => state(tab)?.status)).toEqual(["stale", "stale"]);
  server.change("orders");
  await settle();
  expect(tabs.map((tab) => state(tab)?.status)).toEqual(["live", "live"]);
  leader.session.fail(new ForgeError("unauthorized", "expired", ""), true);
  server.change("orders");
  await settle();
  expect(state(leader)).toMatchObject({ status: "error", error: { kind: "unauthorized" } });
  expect(other.seat.leading).toBe(true);
  expect(state(other)).toMatchObject({ status: "live", data: rows(server, "orders") });
});

test("a tab that has no token lets another lead, which may have one", async () => {
  const { server, tabs } = world(2);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const [leader, other] = [...tabs].sort((tab) => (tab.seat.leading ? -1 : 1)) as [Tab, Tab];
  leader.session.fail(new ForgeError("unreachable", "no token can be had", "", { code: "no_token" }), false);
  server.change("orders");
  await settle();
  expect(other.seat.leading).toBe(true);
  for (const tab of tabs) {
    expect(tab.lives.get("orders")?.live.state).toMatchObject({ status: "live", data: rows(server, "orders") });
  }
});

test("who resigns again and again rests longer each time; after a long lead, a little", async () => {
  const seat = new Seat(() => Promise.resolve("group"), new Profile().open().browser);
  seat.start();
  await settle();
  for (const most of [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]) {
    expect([seat.leading, seat.resign(), seat.resign()]).toEqual([true, true, true]);
    await settle(most / 2 - 1);
    expect(seat.leading).toBe(false);
    await settle(most / 2 + 1);
  }
  seat.resign();
  seat.wake();
  await settle();
  expect(seat.leading).toBe(true);
  await settle(LONG);
  seat.resign();
  await settle(5_000);
  expect(seat.leading).toBe(true);
  seat.resign();
  seat.close();
  await settle(LONG);
  expect([seat.leading, vi.getTimerCount()]).toEqual([false, 0]);
});

test("what a new leader held before is no news to others until the server said so", async () => {
  const { server, tabs } = world(2);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const [leader, other] = [...tabs].sort((tab) => (tab.seat.leading ? -1 : 1)) as [Tab, Tab];
  const state = (tab: Tab) => tab.lives.get("orders")?.live.state;
  other.session.add = () => {}; // it cannot be reached
  leader.session.fail(new ForgeError("unreachable", "no token can be had", "", { code: "no_token" }), false);
  await settle();
  expect([other.seat.leading, state(leader)?.status, state(other)?.status]).toEqual([true, "stale", "stale"]);
  server.change("orders");
  await settle();
  expect(state(leader)).toMatchObject({ status: "stale", error: { code: "no_token" } });
});

test("a leader that says no more is found out however clocks are set", async () => {
  const { server, tabs } = world(2);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const [leader, other] = [...tabs].sort((tab) => (tab.seat.leading ? -1 : 1)) as [Tab, Tab];
  leader.fake.suspend();
  vi.setSystemTime(Date.now() - 3_600_000);
  server.change("orders");
  await settle(30_000);
  expect(other.seat.leading).toBe(true);
  expect(other.shown("orders")).toEqual(rows(server, "orders"));
});

test("a client that is closed takes nothing from the others", async () => {
  const { server, tabs } = world(2);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const [leader, other] = [...tabs].sort((tab) => (tab.seat.leading ? -1 : 1)) as [Tab, Tab];
  leader.relay.close();
  leader.seat.close();
  server.change("orders");
  await settle();
  expect(leader.lives.get("orders")?.live.state.error?.kind).toBe("closed");
  expect(other.lives.get("orders")?.live.state).toMatchObject({ status: "live", data: rows(server, "orders") });
});

test("a tab whose token says another thing than the others' is alone from then on", async () => {
  const { server, tabs } = world(3);
  for (const tab of tabs) tab.show("orders");
  await settle();
  const [leader, other] = [...tabs].sort((tab) => (tab.seat.leading ? -1 : 1)) as [Tab, Tab, Tab];
  for (const [leaving, connections] of [[leader, 2], [other, 3]] as const) {
    leaving.seat.leave();
    await settle();
    server.change("orders");
    await settle();
    expect(server.subscriptions).toBe(connections);
    for (const tab of tabs) {
      expect(tab.lives.get("orders")?.live.state).toMatchObject({ status: "live", data: rows(server, "orders") });
    }
  }
  expect([leader.fake.wires.size, other.fake.wires.size]).toEqual([0, 0]);
});

test("a tab whose token changed before it could join is alone, too", async () => {
  const { server, profile, tabs } = world(1);
  const [member] = tabs as [Tab];
  member.show("orders");
  await settle();
  for (const moment of ["named", "locked"]) {
    const fake = profile.open();
    let named = (): void => {};
    const tab = new Tab(server, fake, new Promise((resolve) => (named = () => resolve("group"))));
    tab.show("orders");
    await settle();
    if (moment === "named") tab.seat.leave();
    fake.suspend();
    named();
    await settle();
    if (moment === "locked") tab.seat.leave();
    fake.resume();
    await settle();
    expect([tab.seat.leading, fake.wires.size, tab.shown("orders")]).toEqual([true, 0, rows(server, "orders")]);
  }
  expect([member.seat.leading, server.subscriptions]).toEqual([true, 3]);
});

test("without locks every tab leads itself", async () => {
  const server = new Server();
  const profile = new Profile();
  const tabs = [0, 1].map(() => {
    const fake = profile.open();
    Object.assign(fake.browser, { locks: undefined });
    return new Tab(server, fake);
  });
  for (const tab of tabs) tab.show("orders");
  await settle();
  expect(tabs.every((tab) => tab.seat.leading)).toBe(true);
  expect(server.subscriptions).toBe(2);
});

type Step =
  | { readonly what: "change" | "show" | "hide"; readonly tab: number; readonly query: string }
  | { readonly what: "open" | "kill" | "suspend" | "resume" | "resign" | "lose" | "fault"; readonly tab: number };

const QUERIES = ["orders", "items"];
const tab = fc.nat(3);
const query = fc.constantFrom(...QUERIES);
const shown = fc.constantFrom("change", "change", "show", "hide");
const suffered = fc.constantFrom("open", "kill", "suspend", "resume", "resign", "lose", "fault");
const step = fc.oneof(
  { weight: 8, arbitrary: fc.record({ what: shown, tab, query }) },
  { weight: 3, arbitrary: fc.record({ what: suffered, tab }) },
) as fc.Arbitrary<Step>;
const steps = fc.array(fc.tuple(step, fc.constantFrom(0, 0, 1, 3_000, 30_000)), { maxLength: 25 });

test("after anything that may happen to tabs, each that is open shows what the server has", async () => {
  await fc.assert(
    fc.asyncProperty(steps, async (steps) => {
      const { server, profile, tabs, open } = world(2);
      for (const [step, pause] of steps) {
        const tab = tabs[step.tab % tabs.length] as Tab;
        if (step.what === "change") server.change(step.query);
        else if (step.what === "show") tab.show(step.query);
        else if (step.what === "hide") tab.hide(step.query);
        else if (step.what === "open") open().show("orders");
        else if (step.what === "kill" && tabs.length > 1) tabs.splice(tabs.indexOf(tab), 1)[0]?.kill();
        else if (step.what === "suspend") tab.fake.suspend();
        else if (step.what === "resume") tab.fake.resume();
        else if (step.what === "resign") tab.seat.resign();
        else if (step.what === "fault") tab.session.fail(new ForgeError("unreachable", "away", ""), false);
        else if (step.what === "lose") {
          profile.loses = (data) => {
            const lost = (data as { message: { type: string } }).message.type === "push";
            if (lost) profile.loses = () => false;
            return lost;
          };
        }
        await settle(pause);
      }
      profile.loses = () => false;
      for (const tab of tabs) tab.fake.resume();
      await settle(LONG);
      for (const query of QUERIES) server.change(query);
      await settle(1_000);
      expect(tabs.filter((tab) => tab.seat.leading).length).toBeLessThanOrEqual(1);
      for (const tab of tabs) {
        for (const [query, { live }] of tab.lives) {
          expect(live.state).toMatchObject({ status: "live", data: rows(server, query) });
        }
      }
      const wanted = new Set(tabs.flatMap((tab) => [...tab.lives.keys()]));
      expect(server.subscriptions).toBe(wanted.size);
      for (const tab of tabs) {
        tab.relay.close();
        tab.seat.close();
      }
    }),
    { numRuns: Number(process.env["RUNS"] ?? 100) },
  );
});
