import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { copied, cut, pieces, visible } from "../src/text";

/** Any text at all, halves of pairs too; and any that is well formed. */
const UNITS = fc.array(fc.nat(0xffff), { maxLength: 40 }).map((codes) => String.fromCharCode(...codes));
const WHOLE = fc
  .array(fc.nat(0x10ffff).filter((code) => code < 0xd800 || code > 0xdfff), { maxLength: 40 })
  .map((codes) => String.fromCodePoint(...codes));

/** Throws for half of a pair. */
const wellFormed = (text: string) => encodeURIComponent(text) !== null;

describe("what cannot be seen is shown", () => {
  test.each([
    ["a\u0000b", "a\\x00b"],
    ["\u001b[31m", "\\x1b[31m"],
    ["one\ntwo\tthree", "one↵two→three"],
    ["\u007f\u0085", "\\x7f\\x85"],
    ["\u202egnp.exe", "\\u202egnp.exe"],
    ["zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"],
    ["half \ud83d.", "half \ufffd."],
    ["<script>alert(1)</script>", "<script>alert(1)</script>"],
    ["שלום", "שלום"],
  ])("%j is %j", (given, shown) => {
    expect(visible(given)).toBe(shown);
  });

  test("families stay together", () => {
    expect(visible("👩‍👩‍👧‍👦")).toBe("👩‍👩‍👧‍👦");
  });

  test("lines are lines where they may be", () => {
    expect(pieces("a\nb\u0001", true)).toEqual([
      { text: "a\nb", control: false },
      { text: "\\x01", control: true },
    ]);
  });

  test("whatever comes, nothing unseen is left", () => {
    fc.assert(
      fc.property(UNITS, (text) => {
        expect(visible(text)).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/u);
        expect(wellFormed(visible(text))).toBe(true);
      }),
    );
  });
});

test("a cut never halves a character", () => {
  fc.assert(
    fc.property(WHOLE, fc.integer({ min: 1, max: 50 }), (text, most) => {
      expect(cut(text, most).length).toBeLessThanOrEqual(most);
      expect(text.startsWith(cut(text, most))).toBe(true);
      expect(wellFormed(cut(text, most))).toBe(true);
    }),
  );
});

test("a copy is the same text", () => {
  fc.assert(
    fc.property(WHOLE, (text) => {
      expect(copied(text)).toBe(text);
    }),
  );
});
