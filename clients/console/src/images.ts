/**
 * A row as it was after each of its changes, from what the changes say.
 *
 * In come its entries, newest first, and the row as the server last knew it, for columns that no entry names (a row
 * that was there before it was tracked): null where it knows of none, undefined before it said so. Out comes for each entry the row after it; null when there was none. A value
 * is the last one written before, else what the next change says was there before it, else the server's.
 */

import { UNAVAILABLE } from "../../typescript/src/values";
import type { Entry, Row } from "./shapes";

const GONE = new Set(["DELETE", "TRUNCATE"]);
const THERE = new Set(["INSERT", "UPDATE", "KEY"]);

export function images(entries: readonly Entry[], known: Row | null | undefined): (Row | null)[] {
  const whole = entries.filter((entry) => entry.op === "INSERT" || entry.op === "DELETE");
  const named = [...whole, ...entries].flatMap((entry) => entry.diff.map((one) => one.column));
  const names = new Set([...Object.keys(known ?? {}), ...named]);
  return entries.map((_, index) => {
    if (!isThere(entries, index, known !== null)) return null;
    const values = [...names].map((name) => [name, valueOf(name, entries, index, known)] as const);
    return Object.fromEntries(values.filter(([, value]) => value !== undefined));
  });
}

/** Whether there was a row after an entry: the last one before says so, else the next one does, else the server. */
function isThere(entries: readonly Entry[], index: number, known: boolean): boolean {
  for (const entry of entries.slice(index)) {
    if (GONE.has(entry.op) || entry.became !== undefined) return false;
    if (THERE.has(entry.op)) return true;
  }
  const next = entries.slice(0, index).findLast((entry) => THERE.has(entry.op) || GONE.has(entry.op));
  return next === undefined ? known : next.op !== "INSERT";
}

function valueOf(name: string, entries: readonly Entry[], index: number, known: Row | null | undefined): unknown {
  for (let older = index; older < entries.length; older += 1) {
    const entry = entries[older] as Entry;
    const one = entry.diff.find((each) => each.column === name);
    if (one?.hidden) return UNAVAILABLE;
    if (one !== undefined && "after" in one) return one.after;
    if (entry.op === "INSERT") return undefined;
  }
  for (let newer = index - 1; newer >= 0; newer -= 1) {
    const entry = entries[newer] as Entry;
    const one = entry.diff.find((each) => each.column === name);
    if (one?.hidden) return UNAVAILABLE;
    if (one !== undefined && "before" in one) return one.before;
    if (entry.op === "INSERT" || GONE.has(entry.op)) return undefined;
  }
  return known && Object.hasOwn(known, name) ? known[name] : undefined;
}
