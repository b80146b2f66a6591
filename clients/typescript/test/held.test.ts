import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { Held } from "../src/held";
import { readPush } from "../src/messages";
import type { Delta, Push, Whole } from "../src/upstream";

const digest = (lines: readonly string[]): string =>
  createHash("sha256").update(lines.join("\n")).digest("hex").slice(0, 32);
const line = (id: number, n: string): string => `{"id":${id},"n":"${n}"}`;
const common = { snapshot: "5:5:", cause: [] };
const whole = (rows: readonly string[], key: readonly string[] = ["id"]): Whole => ({
  event: "snapshot",
  hash: digest(rows),
  key,
  rows,
  ...common,
});
const delta = (from: readonly string[], to: readonly string[], more: Partial<Delta>): Delta => {
  const nothing = { removed: [], changed: [], added: [], at: [] };
  return { event: "delta", from: digest(from), hash: digest(to), ...common, ...nothing, ...more };
};

test("rows that did not change are the same objects", () => {
  const [a, b, c, d] = [line(1, "a"), line(2, "b"), line(3, "c"), line(2, "d")] as const;
  const first = Held.next(undefined, whole([a, b, c]));
  const before = first.value as object[];
  const second = Held.next(first, delta([a, b, c], [a, d, c], { changed: [d] }));
  const after = second.value as object[];
  expect(after).toEqual([{ id: 1, n: "a" }, { id: 2, n: "d" }, { id: 3, n: "c" }]);
  expect([after[0] === before[0], after[1] === before[1], after[2] === before[2]]).toEqual([true, false, true]);
  const third = Held.next(second, whole([c, a]));
  expect((third.value as object[])[1]).toBe(before[0]);
  expect(third.value).toBe(third.value);
});

test("a delta: removed, changed, added at places, in another order", () => {
  const old = [line(1, "a"), line(2, "b"), line(3, "c")];
  const now = [line(4, "d"), line(3, "c"), line(1, "x"), line(5, "e")];
  const message = delta(old, now, {
    removed: ["[2]"],
    changed: [line(1, "x")],
    added: [line(4, "d"), line(5, "e")],
    at: [0, 3],
    order: ["[4]", "[3]", "[1]", "[5]"],
  });
  const held = Held.next(Held.next(undefined, whole(old)), message);
  expect(held.whole({ cause: [], snapshot: "7:7:" })).toEqual({ ...whole(now), snapshot: "7:7:" });
  const next = Held.next(held, delta(now, now.slice(1), { removed: ["[4]"] }));
  expect(next.hash).toBe(digest(now.slice(1)));
});

const rows = [line(1, "a"), line(2, "b")];
test.each<[string, Push]>([
  ["of another result", delta([], rows, {})],
  ["that removes what is not there", delta(rows, rows, { removed: ["[3]"] })],
  ["that changes what is not there", delta(rows, rows, { changed: [line(3, "c")] })],
  ["that orders what is not there", delta(rows, rows, { order: ["[2]", "[3]"] })],
  ["that leads to something else", { ...delta(rows, rows, { removed: ["[1]"] }), hash: "0".repeat(32) }],
  ["a whole result with another hash", { ...whole(rows), hash: "0".repeat(32) }],
  ["what is said to be held and is not", { ...whole([]), unchanged: true }],
])("refused: a delta %s", (_, message) => {
  const held = Held.next(undefined, whole(rows));
  expect(() => Held.next(held, message)).toThrow(expect.objectContaining({ kind: "mismatch" }));
});

test("nothing is held: only a whole result will do", () => {
  expect(() => Held.next(undefined, delta([], [], {}))).toThrow(expect.objectContaining({ kind: "mismatch" }));
  expect(Held.next(undefined, whole([])).value).toEqual([]);
});

test("messages as the documentation has them", () => {
  const text = `{"subscription":"1","hash":"abca1c86706d2955be83cdb9be1899f7","snapshot":"772:772:","cause":[{"change":"x:5"}],"key":["id"],"rows":[
{"id":1,"status":"paid","total":{"$numeric":"12.30"}},
{"id":2,"status":"placed","total":{"$numeric":"99.00"}}
]}`;
  const { subscription, push } = readPush({ name: "update", lines: text.split("\n"), id: "" });
  expect(subscription).toBe("1");
  expect(Held.next(undefined, push).value).toMatchObject([{ id: 1, status: "paid" }, { id: 2, status: "placed" }]);
  const changes = `{"subscription":"1","hash":"4267fc6beaf524d7eaede4d73a23635e","snapshot":"773:773:","cause":[],"from":"abca1c86706d2955be83cdb9be1899f7","removed":[],"at":[2],"changed":[
],"added":[
{"id":4,"status":"placed","total":{"$numeric":"4.20"}}
]}`;
  const next = readPush({ name: "delta", lines: changes.split("\n"), id: "" }).push;
  expect(Held.next(Held.next(undefined, push), next).value).toHaveLength(3);
});

test("one value, whatever is in it", () => {
  const value = '{"a":[1,2],"value":",\\"value\\":"}';
  const hash = digest([value]);
  const text = `{"subscription":"1","hash":"${hash}","snapshot":"1:1:","cause":[],"key":[],"value":${value}}`;
  const { push } = readPush({ name: "snapshot", lines: [text], id: "" });
  const held = Held.next(undefined, push);
  expect(held.value).toEqual({ a: [1, 2], value: ',"value":' });
  expect(Held.next(undefined, held.whole({ cause: [], snapshot: null })).value).toEqual(held.value);
});
