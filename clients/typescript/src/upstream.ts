/**
 * Between a live result and what brings it: the tab's own session, or another tab that has one.
 *
 * Whoever wants a result is a `Sink` and is added to an `Upstream`, which pushes messages into it until it is removed.
 * Messages are plain data (rows are the lines of text that the server wrote), so that they can be posted to other tabs
 * as they are. What always holds: a sink checks each message itself, and never shows what it could not prove.
 */

import type { ForgeError } from "./errors.js";
import type { Live } from "./live.js";
import type { Readable } from "./readable.js";
import { Digest } from "./sha256.js";

export type Mode = "full" | "delta";

/** A query with its arguments: what is the same for all tabs is asked of the server once. */
export interface Asked {
  readonly query: string;
  /** JSON, as `encodeArgs` writes it: the same arguments are the same text. */
  readonly args: string;
  readonly mode: Mode;
}

/** The same text for the same question. */
export function keyOf({ query, args, mode }: Asked): string {
  return `${mode} ${query} ${args}`;
}

/** A change that made a query run again: which, by whom, when, in which transaction. */
export interface Cause {
  readonly change: string;
  readonly table: string;
  readonly op: string;
  readonly at: string;
  readonly user: string | null;
  readonly function: string | null;
  readonly trace: string | null;
  readonly xid: string | null;
}

interface Common {
  /** Of the result that one holds then. */
  readonly hash: string;
  /** The transactions that it shows, as PostgreSQL writes a pg_snapshot. */
  readonly snapshot: string | null;
  readonly cause: readonly Cause[];
}

/** A whole result: `rows` or `value`; neither when it is the one held. */
export interface Whole extends Common {
  readonly event: "snapshot" | "update";
  /** The columns that name a row. */
  readonly key: readonly string[];
  readonly rows?: readonly string[];
  readonly value?: string;
  readonly unchanged?: boolean;
}

/** What leads from the result with the hash `from` to the one with `hash`. Keys are JSON texts. */
export interface Delta extends Common {
  readonly event: "delta";
  readonly from: string;
  readonly removed: readonly string[];
  readonly changed: readonly string[];
  readonly added: readonly string[];
  readonly at: readonly number[];
  readonly order?: readonly string[] | undefined;
}

export type Push = Whole | Delta;

/** Takes messages. */
interface Taking {
  /** Of the result that is held; undefined when there is none, or it cannot be relied on. */
  readonly hash: string | undefined;
  /** Throws a ForgeError of kind `mismatch` when it does not fit; `hash` is undefined then: it is asked for again. */
  push(message: Push): void;
}

/** Takes the messages of one subscription. */
export interface Sink extends Taking {
  readonly asked: Asked;
  /** Nothing new comes now; nothing more at all when it is `final`, and the sink was removed. */
  fault(error: ForgeError, final: boolean): void;
}

/** Can hand on what it holds. */
export interface Holding extends Taking {
  /** The message that says all of it; undefined when nothing is held, or it cannot be relied on. */
  whole(): Whole | undefined;
}

export type Holder = Sink & Holding;

/** Brings results. Adding what is there and removing what is not change nothing. */
export interface Upstream {
  add(sink: Sink): void;
  remove(sink: Sink): void;
  /** A good moment to connect, if one waits to: the page is seen again, or the network is back. */
  wake(): void;
  close(): void;
}

/** One query or mutation to be run now. */
export interface Call {
  readonly kind: "query" | "mutation";
  readonly name: string;
  /** JSON, as `encodeArgs` writes it. */
  readonly args: string;
  /** Of a query: transactions that the result must show. */
  readonly after?: string | undefined;
  /** Of a mutation: the server runs what has the same key once. */
  readonly key?: string | undefined;
}

/** The trace of a mutation's changes: its key, or where that cannot be one, the first half of its SHA-256. */
export function traceOf(key: string): string {
  return /^[0-9a-f]{32}$/.test(key) ? key : new Digest().of(key, 32);
}

/** The answer; `result` is JSON text, for `decodeResult`. */
export interface Answer {
  readonly result: string;
  /** Of a mutation that wrote something. */
  readonly xid: string | null;
  /** Of a query. */
  readonly hash: string | null;
}

/** Runs calls: throws a ForgeError. */
export type Caller = (call: Call) => Promise<Answer>;

/** What is shown on top of what the server sent: the changes of mutations under way, of one live result. */
export interface Overlay {
  /** A result is proven, and nobody was told yet: forget the changes that it shows. */
  settle(snapshot: string | null, cause: readonly Cause[]): void;
  /** What to show for it; the very value that is given when there is nothing to change. */
  view(base: unknown): unknown;
}

/** Whether a snapshot shows a transaction: it is below the second number, and not in the list. */
export function shows(snapshot: string | null, xid: string): boolean {
  const [, below = "0", running = ""] = (snapshot ?? "").split(":");
  return BigInt(xid) < BigInt(below) && !running.split(",").includes(xid);
}

/** A mutation that was not answered yet. */
export interface Pending {
  readonly key: string;
  readonly name: string;
  /** How often it was sent without an answer. */
  readonly tries: number;
  /** Why it was not answered; undefined before the first try ended. */
  readonly error: ForgeError | undefined;
}

/** Runs mutations: each once, however often it must be sent. */
export interface Mutations {
  /** Resolves with the answer when it is done, rejects when the server refuses it. */
  run(call: Call, optimistic?: Optimistic): Promise<Answer>;
  readonly pending: Readable<readonly Pending[]>;
  /** A good moment to send what waits. */
  wake(): void;
  close(): void;
}

/** Says what a mutation will change, by what is shown now; runs again whenever that changes, so it only computes. */
export type Optimistic = (tx: Transaction) => void;

export interface Transaction {
  /** The live result is shown as `change` makes it; what it is given stays as it is. */
  update<T>(live: Live<T>, change: (data: T) => T): void;
}
