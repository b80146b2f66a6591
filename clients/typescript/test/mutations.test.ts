/** Mutations of several tabs: each runs once and in order; what it changes is shown until the server says it. */

import { createHash } from "node:crypto";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { closed, ForgeError, told } from "../src/errors";
import { Seat } from "../src/leader";
import { Live } from "../src/live";
import { Queue } from "../src/queue";
import type { Entry, Store } from "../src/store";
import { type Answer, type Call, type Optimistic, type Upstream } from "../src/upstream";
import { type FakeTab, Profile } from "./tabs";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const LONG = 120_000;
const settle = (ms = 100): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const hashOf = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 32);

/** Runs what has the same key once; may be away, lose what it is asked, or its answer. */
class Server {
  readonly ran: string[] = [];
  readonly answers = new Map<string, Answer>();
  trouble: ("refuse" | "lose" | "limit" | "proxy" | "deploying")[] = [];
  wrote = true;
  closed = false;
  xid = 100;
  hash: string | null = null;
  readonly calls: Call[] = [];

  readonly call = async (call: Call): Promise<Answer> => {
    this.calls.push(call);
    if (this.closed) throw closed();
    await new Promise((resolve) => setTimeout(resolve, 5));
    if (call.kind === "query") return { result: "[]", xid: null, hash: this.hash };
    const trouble = this.trouble.shift();
    if (trouble === "refuse") throw new ForgeError("unreachable", "away", "");
    if (trouble === "limit") throw told({ code: "too_many", retry_after_secs: 2 }, 429);
    if (trouble === "proxy") throw told({ code: "not_forge" }, 502);
    if (trouble === "deploying") throw told({ code: "not_forge" }, 404);
    const key = call.key as string;
    if (call.name === "bad") throw told({ code: "query_failed", message: "no" }, 422);
    if (!this.answers.has(key)) {
      this.ran.push(call.args);
      const xid = this.wrote ? String(++this.xid) : null;
      this.answers.set(key, { result: call.args, xid, hash: null });
    }
    if (trouble === "lose") throw new ForgeError("unreachable", "cut off", "");
    return this.answers.get(key) as Answer;
  };
}

class Memory implements Store {
  readonly kept = new Map<string, Entry>();

  async add(_group: string, entry: Entry): Promise<void> {
    this.kept.set(entry.key, entry);
  }

  async remove(_group: string, { key }: Entry): Promise<void> {
    this.kept.delete(key);
  }

  async expire(before: number): Promise<void> {
    for (const { key, at } of [...this.kept.values()]) if (at < before) this.kept.delete(key);
  }

  async all(): Promise<Entry[]> {
    return [...this.kept.values()].sort((a, b) => a.at - b.at);
  }
}

class Tab {
  readonly seat: Seat;
  readonly queue: Queue;

  constructor(
    readonly fake: FakeTab,
    server: Server,
    store: Store,
  ) {
    this.seat = new Seat(() => Promise.resolve("group"), fake.browser);
    this.queue = new Queue(this.seat, server.call, store);
  }

  run(name: string, args: string): Promise<Answer> {
    return this.queue.run({ kind: "mutation", name, args });
  }

  kill(): void {
    this.fake.close();
    this.seat.close();
    this.queue.close();
  }
}

function world(count: number): { server: Server; store: Memory; tabs: Tab[]; open: () => Tab } {
  const [server, store, profile] = [new Server(), new Memory(), new Profile()];
  const open = (): Tab => new Tab(profile.open(), server, store);
  return { server, store, open, tabs: Array.from({ length: count }, open) };
}

const swallowed = (promise: Promise<unknown>): void => void promise.catch(() => {});

test("mutations of all tabs are sent in order, by the tab that leads, and then forgotten", async () => {
  const { server, store, tabs } = world(2);
  const answers = Promise.all([1, 2, 3, 4].map((n) => (tabs[n % 2] as Tab).run("pay", String(n))));
  await settle();
  expect((await answers).map(({ result }) => result)).toEqual(["1", "2", "3", "4"]);
  expect(server.ran.length).toBe(4);
  expect(store.kept.size).toBe(0);
  expect(tabs.map((tab) => tab.queue.pending.getSnapshot().length)).toEqual([0, 0]);
});

