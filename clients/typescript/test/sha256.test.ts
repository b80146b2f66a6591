import { createHash } from "node:crypto";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Digest } from "../src/sha256";

const sha256 = (text: string, digits = 64): string => new Digest().of(text, digits);
const expected = (text: string): string => createHash("sha256").update(text).digest("hex");

test("texts of every length around the blocks, and whatever they are made of", () => {
  for (let length = 0; length < 200; length++) expect(sha256("x".repeat(length))).toBe(expected("x".repeat(length)));
  fc.assert(fc.property(fc.string({ unit: "grapheme", maxLength: 400 }), (text) => sha256(text) === expected(text)));
});

test("a text that is larger than any before", () => {
  const large = "é🦊".repeat(100_000);
  expect(sha256(large)).toBe(expected(large));
});

test("one text after another, each like the one before to some place", () => {
  const edits = fc.array(fc.tuple(fc.nat({ max: 30_000 }), fc.nat({ max: 9_000 }), fc.string({ maxLength: 9_000 })));
  fc.assert(
    fc.property(edits, (edits) => {
      const digest = new Digest();
      let text = "é".repeat(4_000) + "x".repeat(20_000);
      for (const [at, removed, added] of edits) {
        text = text.slice(0, at) + added + text.slice(at + removed);
        expect(digest.of(text, 64)).toBe(expected(text));
      }
    }),
    { numRuns: 30 },
  );
});

test("the first digits, as a result's hash has them", () => {
  const rows = [
    '{"id":1,"status":"placed","total":{"$numeric":"12.30"}}',
    '{"id":2,"status":"placed","total":{"$numeric":"99.00"}}',
  ];
  expect(sha256(rows.join("\n"), 32)).toBe("6c94a479c2b01184b2fb821ad4511f25");
});
