import { expect, test } from "vitest";
import { gap } from "../src/gap";

const answer = {
  asked: "2026-11-10T12:00:00.000000Z",
  at: "2026-11-10T11:59:57.100000Z",
  gap_seconds: 2.9,
  changes_between: 14,
  changes_unsure: 0,
  changes_capped: false,
};

test.each([
  [{}, " (2.9 s before; 14 changes lie between)"],
  [{ changes_between: 0, gap_seconds: 0.0412 }, " (0.041 s before; no change lies between)"],
  [{ changes_between: 1 }, " (2.9 s before; 1 change lies between)"],
  [{ changes_between: 1000, changes_capped: true }, " (2.9 s before; more than 1000 changes lie between)"],
  [{ changes_between: null, changes_unsure: null }, " (2.9 s before)"],
  [{ at: answer.asked, gap_seconds: 0, changes_between: 0 }, ""],
  [{ at: answer.asked, gap_seconds: 0, changes_unsure: 2 }, " (2 changes may have been committed after)"],
])("an answer says how far it is from the instant asked for: %o", (less, words) => {
  expect(gap({ ...answer, ...less })).toBe(words);
});