test("a tab that has no token lets another send what all have", async () => {
  const [server, store, profile] = [new Server(), new Memory(), new Profile()];
  const tokenless = Object.assign(new Server(), {
    call: () => Promise.reject(new ForgeError("unreachable", "no token can be had", "", { code: "no_token" })),
  });
  const leader = new Tab(profile.open(), tokenless, store);
  const first = leader.run("pay", "0");
  await settle(LONG);
  const waits = leader.queue.pending.getSnapshot()[0];
  expect([leader.seat.leading, waits?.error?.code, (waits?.tries ?? 0) > 3]).toEqual([true, "no_token", true]);
  const second = new Tab(profile.open(), server, store).run("pay", "1");
  await settle(LONG);
  expect((await Promise.all([first, second])).map(({ result }) => result)).toEqual(["0", "1"]);
  expect(server.ran).toEqual(["0", "1"]);
});

const TROUBLES = ["refuse", "lose", "limit", "proxy", "deploying"] as const;

test.each(TROUBLES)("what meets trouble (%s) is sent again, with its key, before those behind it", async (trouble) => {
  const { server, tabs } = world(1);
  server.trouble = [trouble, trouble];
  const [tab] = tabs as [Tab];
  const both = Promise.all([tab.run("pay", "1"), tab.run("pay", "2")]);
  await settle(50);
  expect(tab.queue.pending.getSnapshot()).toMatchObject([{ name: "pay", tries: 1 }, { tries: 0 }]);
  expect(tab.queue.pending.getSnapshot()[0]?.error).toBeInstanceOf(ForgeError);
  await settle(LONG);
  await both;
  expect(server.ran).toEqual(["1", "2"]);
  expect(new Set(server.calls.slice(0, 3).map(({ key }) => key)).size).toBe(1);
});

test("a network that is back is not waited for", async () => {
  const { server, tabs } = world(1);
  const [tab] = tabs as [Tab];
  server.trouble = Array.from({ length: 9 }, () => "refuse" as const);
  const done = tab.run("pay", "1");
  await settle(20_000);
  const tries = server.calls.length;
  server.trouble = [];
  tab.queue.wake();
  await settle(10);
  await done;
  expect(server.calls.length).toBe(tries + 1);
});

test("what has the same key is one mutation, shown once, and answers whoever asked", async () => {
  const { server, tabs } = world(2);
  const { live, states } = shown();
  const [one, two] = tabs as [Tab, Tab];
  const call: Call = { kind: "mutation", name: "order", args: "1", key: "order-7" };
  const all = Promise.all([one.queue.run(call, more(live)), one.queue.run(call, more(live)), two.queue.run(call)]);
  expect(live.state.data).toBe(2);
  await settle();
  expect((await all).map(({ xid }) => xid)).toEqual(["101", "101", "101"]);
  expect([server.ran, Math.max(...states)]).toEqual([["1"], 2]);
  const again = one.queue.run(call);
  await settle();
  expect((await again).xid).toBe("101");
});

test("a refusal, or the end, reaches all who gave the same key", async () => {
  const { server, tabs } = world(1);
  const [tab] = tabs as [Tab];
  const { live } = shown();
  const both = (name: string): Promise<PromiseSettledResult<Answer>[]> => {
    const call: Call = { kind: "mutation", name, args: "1", key: name };
    return Promise.allSettled([tab.queue.run(call, more(live)), tab.queue.run(call, more(live))]);
  };
  const refused = both("bad");
  await settle();
  const rejected = { status: "rejected" };
  expect([await refused, live.state.data]).toMatchObject([[rejected, rejected], 1]);
  server.trouble = ["refuse"];
  const ended = both("pay");
  await settle(20);
  tab.queue.close();
  expect([await ended, live.state.data]).toMatchObject([[rejected, rejected], 1]);
});

