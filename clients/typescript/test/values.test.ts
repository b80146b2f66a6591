import { expect, test } from "vitest";
import { ForgeError } from "../src/errors";
import { Decimal, decodeResult, encodeArgs, UNAVAILABLE } from "../src/values";

test("what JSON would round is exact", () => {
  const row = '{"big":{"$int":"-9007199254740993"},"sum":{"$numeric":"12.30"},"raw":{"$bytes":"AP8="},"n":1}';
  expect(decodeResult(`[${row}]`)).toEqual([
    { big: -9007199254740993n, sum: new Decimal("12.30"), raw: Uint8Array.of(0, 255), n: 1 },
  ]);
});

test.each([
  ['{"$float":"NaN"}', Number.NaN],
  ['{"$float":"-Infinity"}', Number.NEGATIVE_INFINITY],
  ['{"$float":"-0"}', -0],
  ['{"$json":null}', null],
  ['{"$unavailable":true}', UNAVAILABLE],
  ['{"$object":{"$int":[1,{"$int":"2"}]}}', { $int: [1, 2n] }],
  ['{"a":{"b":[{"$numeric":"1E+3"}]}}', { a: { b: [new Decimal("1E+3")] } }],
  ["null", null],
])("%s", (text, value) => {
  const found = decodeResult(text);
  if (typeof value === "number") expect(Object.is(found, value)).toBe(true);
  else expect(found).toEqual(value);
});

test("names of columns are no tags, and none harms the page", () => {
  expect(decodeResult('[{"$a":{"$int":"1"},"n":2}]')).toEqual([{ $a: 1n, n: 2 }]);
  const [row] = decodeResult('[{"__proto__":{"$int":"1"},"constructor":{"$int":"2"}}]') as [object];
  expect(Object.entries(row)).toEqual([
    ["__proto__", 1n],
    ["constructor", 2n],
  ]);
  expect(Object.getPrototypeOf(row)).toBe(Object.prototype);
});

test.each(['{"a":{"$wat":1}}', '{"a":{"$int":"x"}}', '{"a":{"$numeric":"1;2"}}', "[1,", '{"a":{"toString":1,"$x":2}}'])(
  "%s cannot be read",
  (text) => {
    expect(() => decodeResult(text)).toThrow(ForgeError);
  },
);

test("a decimal keeps its text, and compares by its number", () => {
  const price = new Decimal("12.30");
  expect([String(price), price.toNumber(), JSON.stringify(price)]).toEqual(["12.30", 12.3, '{"$numeric":"12.30"}']);
  for (const same of ["12.3", "012.300", "1.23E1", "1230e-2", new Decimal("12.30")]) expect(price.equals(same)).toBe(true);
  for (const other of ["12.31", "-12.3", "123", 12n, "NaN"]) expect(price.equals(other)).toBe(false);
  expect(new Decimal("0.00").equals("-0")).toBe(true);
  expect(new Decimal("NaN").equals("NaN")).toBe(true);
  expect(() => new Decimal("1,5")).toThrow(TypeError);
});

test("arguments are written as annotations take them, the same ones always alike", () => {
  const args = {
    total: new Decimal("1.50"),
    id: 9007199254740993n,
    raw: Uint8Array.of(255),
    at: new Date(0),
    none: undefined,
    list: [1n, undefined, { b: 2n, a: null }],
  };
  const text =
    '{"at":"1970-01-01T00:00:00.000Z","id":9007199254740993,"list":[1,null,{"b":2,"a":null}],"raw":"/w==","total":"1.50"}';
  expect(encodeArgs(args)).toBe(text);
  expect(encodeArgs(Object.fromEntries(Object.entries(args).reverse()))).toBe(text);
  expect(encodeArgs()).toBe("{}");
});

test("bytes may be many", () => {
  const { raw } = JSON.parse(encodeArgs({ raw: new Uint8Array(1_000_000).fill(7) })) as { raw: string };
  expect(atob(raw)).toBe("\x07".repeat(1_000_000));
});
