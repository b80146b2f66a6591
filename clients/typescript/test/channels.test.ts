/** Channels against a server of the tests: one connection, presence and messages, whatever happens to it. */

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Channels, type ChannelsOptions, openChannels, type Room } from "../src/channels";

type Fields = Record<string, unknown>;

/** Speaks the channels' part of docs/reference/events.md. */
class Server {
  readonly open = new Set<Connection>();
  readonly said: Fields[] = [];
  connects = 0;
  /** How many connections are refused from now on. */
  down = 0;
  /** The tokens that are taken; all, and none, where it is undefined. */
  tokens: Set<string> | undefined;
  /** What the next ones that ask are told, by what they ask. */
  readonly errors: Record<string, Fields[]> = {};
  /** Whom the next one that joins is told of in the same turn as its answer. */
  late: Fields | undefined;
  /** Whether it answers nothing. */
  mute = false;

  /** An event to all members of a channel. */
  tell(channel: string, kind: string, from: Fields, data: unknown = null): void {
    for (const one of this.open) if (one.joined.has(channel)) one.tell("channel", { channel, kind, from, data });
  }

  say(event: string, fields: Fields): void {
    for (const one of this.open) one.tell(event, fields);
  }

  end(code = 1006): void {
    for (const one of [...this.open]) one.gone(code);
  }

  asked(type: string): unknown[] {
    return this.said.filter((one) => one["type"] === type).map((one) => one["channel"] ?? one["token"]);
  }

  heard(from: Connection, { type, id, channel, data }: Fields): void {
    const name = String(channel);
    const error = this.errors[String(type)]?.shift();
    if (this.mute) return;
    if (error) return from.tell("error", { id, ...error });
    if (type === "join") {
      if (!from.joined.has(name)) {
        from.joined.add(name);
        this.tell(name, "join", from.member);
      }
      const members = [...this.open].filter(({ joined }) => joined.has(name)).map(({ member }) => member);
      const late = this.late ? [{ event: "channel", channel, kind: "join", from: this.late, data: null }] : [];
      from.tell("answer", { id, you: from.member["id"], members }, ...late);
    } else if (type === "leave") {
      this.tell(name, "leave", from.member);
      from.joined.delete(name);
      from.tell("answer", { id });
    } else if (type === "publish") {
      this.tell(name, "message", from.member, data);
      from.tell("answer", { id });
    }
  }
}

let server: Server;

/** A WebSocket, and the server's end of it. */
class Connection {
  readonly joined = new Set<string>();
  readonly member: Fields = { id: `m${++server.connects}`, user: null };
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;

  #over = false;

  constructor(readonly url: URL) {
    setTimeout(() => {
      if (this.#over) return;
      if (server.down-- > 0) return this.gone(1006);
      this.onopen?.();
      if (!server.tokens) this.#begin();
    });
  }

  #begin(): void {
    server.open.add(this);
    this.tell("session", { session: "s", expires_at: null });
  }