test.each([1, 2])("of %i tabs, one whose token is not taken is told so, and what others left stays", async (count) => {
  const [store, profile] = [new Memory(), new Profile()];
  store.kept.set("left", { key: "left", name: "pay", args: "0", at: Date.now() - 60_000 });
  const expired = Object.assign(new Server(), {
    call: () => Promise.reject(told({ code: "auth_failed", message: "expired" }, 401)),
  });
  const good = new Server();
  const tab = new Tab(profile.open(), expired, store);
  const refused = [tab.run("pay", "1"), tab.run("pay", "2")].map((run) => run.catch((error: unknown) => error));
  const other = count > 1 && new Tab(profile.open(), good, store).run("pay", "3");
  await settle(5_000);
  expect(await Promise.all(refused)).toMatchObject([{ kind: "unauthorized" }, { kind: "unauthorized" }]);
  if (!other) expect([...store.kept.keys()]).toEqual(["left"]);
  else expect([(await other).result, good.ran]).toEqual(["3", ["0", "3"]]);
});

test("what was made while no token could be had is kept once there is one", async () => {
  const [server, store, profile] = [new Server(), new Memory(), new Profile()];
  server.trouble = Array.from({ length: 99 }, () => "refuse" as const);
  let issuer = false;
  const name = (): Promise<string> => (issuer ? Promise.resolve("group") : Promise.reject(new Error("away")));
  const seat = new Seat(name, profile.open().browser);
  const queue = new Queue(seat, server.call, store);
  swallowed(queue.run({ kind: "mutation", name: "pay", args: "1" }));
  await settle();
  expect([seat.leading, store.kept.size]).toEqual([true, 0]);
  issuer = true;
  await settle(LONG);
  expect([...store.kept.values()].map(({ args }) => args)).toEqual(["1"]);
  server.trouble = [];
  await settle(LONG);
  expect([server.ran, store.kept.size]).toEqual([["1"], 0]);
});

test("a good moment sends nothing before what a page left behind was read", async () => {
  const { server, store, tabs } = world(1);
  store.kept.set("left", { key: "left", name: "pay", args: "0", at: Date.now() - 60_000 });
  const all = store.all.bind(store);
  store.all = () => new Promise((resolve) => setTimeout(() => resolve(all()), 1_000));
  const [tab] = tabs as [Tab];
  const done = tab.run("pay", "1");
  await settle(10);
  tab.queue.wake();
  await settle(LONG);
  await done;
  expect(server.ran).toEqual(["0", "1"]);
});

test("what the server refuses is rejected, and those behind it go on", async () => {
  const { server, store, tabs } = world(2);
  const [one, two] = tabs as [Tab, Tab];
  const refused = one.run("bad", "1").catch((error: unknown) => error);
  const also = two.run("bad", "2").catch((error: unknown) => error);
  const done = two.run("pay", "3");
  await settle();
  expect([await refused, await also]).toMatchObject([{ code: "query_failed" }, { code: "query_failed", status: 422 }]);
  expect((await done).result).toBe("3");
  expect([server.ran, store.kept.size]).toEqual([["3"], 0]);
});

test("what a page left behind is sent by the next, before what that has; what is too old is not", async () => {
  const { server, store, open, tabs } = world(1);
  const [tab] = tabs as [Tab];
  server.trouble = Array.from({ length: 99 }, () => "refuse" as const);
  swallowed(tab.run("pay", "1"));
  await settle(1_000);
  tab.kill();
  store.kept.set("old", { key: "old", name: "pay", args: "0", at: Date.now() - 7 * 86_400_000 });
  server.trouble = [];
  const next = open().run("pay", "2");
  await settle();
  await next;
  expect(server.ran).toEqual(["1", "2"]);
  expect(store.kept.size).toBe(0);
});

