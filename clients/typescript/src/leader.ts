/**
 * This tab's seat among those of its group: one leads, and has the connection; the others ask it.
 *
 * Who holds the group's lock leads; when its tab goes, however it goes, the browser gives the lock to the next. A tab
 * that is seen asks the leader every few seconds whether it is there, and takes the lock from one that does not answer:
 * a page may be suspended. One that resigns rests before it wants the lock again, longer each time, so that tabs which
 * all cannot lead do not take turns at it for ever. Without locks or channels, and where tabs are not to share, every
 * tab leads itself.
 *
 * What always holds: what a leader says is heeded only from the last that said it leads, and who loses the lock stops.
 */

import { Backoff } from "./backoff.js";
import { Channel, type Message, type Wire } from "./channel.js";
import { hex } from "./sha256.js";

/** What a browser has, and a test brings. */
export interface Browser {
  readonly locks: LockManager | undefined;
  readonly wire: ((name: string) => Wire) | undefined;
  /** Whether somebody looks at this page. */
  readonly seen: () => boolean;
}

/** That of this page; without locks where tabs are not to know of each other. */
export function browser(shared: boolean): Browser {
  return {
    locks: shared ? globalThis.navigator?.locks : undefined,
    wire: globalThis.BroadcastChannel && ((name) => new BroadcastChannel(name)),
    seen: () => globalThis.document?.visibilityState !== "hidden",
  };
}

/** What has a part in it. */
export interface Member {
  /** This tab leads from now on. */
  led(): void;
  /** It does not any more. */
  lost(): void;
  /** Another leads: tell it what is wanted. */
  found(): void;
  /** A good moment to try, while this tab leads. */
  wake(): void;
  heard(message: Message, from: string): void;
}

const ASK = 4_000;
const PATIENCE = 10_000;
/** Milliseconds for which a tab rests after it resigned: the first time, and at the most. */
const REST = 5_000;
const LONGEST_REST = 60_000;

export class Seat {
  readonly id = randomId();
  /** The name of the group that this tab's first token is of; none while no token can be had. */
  readonly group: () => Promise<string | undefined>;
  leading = false;
  /** Who leads, as far as it is known. */
  leader: string | undefined;
  readonly #browser: Browser;
  readonly #members: Member[] = [];
  readonly #closing = new AbortController();
  readonly #rest = new Backoff(REST, LONGEST_REST);
  #begun = false;
  #channel: Channel | undefined;
  #name = "";
  #left = false;
  #release: (() => void) | undefined;
  #queued: AbortController | undefined;
  #ledAt = 0;
  #heardAt = 0;
  #askedAt = 0;

  /** `name` is asked for the group's when it is first needed. */
  constructor(name: () => Promise<string | undefined>, surroundings: Browser) {
    this.#browser = surroundings;
    let group: Promise<string | undefined> | undefined;
    this.group = () => (group ??= name().catch(() => (group = undefined)));
  }

  join(member: Member): void {
    this.#members.push(member);
  }

