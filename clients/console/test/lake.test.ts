import { expect, test } from "vitest";
import { doing, verdict } from "../src/lake";
import type { Pipeline } from "../src/shapes";

const NOON = Date.parse("2026-11-16T12:00:00Z");

function lake(more: Partial<Pipeline>): Pipeline {
  return {
    lake: "lake",
    state: "ok",
    batches: 1,
    changes: 7,
    last_batch: "1.0",
    last_at: "2026-11-16T11:48:00Z",
    lag_seconds: 0,
    lag_events: 0,
    equal: true,
    compared_at: "2026-11-16T11:48:00Z",
    problems: [],
    tables: [],
    recent: [],
    ...more,
  };
}

test("a lake that nothing waits for is the database, however long ago that was seen", () => {
  expect(verdict(lake({}), NOON)).toEqual({ word: "lake = database", tone: "good" });
  expect(doing(lake({}), NOON)).toEqual({ word: "ok", tone: "good" });
});

test("a lake that nobody fills is not good", () => {
  const dead = lake({ lag_events: 3047, lag_seconds: 240 });
  expect(verdict(dead, NOON)).toEqual({
    word: "lake = database 12 min ago; 3,047 changes are not in it yet",
    tone: "warn",
  });
  expect(doing(dead, NOON)).toEqual({ word: "no batch for 12 min", tone: "warn" });
});

test("a first change after a quiet time is told, and nothing to worry about", () => {
  const woken = lake({ lag_events: 1, lag_seconds: 2 });
  expect(verdict(woken, NOON)).toEqual({ word: "lake = database 12 min ago; 1 change is not in it yet", tone: "" });
  expect(doing(woken, NOON)).toEqual({ word: "ok", tone: "good" });
});

test("what waits for the next batch right after a comparison changes nothing", () => {
  const busy = lake({ lag_events: 9, lag_seconds: 2, last_at: "2026-11-16T11:59:55Z", compared_at: "2026-11-16T11:59:56Z" });
  expect(verdict(busy, NOON).tone).toBe("good");
  expect(doing(busy, NOON).word).toBe("ok");
});

test("what differs, was never compared or cannot be read says so", () => {
  expect(verdict(lake({ equal: false, lag_events: 9 }), NOON)).toEqual({ word: "lake ≠ database", tone: "bad" });
  expect(verdict(lake({ equal: null, compared_at: null }), NOON)).toEqual({ word: "not compared yet", tone: "" });
  expect(doing(lake({ state: "unreadable" }), NOON)).toEqual({ word: "unreadable", tone: "warn" });
});
