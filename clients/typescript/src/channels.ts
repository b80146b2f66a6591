/**
 * Channels: messages between the clients of a server, and who is there: `@forge/client/channels`.
 *
 *     const channels = openChannels({ url: "http://127.0.0.1:8710", token });
 *     const room = channels.join("room");
 *     room.members.subscribe((members) => …);
 *     room.onMessage(({ from, data }) => …);
 *     await room.publish({ typing: true });
 *
 * One WebSocket, open while something is joined; when it is opened again, all is joined again, and members are those
 * that the server names then. Whoever joins what the page has joined already shares it: the server is told to leave
 * when the last one does. What always holds: a message is sent once or not at all, and is told once to each listener.
 */

import { Backoff, whenBack } from "./backoff.js";
import { asError, closed, ForgeError, passes } from "./errors.js";
import { Line, type Member, type Said } from "./line.js";
import { Cell, type Readable, tell } from "./readable.js";
import type { Token } from "./tokens.js";

// from the client itself, so that its bundle stays one file, which this one imports
export { ForgeError } from "./index.js";
export type { Member } from "./line.js";
export type { Readable } from "./readable.js";

export interface ChannelsOptions {
  /** The server; may have a path. The page's own origin unless given. */
  readonly url?: string;
  /** A text, or a function that is asked whenever a newer token is needed. */
  readonly token?: Token;
}

export interface Message<T> {
  readonly from: Member;
  readonly data: T;
}

export interface Room<T = unknown> {
  /** Who is there, oneself included; as they were last known while there is no connection. */
  readonly members: Readable<readonly Member[]>;
  /** The id of the member that this page is; undefined while it is none. */
  readonly you: Readable<string | undefined>;
  /** Why it is none; undefined while all is well, or under way. */
  readonly error: Readable<ForgeError | undefined>;
  /** Says something to all members, oneself included: JSON. Rejects while there is no connection. */
  publish(data: T): Promise<void>;
  /** Calls the listener with each message from now on; returns how to end that. */
  onMessage(listener: (message: Message<T>) => void): () => void;
  leave(): void;
}

export interface Channels {
  join<T = unknown>(channel: string): Room<T>;
  /** Leave all. */
  close(): void;
}

/** The channels of the Forge server at a URL. */
export function openChannels({ url = "", token }: ChannelsOptions = {}): Channels {
  return new Page(url, token);
}

/** Of one connection. A server ends one that asks for more again and again. */
const MOST_CHANNELS = 100;

function full(): ForgeError {
  return new ForgeError("too_many", `a page may join ${MOST_CHANNELS} channels`, "leave one first, then join again");
}

type Hearing = (message: Message<never>) => void;

/** A channel that somebody on this page has joined. */
class Membership {
  readonly members = new Cell<readonly Member[]>([]);
  readonly you = new Cell<string | undefined>(undefined);
  readonly error = new Cell<ForgeError | undefined>(undefined);
  readonly listeners = new Set<{ listener: Hearing }>();
  sharing = 0;
  #waiting: { done: () => void; failed: (error: ForgeError) => void }[] = [];

  constructor(readonly channel: string) {}

  /** Resolves when it is a member; rejects when it cannot be now. */
  joined(): Promise<void> {
    return new Promise((done, failed) => {
      const error = this.error.getSnapshot();
      if (this.you.getSnapshot() !== undefined) done();
      else if (error) failed(error);
      else this.#waiting.push({ done, failed });
    });
  }

