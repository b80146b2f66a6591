/** Waits: twice as long each time, never the same for two, never shorter than was asked for. */

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Backoff } from "../src/backoff";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

/** Milliseconds until it went on. */
async function waited(wait: Promise<void>): Promise<number> {
  const begun = Date.now();
  let over = 0;
  void wait.then(() => (over = Date.now()));
  while (over === 0) await vi.advanceTimersByTimeAsync(1);
  return over - begun;
}

test("a wait is from half of its limit to all of it, which doubles until it is reset", async () => {
  const random = vi.spyOn(Math, "random");
  const backoff = new Backoff(100, 400);
  for (const [lot, limit] of [[0, 100], [0.5, 200], [0.999, 400], [0, 400]] as const) {
    random.mockReturnValue(lot);
    expect(await waited(backoff.wait())).toBeCloseTo(limit * (0.5 + lot / 2), -1);
  }
  backoff.reset();
  random.mockReturnValue(0.5);
  expect(await waited(backoff.wait())).toBe(75);
});

test("two that wait do not wait equally long", async () => {
  const waits = new Set<number>();
  for (let i = 0; i < 5; i++) waits.add(await waited(new Backoff(1_000).wait()));
  expect(waits.size).toBeGreaterThan(1);
});

test("what was asked for is waited for first, in milliseconds or in an error's seconds", async () => {
  vi.spyOn(Math, "random").mockReturnValue(0);
  expect(await waited(new Backoff(100).wait(700))).toBe(750);
  expect(await waited(new Backoff(100).wait(0, { retryAfter: 2 }))).toBe(2_050);
});