test("after anything that may happen, every mutation ran once, and whoever waits was answered", async () => {
  const what = fc.constantFrom("run", "kill", "open", "resign", "suspend", "resume");
  const trouble = fc.array(fc.constantFrom(...TROUBLES), { maxLength: 3 });
  const pause = fc.constantFrom(0, 3, 500, 20_000);
  const steps = fc.array(fc.record({ what, tab: fc.nat(3), trouble, pause }), { maxLength: 20 });
  await fc.assert(
    fc.asyncProperty(steps, async (steps) => {
      const { server, store, open, tabs } = world(2);
      const waiting: { tab: Tab; done: boolean }[] = [];
      let made = 0;
      for (const step of steps) {
        const tab = tabs[step.tab % tabs.length] as Tab;
        server.trouble = [...step.trouble];
        if (step.what === "run") {
          const one = { tab, done: false };
          waiting.push(one);
          tab.run("pay", String(made++)).then(
            () => (one.done = true),
            () => {},
          );
        } else if (step.what === "open") tabs.push(open());
        else if (step.what === "kill" && tabs.length > 1) tabs.splice(tabs.indexOf(tab), 1)[0]?.kill();
        else if (step.what === "resign") tab.seat.resign();
        else if (step.what === "suspend") tab.fake.suspend();
        else if (step.what === "resume") tab.fake.resume();
        await settle(step.pause);
      }
      for (const tab of tabs) tab.fake.resume();
      swallowed((tabs[0] as Tab).run("pay", String(made++)));
      await settle(LONG);
      expect([...server.ran].sort()).toEqual(Array.from({ length: made }, (_, n) => String(n)).sort());
      expect(waiting.filter(({ tab, done }) => tabs.includes(tab) && !done)).toEqual([]);
      expect(store.kept.size).toBe(0);
      for (const tab of tabs) tab.kill();
    }),
    { numRuns: Number(process.env["RUNS"] ?? 100) },
  );
});

// What is shown before it is done

const NOWHERE: Upstream = { add: () => {}, remove: () => {}, wake: () => {}, close: () => {} };

interface Shown {
  readonly live: Live<number>;
  readonly push: (value: number, snapshot: string, trace?: string) => void;
  readonly states: number[];
  readonly end: () => void;
}

function shown(): Shown {
  const live = new Live<number>({ query: "count", args: "{}", mode: "delta" }, NOWHERE, 0);
  const states: number[] = [];
  const end = live.subscribe(({ data }) => data !== undefined && states.push(data));
  const push = (value: number, snapshot: string, trace: string | null = null): void => {
    const cause = [{ change: "", table: "", op: "", at: "", user: null, function: null, trace, xid: null }];
    live.push({ event: "update", hash: hashOf(String(value)), snapshot, cause, key: [], value: String(value) });
  };
  push(1, "90:90:");
  return { live, push, states, end };
}

const more =
  (live: Live<number>): Optimistic =>
  ({ update }) =>
    update(live, (value) => value + 1);

test("a change is shown at once, and gone in the very state that has it", async () => {
  const { tabs } = world(1);
  const { live, push, states } = shown();
  const done = (tabs[0] as Tab).queue.run({ kind: "mutation", name: "add", args: "{}" }, more(live));
  expect(live.state.data).toBe(2);
  await settle(20);
  expect((await done).xid).toBe("101");
  for (const unseen of ["100:101:", "100:105:101", "100:105:100,101,103"]) {
    push(10, unseen); // another's, that does not show it yet
    expect(live.state.data).toBe(11);
  }
  push(11, "102:102:");
  expect(live.state.data).toBe(11);
  expect(states).toEqual([1, 2, 11, 11, 11, 11]);
  expect(live.base).toBe(11);
});

const KEYS = [
  ["5f0e6b62f3b14e5a8f0c9f0d8b1f6f11", "5f0e6b62f3b14e5a8f0c9f0d8b1f6f11"],
  ["order-7", hashOf("order-7")],
] as const;

test.each(KEYS)("a result that shows it may come before the answer: %s", async (key, trace) => {
  const { tabs } = world(1);
  const { live, push } = shown();
  const done = (tabs[0] as Tab).queue.run({ kind: "mutation", name: "add", args: "{}", key }, more(live));
  push(2, "102:102:", trace);
  expect(live.state.data).toBe(2);
  await settle(LONG);
  await done;
  expect(live.state.data).toBe(2);
});

