/**
 * A row's entries as far as they were asked for, newest first and without a gap.
 *
 * In come pages of `forge.history`: the newest one, again and again as the row changes, and older ones on demand. An
 * entry that was there stays while the newest page moves on.
 */

import type { Entry, Timeline } from "./shapes";

/** What `next` leads to comes behind the last entry. */
export type Held = Pick<Timeline, "entries" | "next">;

/** Entries beyond which what is open for long does not grow. */
const MOST = 1000;

/** What is held behind a newer first page; that page alone where something between them was never seen. */
export function renewed(held: Held, page: Held, most = MOST): Held {
  const last = page.entries.at(-1)?.change_id;
  const at = held.entries.findIndex((entry) => entry.change_id === last);
  if (at < 0 || page.next === null) return page;
  const entries = [...page.entries, ...held.entries.slice(at + 1)];
  return entries.length > most && entries.length > held.entries.length ? page : { entries, next: held.next };
}

/** What is held with an older page behind it. */
export function extended(held: Held, page: Held): Held {
  const known = new Set(held.entries.map((entry) => entry.change_id));
  const older: Entry[] = page.entries.filter((entry) => !known.has(entry.change_id));
  return { entries: [...held.entries, ...older], next: page.next };
}

/** Whether it happened to rows, which can be undone, and not to the table or the log. */
export function ofRows({ op }: Entry): boolean {
  return op !== "SCHEMA" && op !== "INVALIDATE";
}

/** Whether all that the log has happened to the table: nothing says that there ever was such a row. */
export function untouched({ entries, next }: Held): boolean {
  return next === null && !entries.some(ofRows);
}
