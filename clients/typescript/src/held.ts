/**
 * A result as a client holds it: the line of each row as it was sent, and the hash over them.
 *
 * In come the messages of a subscription, out comes the next result; one whose hash is not the one that the server told
 * is never returned, but thrown as a mismatch. A row whose line did not change is the same object as before.
 */

import { mismatch } from "./errors.js";
import { Digest } from "./sha256.js";
import type { Delta, Holding, Push, Whole } from "./upstream.js";
import { decodeRow, parse } from "./values.js";

const DIGITS = 32;

type Shown = Pick<Push, "cause" | "snapshot">;

/** A line, and what it says, read when it is first needed. */
class Row {
  readonly line: string;
  #key: string | undefined;
  #value: unknown;

  constructor(line: string) {
    this.line = line;
  }

  get value(): unknown {
    if (this.#value === undefined) this.#open([]);
    return this.#value;
  }

  /** The values of these columns as JSON; the columns are the same each time. */
  key(names: readonly string[]): string {
    if (this.#key === undefined) this.#open(names);
    return this.#key as string;
  }

  #open(names: readonly string[]): void {
    const parsed = parse(this.line);
    if (names.length > 0) {
      const columns = (typeof parsed === "object" && parsed !== null ? parsed : {}) as Record<string, unknown>;
      this.#key = JSON.stringify(names.map((name) => columns[name]));
    }
    this.#value ??= this.line.includes('"$') ? decodeRow(parsed) : parsed;
  }
}

export class Held {
  readonly hash: string;
  readonly key: readonly string[];
  readonly #rows: readonly Row[];
  readonly #single: boolean;
  readonly #digest: Digest;
  #byKey: Map<string, Row> | undefined;
  #value: unknown;

  private constructor(rows: readonly Row[], hash: string, key: readonly string[], single: boolean, before?: Held) {
    this.#digest = before ? before.#digest : new Digest();
    const lines = rows.map((row) => row.line).join("\n");
    if (this.#digest.of(lines, DIGITS) !== hash) throw mismatch("the result does not have its hash");
    this.#rows = rows;
    this.hash = hash;
    this.key = key;
    this.#single = single;
  }

  /** The result that a message leads to from the one held; rows that were `known` are taken from there. */
  static next(held: Held | undefined, message: Push, known = held): Held {
    if (message.event !== "delta" && !message.unchanged) return Held.of(message, known);
    const from = message.event === "delta" ? message.from : message.hash;
    if (from !== held?.hash) throw mismatch("the server takes another result for held");
    return message.event === "delta" ? held.after(message) : held;
  }

  /** The result that a message has whole; rows that are in `before` are taken from there. */
  private static of(message: Whole, before: Held | undefined): Held {
    if (message.value !== undefined) return new Held([new Row(message.value)], message.hash, [], true, before);
    if (message.rows === undefined) throw mismatch("a result without rows");
    const known = new Map<string, Row>();
    if (before && !before.#single && String(before.key) === String(message.key)) {
      for (const row of before.#rows) known.set(row.line, row);
    }
    const rows = message.rows.map((line) => known.get(line) ?? new Row(line));
    return new Held(rows, message.hash, message.key, false, before);
  }

  /** The result that a delta leads to. */
  private after(delta: Delta): Held {
    if (this.#single || this.key.length === 0) throw unfit();
    const rows = this.#byKey ?? new Map(this.#rows.map((row) => [row.key(this.key), row]));
    this.#byKey = undefined; // it is changed in place, and is the next one's
    for (const key of delta.removed) if (!rows.delete(key)) throw unfit();
    for (const line of delta.changed) {
      const row = new Row(line);
      const key = row.key(this.key);
      if (!rows.has(key)) throw unfit();
      rows.set(key, row);
    }
    let order = [...rows.keys()];
    delta.added.forEach((line, index) => {
      const row = new Row(line);
      const key = row.key(this.key);
      rows.set(key, row);
      order.splice(delta.at[index] ?? order.length, 0, key);
    });
    if (delta.order !== undefined) order = [...delta.order];
    // A map has its keys in the order in which they came: another order needs another map.
    const placed = delta.added.length > 0 || delta.order !== undefined;
    const found = order.map((key) => rows.get(key));
    if (found.includes(undefined) || rows.size !== order.length) throw unfit();
    const next = new Held(found as Row[], delta.hash, this.key, false, this);
    next.#byKey = placed ? new Map(order.map((key, index) => [key, found[index] as Row])) : rows;
    return next;
  }

  /** The message that says all of it, for somebody who holds nothing. */
  whole(shown: Shown): Whole {
    const lines = this.#rows.map((row) => row.line);
    const body = this.#single ? { value: lines[0] as string } : { rows: lines };
    return { event: "snapshot", hash: this.hash, key: this.key, ...shown, ...body };
  }

  /** The result as values: the same ones each time. */
  get value(): unknown {
    this.#value ??= this.#single ? this.#rows[0]?.value : this.#rows.map((row) => row.value);
    return this.#value;
  }
}

function unfit(): Error {
  return mismatch("the delta does not fit the result");
}

/** Holds the result that messages lead to. After one that does not fit, it is still known, but not relied on. */
export class Keeper implements Holding {
  held: Held | undefined;
  /** Of the result, while it is relied on. */
  #shown: Shown | undefined;

  get hash(): string | undefined {
    return this.#shown && this.held?.hash;
  }

  push(message: Push): void {
    const before = this.#shown && this.held;
    this.#shown = undefined;
    this.held = Held.next(before, message, this.held);
    const { cause, snapshot } = message;
    this.#shown = { cause, snapshot };
  }

  whole(): Whole | undefined {
    return this.#shown && this.held?.whole(this.#shown);
  }
}
