import { describe, expect, test } from "vitest";
import { Decimal, decodeValue } from "../../typescript/src/values";
import { Beginning, brief, shown } from "../src/value";

describe("a value as text", () => {
  test.each<[unknown, string, string]>([
    [null, "null", "null"],
    ["placed", "text", "placed"],
    ["***", "hidden", "***"],
    [7, "number", "7"],
    [-0, "number", "-0"],
    [9007199254740993n, "number", "9007199254740993"],
    [true, "boolean", "true"],
    [{ $int: "9007199254740993" }, "number", "9007199254740993"],
    [{ $numeric: "12.30" }, "number", "12.30"],
    [{ $float: "NaN" }, "number", "NaN"],
    [{ $bytes: "3q2+7w==" }, "bytes", "\\xdeadbeef"],
    [new Uint8Array([222, 173]), "bytes", "\\xdead"],
    [{ $unavailable: true }, "hidden", "not in the log"],
    [{ $json: null }, "null", "null"],
    [{ $object: { $int: "x" } }, "json", '{"$int": "x"}'],
    [{ a: [1, { $numeric: "1.50" }], b: "x" }, "json", '{"a": [1, 1.50], "b": "x"}'],
    [[{ $float: "NaN" }, { $bytes: "3q0=" }], "json", '[NaN, "\\\\xdead"]'],
  ])("%o", (value, kind, text) => {
    const decoded = value instanceof Uint8Array ? value : decodeValue(structuredClone(value));
    expect(shown(decoded)).toMatchObject({ kind, text });
  });
});

describe("what is kept of a value", () => {
  test("a long text is its beginning", () => {
    const kept = brief("x".repeat(5_000_000), 100) as Beginning;
    expect(kept).toBeInstanceOf(Beginning);
    expect([kept.text.length, kept.of]).toEqual([100, 5_000_000]);
    expect(shown(kept)).toEqual({ kind: "text", text: "x".repeat(100), of: 5_000_000 });
  });

  test("a long document too", () => {
    const kept = brief({ list: Array.from({ length: 1000 }, (_, index) => index) }, 100) as Beginning;
    expect(kept.text).toMatch(/^\{"list": \[0, 1, 2/);
    expect(kept.text.length).toBe(100);
  });

  test("so are many bytes, and all of them are counted", () => {
    const kept = brief(new Uint8Array(1_000_000)) as Beginning;
    expect([kept.text.length, kept.of]).toEqual([4096, 2_000_002]);
  });

  test("what is short stays what it is", () => {
    const small = new Decimal("1.5");
    expect(brief(small)).toBe(small);
    expect(brief("paid")).toBe("paid");
  });
});