  /** Take part, if not yet, or not any more. */
  start(): void {
    if (this.#closing.signal.aborted) return;
    this.#rest.wake();
    if (this.#begun) return;
    this.#begun = true;
    void this.group().then((known) => this.#enter(known));
  }

  /** A good moment for all to try: a page is seen again, or the network is back. */
  wake(): void {
    this.#rest.wake();
    if (!this.leading) return this.tell({ type: "wake" });
    for (const member of this.#members) member.wake();
  }

  /** To all others, or to one. */
  say(message: Message, to?: string): void {
    this.#channel?.say(message, to);
  }

  /** To the tab that leads. */
  tell(message: Message): void {
    if (this.leader !== undefined) this.say(message, this.leader);
  }

  /** Let another lead, if there is one that wants to; false where there are no others. */
  resign(): boolean {
    if (!this.#channel) return false;
    if (!this.leading) return true;
    if (Date.now() - this.#ledAt > LONGEST_REST) this.#rest.reset();
    this.#quit();
    this.#lose();
    void this.#rest.wait().then(() => this.#channel && this.#compete());
    return true;
  }

  /** Have nothing to do with others any more: this tab's token says another thing than theirs. */
  leave(): void {
    this.#left = true;
    if (!this.#channel) return;
    this.#quit();
    this.#mute();
    this.#lose();
    this.#lead();
  }

  /** Calls back when another tab is gone, unless `signal` is earlier. */
  watch(tab: string, signal: AbortSignal, gone: () => void): void {
    this.#browser.locks?.request(`${this.#name}:${tab}`, { signal }, gone).catch(() => {}); // it was aborted
  }

  close(): void {
    this.#closing.abort();
    this.#quit();
    this.#mute();
    this.leading = false;
  }

  #quit(): void {
    this.#rest.wake();
    this.#queued?.abort();
    this.#queued = undefined;
    this.#release?.();
  }

  #mute(): void {
    this.#channel?.close();
    this.#channel = undefined;
  }

  #enter(name: string | undefined): void {
    const { locks, wire } = this.#browser;
    const { signal } = this.#closing;
    if (signal.aborted) return;
    if (name === undefined || !locks || !wire) return this.#lead();
    this.#name = name;
    // held while this tab lives, so that others see when it does not: nobody may hear of it before it is
    const living = (): Promise<unknown> => {
      if (this.#left) this.#lead();
      else this.#greet(wire(name));
      return new Promise((resolve) => signal.addEventListener("abort", resolve));
    };
    locks.request(`${name}:${this.id}`, { signal }, living).catch(() => signal.aborted || this.#lead());
  }

  #greet(wire: Wire): void {
    this.#channel = new Channel(wire, this.id, (message, from) => this.#heard(message, from));
    this.#heardAt = this.#askedAt = Date.now();
    const asking = setInterval(() => this.#ask(), ASK);
    this.#closing.signal.addEventListener("abort", () => clearInterval(asking));
    this.#compete();
    this.say({ type: "who" });
  }

  /** Wait for the lock; or take it from whoever has it. */
  #compete(steal = false): void {
    this.#queued?.abort();
    const queued = (this.#queued = new AbortController());
    const locks = this.#browser.locks as LockManager;
    const lead = (): Promise<void> | undefined => {
      if (queued.signal.aborted) return undefined;
      this.#lead();
      return new Promise((resolve) => {
        this.#release = resolve;
      });
    };
    const over = (): void => {
      if (this.#queued !== queued) return; // resigned, or closed, or it asked again
      this.#queued = undefined;
      this.#lose();
      this.#compete();
      this.say({ type: "who" });
    };
    locks.request(this.#name, steal ? { steal } : { signal: queued.signal }, lead).then(over, over);
  }

  #lead(): void {
    this.leading = true;
    this.#ledAt = Date.now();
    this.leader = this.id;
    this.say({ type: "lead" });
    for (const member of this.#members) member.led();
  }

  #lose(): void {
    if (!this.leading) return;
    this.leading = false;
    this.leader = undefined;
    this.#release = undefined;
    this.#heardAt = Date.now();
    for (const member of this.#members) member.lost();
  }

  #heard(message: Message, from: string): void {
    if (this.leading) {
      if (message.type === "who") this.say({ type: "lead" }, from);
      else if (message.type === "ping") return this.say({ type: "pong" }, from);
      else if (message.type === "wake") return this.wake();
    } else if (message.type === "lead") {
      this.leader = from;
      this.#heardAt = Date.now();
      for (const member of this.#members) member.found();
      return;
    } else if (from === this.leader) this.#heardAt = Date.now();
    for (const member of this.#members) member.heard(message, from);
  }

  #ask(): void {
    const now = Date.now();
    const asks = !this.leading && this.#queued && this.#browser.seen();
    // what was not asked could not be answered: this page was suspended, or is not seen, or its clock was set
    if (!asks || Math.abs(now - this.#askedAt) > 2 * ASK) this.#heardAt = now;
    this.#askedAt = now;
    if (!asks) return;
    if (now - this.#heardAt > PATIENCE * (1 + Math.random() / 2)) {
      this.#heardAt = now;
      this.#compete(true);
    } else this.say({ type: this.leader === undefined ? "who" : "ping" }, this.leader);
  }
}

/** 128 random bits in hexadecimal digits: what names a tab, a mutation and its trace. */
export function randomId(): string {
  return hex(crypto.getRandomValues(new Uint8Array(16)), 2);
}