test("it is taken back on an error, and at once when nothing was written", async () => {
  const { server, tabs } = world(1);
  const { live, states } = shown();
  const tab = tabs[0] as Tab;
  const refused = tab.queue.run({ kind: "mutation", name: "bad", args: "{}" }, more(live)).catch(() => "refused");
  await settle();
  expect([await refused, live.state.data]).toEqual(["refused", 1]);
  server.wrote = false;
  const done = tab.queue.run({ kind: "mutation", name: "add", args: "{}" }, more(live));
  await settle();
  await done;
  expect([live.state.data, states]).toEqual([1, [1, 2, 1, 2, 1]]);
});

test("when no push shows it, the server is asked, and its answer is believed", async () => {
  const { server, tabs } = world(1);
  const { live } = shown();
  const done = (tabs[0] as Tab).queue.run({ kind: "mutation", name: "add", args: "{}" }, more(live));
  await settle(500);
  await done;
  expect(live.state.data).toBe(2);
  server.hash = "another result, whose push is under way";
  await settle(1_000);
  expect(live.state.data).toBe(2);
  expect(server.calls.at(-1)).toMatchObject({ kind: "query", name: "count", after: "101" });
  server.hash = live.hash as string;
  await settle(2_500);
  expect(live.state.data).toBe(1);
});

test("it is not shown for ever where nobody looked while the server had to be asked", async () => {
  for (const comes of [true, false]) {
    const { server, tabs } = world(1);
    const { live, end } = shown();
    const done = (tabs[0] as Tab).queue.run({ kind: "mutation", name: "add", args: "{}" }, more(live));
    await settle(500);
    await done;
    end();
    server.hash = live.hash as string;
    await settle(5_000);
    expect(live.state.data).toBe(2); // who comes back sees what it saw
    if (comes) live.subscribe(() => {});
    await settle(LONG);
    expect([live.state.data, vi.getTimerCount() < 5]).toEqual([1, true]);
  }
});

test("nothing is asked any more once the client is closed", async () => {
  const { server, tabs } = world(1);
  const { live } = shown();
  const tab = tabs[0] as Tab;
  const done = tab.queue.run({ kind: "mutation", name: "add", args: "{}" }, more(live));
  await settle(500);
  await done;
  tab.kill();
  server.closed = true;
  await settle(LONG);
  const asked = server.calls.length;
  await settle(LONG);
  expect([server.calls.length, vi.getTimerCount()]).toEqual([asked, 0]);
});

test("changes are shown in their order, and what did not change is the same", async () => {
  const { tabs } = world(1);
  const { live, push } = shown();
  const tab = tabs[0] as Tab;
  const double: Optimistic = ({ update }) => update(live, (n) => n * 2);
  const doubled = tab.queue.run({ kind: "mutation", name: "a", args: "1" }, double);
  const added = tab.queue.run({ kind: "mutation", name: "b", args: "2" }, more(live));
  expect(live.state.data).toBe(3);
  await settle(50);
  await Promise.all([doubled, added]);
  push(2, "102:102:"); // the first
  expect(live.state.data).toBe(3);
  push(3, "103:103:");
  expect(live.state.data).toBe(3);
});

test("a change that fails is told, and harms nothing", async () => {
  const uncaught = vi.spyOn(globalThis, "queueMicrotask").mockImplementation((work) => expect(work).toThrow("mine"));
  const { tabs } = world(1);
  const { live } = shown();
  const done = (tabs[0] as Tab).queue.run({ kind: "mutation", name: "a", args: "1" }, ({ update }) =>
    update(live, () => {
      throw new Error("mine");
    }),
  );
  expect(live.state.data).toBe(1);
  expect(uncaught).toHaveBeenCalled();
  uncaught.mockRestore();
  await settle(50);
  expect((await done).result).toBe("1");
});
