/** Whether every transaction was heard of, in whatever order the announcements come. */

import fc from "fast-check";
import { expect, it } from "vitest";
import { Heard } from "../src/watcher/heard";

it("misses nothing that was announced, in any order", () => {
  fc.assert(
    fc.property(fc.shuffledSubarray([1, 2, 3, 4, 5], { minLength: 5 }), (order) => {
      const heard = new Heard(7);
      for (const step of order) heard.announced(7 + step - 1, 7 + step);
      expect(heard.missing).toBe(false);
    }),
  );
});

it("misses what was not announced, until it is looked up", () => {
  const heard = new Heard(5);
  heard.seen(6);
  expect(heard.missing).toBe(true);
  heard.announced(6, 7);
  expect(heard.missing).toBe(true);
  heard.announced(5, 6);
  expect(heard.missing).toBe(false);
  heard.announced(8, 9);
  expect(heard.missing).toBe(true);
  heard.forgive();
  expect(heard.missing).toBe(false);
  heard.announced(7, 8);
  expect(heard.missing).toBe(false);
  heard.announced(9, 10);
  expect(heard.missing).toBe(false);
});