  entered({ you, members = [] }: Said): void {
    this.error.set(undefined);
    this.members.set(members);
    this.you.set(you);
    for (const { done } of this.#waiting.splice(0)) done();
  }

  fault(error: ForgeError): void {
    this.you.set(undefined);
    this.error.set(error);
    for (const { failed } of this.#waiting.splice(0)) failed(error);
  }

  heard({ kind, from, data }: Said): void {
    if (!from) return;
    if (kind === "message") {
      for (const { listener } of [...this.listeners]) tell(listener, { from, data } as Message<never>);
    } else if (this.you.getSnapshot() !== undefined) {
      // before the server has named all, these would be some only
      const others = this.members.getSnapshot().filter(({ id }) => id !== from.id);
      this.members.set(kind === "join" ? [...others, from] : others);
    }
  }
}

class Page implements Channels {
  readonly #line: Line;
  readonly #rooms = new Map<string, Membership>();
  readonly #leaving = new AbortController();
  /** Another one for each connection; undefined while there is none. */
  #session: object | undefined;

  constructor(url: string, token: Token | undefined) {
    this.#line = new Line(url, token, {
      begun: () => this.#begun(),
      heard: (said) => this.#heard(said),
      lost: (error, final) => this.#lost(error, final),
    });
    whenBack(this.#leaving.signal, () => this.#line.wake());
  }

  join<T>(channel: string): Room<T> {
    const known = this.#rooms.get(channel);
    const room = known ?? new Membership(channel);
    room.sharing++;
    if (this.#leaving.signal.aborted) room.fault(closed());
    else if (!known && this.#rooms.size >= MOST_CHANNELS) room.fault(full());
    else if (!known) {
      this.#rooms.set(channel, room);
      this.#line.open();
      this.#enter(room);
    }
    return this.#share<T>(room);
  }

  close(): void {
    this.#leaving.abort();
    this.#end(closed());
    this.#line.close();
  }

  #share<T>(room: Membership): Room<T> {
    const { members, you, error, channel, listeners } = room;
    const mine = new AbortController();
    const publish = async (data: T): Promise<void> => {
      await room.joined();
      if (mine.signal.aborted) throw closed();
      await this.#line.ask("publish", { channel, data });
    };
    const onMessage = (listener: (message: Message<T>) => void): (() => void) => {
      const entry = { listener: listener as Hearing };
      const end = (): void => void listeners.delete(entry);
      if (mine.signal.aborted) return end;
      listeners.add(entry);
      mine.signal.addEventListener("abort", end);
      return end;
    };
    const leave = (): void => {
      if (mine.signal.aborted) return;
      mine.abort();
      if (--room.sharing === 0) this.#leave(room);
    };
    return { members, you, error, publish, onMessage, leave };
  }

  #leave(room: Membership): void {
    const { channel } = room;
    if (this.#rooms.get(channel) !== room) return;
    this.#rooms.delete(channel);
    room.fault(closed());
    room.members.set([]);
    if (this.#rooms.size > 0) {
      void this.#say("leave", channel, () => !this.#rooms.has(channel));
      return;
    }
    this.#session = undefined;
    this.#line.close();
  }

  // What the line tells

  #begun(): void {
    this.#session = {};
    for (const room of [...this.#rooms.values()]) {
      room.error.set(undefined);
      this.#enter(room);
    }
  }

  #heard(said: Said): void {
    if (said.event === "channel") this.#rooms.get(said.channel ?? "")?.heard(said);
    // something was left out, and may have been who came or went: who is there already is told again who is there
    else if (said.event === "gap") for (const room of this.#rooms.values()) this.#enter(room);
  }

  #lost(error: ForgeError, final: boolean): void {
    this.#session = undefined;
    if (final) this.#end(error);
    else for (const room of [...this.#rooms.values()]) room.fault(error);
  }

  #end(error: ForgeError): void {
    const rooms = [...this.#rooms.values()];
    this.#rooms.clear();
    this.#session = undefined;
    for (const room of rooms) {
      room.fault(error);
      room.members.set([]);
    }
  }

  // What is said

  #enter(room: Membership): void {
    const wanted = (): boolean => this.#rooms.get(room.channel) === room;
    void this.#say("join", room.channel, wanted, room);
  }

  /** Says it until the server takes it; the end of the session, or of the wish, is the end of that. */
  async #say(type: "join" | "leave", channel: string, wanted: () => boolean, room?: Membership): Promise<void> {
    const session = this.#session;
    const backoff = new Backoff();
    const current = (): boolean => session !== undefined && this.#session === session && wanted();
    while (current()) {
      try {
        return await this.#line.ask(type, { channel }, (answer) => current() && room?.entered(answer));
      } catch (thrown) {
        const error = asError(thrown);
        if (!current()) return;
        room?.fault(error);
        if (!passes(error)) return this.#drop(room);
        await backoff.wait(0, error);
      }
    }
  }

  /** The server will not have it: nothing is asked for it any more. */
  #drop(room: Membership | undefined): void {
    if (room) this.#rooms.delete(room.channel);
    if (this.#rooms.size > 0) return;
    this.#session = undefined;
    this.#line.close();
  }
}
