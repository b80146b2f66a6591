import { describe, expect, test } from "vitest";
import type { Entry } from "../src/shapes";
import { extended, type Held, renewed, untouched } from "../src/timeline";

/** Entries from `newest` down to `oldest`, with more behind them unless the last is the first of all. */
function held(newest: number, oldest: number): Held {
  const entries: Entry[] = [];
  for (let number = newest; number >= oldest; number -= 1) entries.push({ change_id: String(number) } as Entry);
  return { entries, next: oldest > 1 ? String(oldest) : null };
}

describe("a row's entries", () => {
  test("one that leaves the newest page stays before the older ones", () => {
    const grown = extended(held(9, 7), held(6, 4));
    expect(renewed(grown, held(10, 8))).toEqual(held(10, 4));
    expect(renewed(renewed(grown, held(11, 9)), held(13, 11))).toEqual(held(13, 4));
  });

  test("where some were never seen there is no gap, but the newest page alone", () => {
    expect(renewed(held(9, 4), held(13, 11))).toEqual(held(13, 11));
    expect(renewed(held(9, 4), { entries: [], next: null })).toEqual({ entries: [], next: null });
  });

  test("a page that comes twice is there once", () => {
    const grown = extended(held(9, 7), held(6, 4));
    expect(extended(grown, held(6, 4))).toEqual(held(9, 4));
  });

  test("those of a row that changes on and on do not become ever more", () => {
    expect(renewed(held(9, 4), held(10, 8), 6)).toEqual(held(10, 8));
    expect(renewed(held(9, 4), held(9, 7), 6)).toEqual(held(9, 4));
  });
});

test("what happened to its table alone says nothing of a row", () => {
  const [table, row] = [{ op: "SCHEMA" } as Entry, { op: "INSERT" } as Entry];
  expect(untouched({ entries: [table], next: null })).toBe(true);
  expect(untouched({ entries: [], next: null })).toBe(true);
  expect(untouched({ entries: [table, row], next: null })).toBe(false);
  expect(untouched({ entries: [table], next: "older" })).toBe(false);
});