  send(text: string): void {
    if (this.#over) return;
    const said = JSON.parse(text) as Fields;
    server.said.push(said);
    if (server.open.has(this)) return server.heard(this, said);
    if (server.tokens?.has(String(said["token"]))) return this.#begin();
    this.tell("error", { id: null, code: "auth_failed", message: "the token is not valid", fix: "have another" });
    this.gone(4401);
  }

  /** Several in one turn, as a WebSocket of Node's tells what came together. */
  tell(event: string, fields: Fields, ...more: Fields[]): void {
    const all = [{ event, ...fields }, ...more].map((one) => JSON.stringify(one));
    setTimeout(() => all.forEach((data) => this.onmessage?.({ data })));
  }

  close(): void {
    this.gone(1000);
  }

  gone(code: number): void {
    this.#over = true;
    if (server.open.delete(this)) for (const channel of this.joined) server.tell(channel, "leave", this.member);
    setTimeout(() => this.onclose?.({ code }));
  }
}

let opened: Channels[] = [];
beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("WebSocket", Connection);
  server = new Server();
});
afterEach(() => {
  for (const channels of opened.splice(0)) channels.close();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

const open = (options: ChannelsOptions = {}): Channels => {
  opened.push(openChannels({ url: "http://forge.test/shop/", ...options }));
  return opened.at(-1) as Channels;
};
const settle = (ms = 10): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const ids = ({ members }: Room): string[] => members.getSnapshot().map(({ id }) => id);
const heard = (room: Room): unknown[] => {
  const all: unknown[] = [];
  room.onMessage(({ from, data }) => all.push([from.id, data]));
  return all;
};

test("two clients see each other and what each says; who leaves is gone", async () => {
  const [one, other] = [open().join("room"), open().join("room")];
  const [first, second] = [heard(one), heard(other)];
  await settle();
  expect([ids(one), ids(other)]).toEqual([["m1", "m2"], ["m1", "m2"]]);
  expect([one.you.getSnapshot(), other.you.getSnapshot()]).toEqual(["m1", "m2"]);
  const said = other.publish({ typing: true });
  await settle();
  await said;
  expect([first, second]).toEqual([[["m2", { typing: true }]], [["m2", { typing: true }]]]);
  other.leave();
  await settle();
  expect([ids(one), ids(other), other.you.getSnapshot()]).toEqual([["m1"], [], undefined]);
  await expect(other.publish(1)).rejects.toMatchObject({ kind: "closed" });
});

test("one connection, opened with the first join and closed after the last leave", async () => {
  const channels = open();
  await settle();
  expect(server.connects).toBe(0);
  const [room, again, hall] = [channels.join("room"), channels.join("room"), channels.join("hall")];
  const [left, stays] = [heard(room), heard(again)];
  await settle();
  expect([...server.open].map(({ url }) => url.href)).toEqual(["ws://forge.test/shop/forge/ws"]);
  expect(server.asked("join")).toEqual(["room", "hall"]);
  room.leave();
  room.leave();
  server.tell("room", "message", { id: "x", user: null }, 1);
  await settle();
  expect([left, stays, server.asked("leave")]).toEqual([[], [["x", 1]], []]);
  again.leave();
  await settle();
  expect([server.asked("leave"), server.open.size]).toEqual([["room"], 1]);
  hall.leave();
  await settle();
  expect(server.open.size).toBe(0);
  const back = channels.join("room");
  await settle();
  expect([ids(back), server.connects]).toEqual([["m2"], 2]);
});

test("what comes with the answer to a join is counted, what came before it is not counted twice", async () => {
  server.late = { id: "late", user: "bob" };
  const room = open().join("room");
  const told: string[][] = [];
  room.members.subscribe((members) => told.push(members.map(({ id }) => id)));
  await settle();
  expect(told).toEqual([[], ["m1"], ["m1", "late"]]);
});

test("what is published at once waits for the join; without a connection it is refused for good", async () => {
  const room = open().join("room");
  const first = room.publish("first");
  await settle();
  await first;
  server.down = 1;
  server.end();
  await settle(1);
  expect(room.error.getSnapshot()).toMatchObject({ kind: "unreachable" });
  expect([room.you.getSnapshot(), ids(room)]).toEqual([undefined, ["m1"]]);
  await expect(room.publish("lost")).rejects.toMatchObject({ kind: "unreachable" });
  await settle(2_000);
  expect([room.you.getSnapshot(), room.error.getSnapshot(), ids(room)]).toEqual(["m3", undefined, ["m3"]]);
  expect(server.said.filter(({ type }) => type === "publish").map(({ data }) => data)).toEqual(["first"]);
});

test("a publish whose answer is lost, with the connection or alone, fails", async () => {
  const room = open().join("room");
  await settle();
  server.mute = true;
  const lost = expect(room.publish("perhaps")).rejects.toMatchObject({ kind: "unreachable" });
  await settle();
  server.end();
  server.mute = false;
  await settle(2_000);
  await lost;
  expect([server.asked("publish").length, ids(room)]).toEqual([1, ["m2"]]);
  server.mute = true;
  const late = expect(room.publish("perhaps")).rejects.toMatchObject({ message: expect.stringContaining("in time") });
  await settle(16_000);
  await late;
});

test("a server that says bye is left alone for as long as it asks; then all is joined again", async () => {
  const channels = open();
  const rooms = [channels.join("room"), channels.join("hall")];
  await settle();
  server.say("bye", { reason: "restart", retry_after_ms: 700 });
  await settle();
  server.end(1012);
  await settle(650);
  expect(server.connects).toBe(1);
  await settle(400);
  expect(rooms.map(ids)).toEqual([["m2"], ["m2"]]);
});

test("waits grow, and are not the same twice", async () => {
  server.down = 6;
  const times: number[] = [];
  const began = Date.now();
  vi.stubGlobal("WebSocket", class extends Connection {
    constructor(url: URL) {
      super(url);
      times.push(Date.now() - began);
    }
  });
  const room = open().join("room");
  await settle(20_000);
  const waits = times.slice(1).map((at, i) => at - (times[i] as number));
  expect(waits).toHaveLength(6);
  waits.forEach((wait, i) => expect(wait / (250 * 2 ** i)).toBeGreaterThanOrEqual(0.5));
  waits.forEach((wait, i) => expect(wait).toBeLessThanOrEqual(250 * 2 ** i + 10));
  expect(ids(room)).toEqual(["m7"]);
});

test("a connection that falls silent is replaced; one that pings is not", async () => {
  const room = open().join("room");
  await settle();
  for (let i = 0; i < 4; i++) {
    await settle(25_000);
    server.say("ping", {});
  }
  await settle();
  expect(server.connects).toBe(1);
  await settle(46_000);
  expect([server.connects, ids(room)]).toEqual([2, ["m2"]]);
});

test("messages that were left out may have been members: they are asked for again", async () => {
  const room = open().join("room");
  await settle();
  server.tell("room", "join", { id: "ghost", user: null });
  await settle();
  expect(ids(room)).toEqual(["m1", "ghost"]);
  server.say("gap", { dropped: 3 });
  await settle();
  expect([ids(room), room.you.getSnapshot()]).toEqual([["m1"], "m1"]);
});

test("a token is the first message, another is had when it is not taken, and when it expires", async () => {
  server.tokens = new Set(["t2", "t3", "t4"]);
  let n = 0;
  const room = open({ token: () => `t${++n}` }).join("room");
  await settle();
  expect([server.asked("auth"), ids(room)]).toEqual([["t1", "t2"], ["m2"]]);
  server.say("auth", { expires_at: 1, renew: true });
  await settle();
  expect([server.asked("auth"), server.connects]).toEqual([["t1", "t2", "t3"], 2]);
  server.say("auth", { reason: "revoked" });
  await settle();
  server.end(4401);
  await settle(1_000);
  expect([server.asked("auth"), ids(room)]).toEqual([["t1", "t2", "t3", "t4"], ["m3"]]);
});

test("a text that is not taken is the end, until somebody joins again", async () => {
  server.tokens = new Set();
  const channels = open({ token: "old" });
  const room = channels.join("room");
  const refused = expect(room.publish(1)).rejects.toMatchObject({ kind: "unauthorized", code: "auth_failed" });
  await settle(60_000);
  await refused;
  expect([room.error.getSnapshot()?.code, server.connects]).toEqual(["auth_failed", 1]);
  server.tokens = new Set(["old"]);
  const again = channels.join("room");
  await settle();
  expect(ids(again)).toEqual(["m2"]);
});

test("a channel that is refused is an error of its own; joins and leaves that must wait are asked again", async () => {
  const busy = { code: "too_many", message: "not now", fix: "wait", retry_after_secs: 1 };
  const channels = open();
  const hall = channels.join("hall");
  await settle();
  server.errors["join"] = [{ code: "bad_arguments", message: "no such name", fix: "use another" }, busy];
  const [wrong, room] = [channels.join("\0"), channels.join("room")];
  await settle();
  expect(wrong.error.getSnapshot()).toMatchObject({ kind: "refused", fix: "use another" });
  expect(room.error.getSnapshot()).toMatchObject({ kind: "too_many" });
  await settle(1_500);
  expect([room.error.getSnapshot(), ids(room), ids(hall)]).toEqual([undefined, ["m1"], ["m1"]]);
  server.errors["leave"] = [busy];
  room.leave();
  await settle(1_500);
  expect([...server.open].map(({ joined }) => [...joined])).toEqual([["hall"]]);
});

test("more channels than a server lets one join are not asked for", async () => {
  const channels = open();
  const rooms = Array.from({ length: 101 }, (_, i) => channels.join(`room ${i}`));
  await settle();
  expect(server.asked("join")).toHaveLength(100);
  expect(rooms.at(-1)?.error.getSnapshot()).toMatchObject({ kind: "too_many" });
  rooms[0]?.leave();
  const again = channels.join("room 100");
  await settle();
  expect(ids(again)).toEqual(["m1"]);
});

test("a listener that throws harms no other; nothing is told after close", async () => {
  const channels = open();
  const room = channels.join("room");
  const thrown = vi.fn();
  room.onMessage(() => {
    throw new Error("mine");
  });
  const after = heard(room);
  await settle();
  vi.stubGlobal("queueMicrotask", (task: () => void) => {
    try {
      task();
    } catch (error) {
      thrown(error);
    }
  });
  server.tell("room", "message", { id: "x", user: null }, 1);
  await settle();
  expect([after, thrown.mock.calls.length]).toEqual([[["x", 1]], 1]);
  channels.close();
  server.tell("room", "message", { id: "x", user: null }, 2);
  await settle(60_000);
  expect([after.length, server.open.size, channels.join("room").error.getSnapshot()?.kind]).toEqual([1, 0, "closed"]);
});
