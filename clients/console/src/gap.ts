/** How far an answer is from the instant that was asked for, in the words of the command line. */

import type { PastRow } from "./shapes";

/** The most changes that the server counts. */
const COUNTED = 1000;

/** Nothing when the answer is exactly of the instant. */
export function gap(answer: Omit<PastRow, "table" | "row">): string {
  const { asked, at, gap_seconds: seconds, changes_between: between, changes_unsure: unsure } = answer;
  const number = (changes: number) =>
    changes === 0
      ? "no change"
      : `${answer.changes_capped && changes >= COUNTED ? "more than " : ""}${changes} ${changes === 1 ? "change" : "changes"}`;
  const parts: string[] = [];
  if (asked !== at) {
    parts.push(`${seconds.toFixed(seconds < 0.1 ? 3 : seconds < 100 ? 1 : 0)} s before`);
    if (between !== null) parts.push(`${number(between)} ${between < 2 ? "lies" : "lie"} between`);
  }
  if (unsure) parts.push(`${number(unsure)} may have been committed after`);
  return parts.length ? ` (${parts.join("; ")})` : "";
}
