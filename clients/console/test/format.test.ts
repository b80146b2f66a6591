import { describe, expect, test } from "vitest";
import { ago, bytes, count, duration, significant } from "../src/format";

const NOON = Date.parse("2026-11-16T12:00:00Z");

describe("numbers that people read", () => {
  test.each<[string, string]>([
    [count(12_345), "12,345"],
    [count(841_120), "841k"],
    [count(9_412_000), "9.4M"],
    [count(null), "–"],
    [significant(0.42), "0.42"],
    [significant(420.4), "420"],
    [bytes(512), "512 B"],
    [bytes(16_384), "16 kB"],
    [bytes(7_340_032), "7.0 MB"],
    [duration(0.0021), "2.1 ms"],
    [duration(2.14), "2.1 s"],
    [duration(300), "5 min"],
    [duration(10_800), "3 h"],
    [duration(null), "–"],
    [ago("2026-11-16T11:59:59.500000Z", NOON), "now"],
    [ago("2026-11-16T11:59:20Z", NOON), "40 s ago"],
    [ago("2026-11-16T09:00:00Z", NOON), "3 h ago"],
  ])("%s", (given, wanted) => {
    expect(given).toBe(wanted);
  });
});
