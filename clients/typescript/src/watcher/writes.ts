/**
 * Which rows were written, and which rows a query reads: by table, and where it is known by key.
 *
 * What always holds: a set may name more than was written or is read, never less. So a query whose `Rows` do not meet a
 * write's cannot have changed by it. Sets are plain Maps and Sets, and can be posted to other tabs as they are.
 */

import type { SqlValue } from "./values.js";

/** Keys of the table's rows as `keyOf` writes them, or all of them. */
export type Keys = ReadonlySet<string> | "all";
export type Rows = ReadonlyMap<string, Keys>;

/** A name that no table has: whoever reads it, reads everything. */
const EVERYTHING = "*";
/** A write of more rows than this is taken for one of the whole table: the message stays small. */
export const MOST_KEYS = 1_000;

/** All rows of all tables: after a change of the schema, or of nobody knows what. */
export const everything: Rows = new Map([[EVERYTHING, "all"]]);

/** The same text for values that SQLite takes for equal: 5, 5.0 and 5n. */
export function keyOf(values: readonly SqlValue[]): string {
  return values.map((value) => (value instanceof Uint8Array ? `x${value.join(".")}` : String(value))).join("\n");
}

/** Whether a row may be in both. */
export function meet(some: Rows, others: Rows): boolean {
  if (some.has(EVERYTHING) || others.has(EVERYTHING)) return true;
  for (const [table, keys] of some) {
    const more = others.get(table);
    if (more !== undefined && (keys === "all" || more === "all" || overlap(keys, more))) return true;
  }
  return false;
}

function overlap(some: ReadonlySet<string>, others: ReadonlySet<string>): boolean {
  const [few, many] = some.size < others.size ? [some, others] : [others, some];
  for (const key of few) if (many.has(key)) return true;
  return false;
}

/** Gathers what a transaction writes. */
export class Gathered {
  #rows = new Map<string, Set<string> | "all">();

  add(table: string, key: string): void {
    const keys = this.#rows.get(table);
    if (keys === undefined) this.#rows.set(table, new Set([key]));
    else if (keys === "all") return;
    else if (keys.size < MOST_KEYS) keys.add(key);
    else this.#rows.set(table, "all");
  }

  /** Whether more keys of the table make no difference. */
  hasAll(table: string): boolean {
    return this.#rows.get(table) === "all";
  }

  addAll(table: string): void {
    this.#rows.set(table, "all");
  }

  addRows(rows: Rows): void {
    for (const [table, keys] of rows) {
      if (keys === "all") this.addAll(table);
      else for (const key of keys) this.add(table, key);
    }
  }

  /** What was gathered since the last time. */
  take(): Rows {
    const rows = this.#rows;
    this.#rows = new Map();
    return rows;
  }
}
