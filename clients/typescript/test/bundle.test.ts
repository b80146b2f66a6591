import { existsSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

/** Bytes, compressed. */
const MOST = 12_000;
const BUILT = resolve(import.meta.dirname, "../dist/index.js");

test("the built client is small, one file, and needs nothing else", () => {
  expect(existsSync(BUILT), "build it first: npm run build").toBe(true);
  const code = readFileSync(BUILT);
  expect(gzipSync(code, { level: 9 }).length).toBeLessThanOrEqual(MOST);
  expect(code.toString()).not.toMatch(/\bimport\b\s*[({"'`*]/);
});
