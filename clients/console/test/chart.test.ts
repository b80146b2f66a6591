import { expect, test } from "vitest";
import { late, nice, runs } from "../src/chart";

test("a line ends where nothing was measured, and goes on across a few seconds", () => {
  const gap = Array.from({ length: 25 }, () => null);
  expect(runs([4, null, 5, ...gap, 6])).toEqual([
    [
      [0, 4],
      [2, 5],
    ],
    [[28, 6]],
  ]);
  expect(runs([1, null, null, null, 2])).toHaveLength(1);
  expect(runs([1, null, null, null, null, 2])).toHaveLength(2);
  expect(runs([null, null])).toEqual([]);
});

test("an axis has one unit", () => {
  const ticks = (most: number): string[] => [0, 0.5, 1].map((part) => late(part * nice(most), nice(most)));
  expect(ticks(4100)).toEqual(["0 s", "2.5 s", "5 s"]);
  expect(ticks(700)).toEqual(["0 s", "0.5 s", "1 s"]);
  expect(ticks(42)).toEqual(["0 ms", "25 ms", "50 ms"]);
});
