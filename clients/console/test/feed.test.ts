import { describe, expect, test } from "vitest";
import { changeOf } from "../../typescript/src/rawfeed";
import { Decimal, UNAVAILABLE } from "../../typescript/src/values";
import { filter, toggled } from "../src/filter";
import { keyOf, readable, tableOf } from "../src/key";
import { Ring } from "../src/ring";
import type { Change } from "../src/shapes";

function change(more: Partial<Change> = {}): Change {
  return {
    table: "orders",
    schema: "shop",
    operation: "UPDATE",
    id: "4711",
    timestamp: "2026-11-16T12:00:00.000001Z",
    change_id: "x:1",
    changed_columns: ["status"],
    key: { id: 4711 },
    before: { id: 4711, status: "placed" },
    after: { id: 4711, status: "paid", total: new Decimal("12.30") },
    source: { kind: "postgres-log", name: "x", position: "1", transaction: "771" },
    context: {
      user_id: "Ada",
      function_name: "checkout",
      trace_id: "3f2a",
      session_user: "shop",
      application_name: "web",
      more: { region: "eu" },
    },
    ...more,
  };
}

describe("the filter", () => {
  test.each([
    ["", true],
    ["paid", true],
    ["PAID checkout", true],
    ["paid nowhere", false],
    ["12.30", true],
    ["eu", true],
    ["table:shop.orders op:update user:ada", true],
    ["op:insert", false],
    ["-op:insert", true],
    ["-paid", false],
    ["column:status", true],
    ["column:total", false],
    ["key:4711", true],
    ["key:47", false],
    ["trace:3f", true],
    ["transaction:771", true],
    ["app:web function:check", true],
    ["nofield:paid", false],
  ])("%j", (text, passes) => {
    expect(filter(text)(change())).toBe(passes);
  });

  test("what a change does not say is not found", () => {
    const { context, before, after, key, ...bare } = change();
    expect([context, before, after, key].every(Boolean)).toBe(true);
    expect(filter("user:ada")(bare)).toBe(false);
    expect(filter("-user:ada")(bare)).toBe(true);
  });

  test("a condition is put in and taken out", () => {
    expect(toggled("paid", "op:insert")).toBe("paid op:insert");
    expect(toggled("paid op:insert", "op:insert")).toBe("paid");
  });
});

test("a change of the feed is read as all values are", () => {
  const values = `{"id":{"$int":"9007199254740993"},"$int":{"$numeric":"1.50"},"card":{"$unavailable":true}}`;
  const data = `{"table":"orders","operation":"INSERT","after":${values},"context":{"user_id":"ada","more":${values}}}`;
  const read = { id: 9007199254740993n, $int: new Decimal("1.50"), card: UNAVAILABLE };
  expect(changeOf({ name: "change", lines: [data], id: "" })).toEqual({
    table: "orders",
    operation: "INSERT",
    key: null,
    before: null,
    after: read,
    context: { user_id: "ada", more: read },
  });
});

describe("the ring", () => {
  test("newest first, and no more than it may hold", () => {
    const ring = new Ring(3);
    ring.add([change({ id: "1" }), change({ id: "2" })]);
    ring.add([change({ id: "3" }), change({ id: "4" })]);
    expect(ring.held.map((seen) => [seen.number, seen.change.id])).toEqual([
      [4, "4"],
      [3, "3"],
      [2, "2"],
    ]);
    expect(ring.total).toBe(4);
  });

  test("large rows are cut, and many of them push older ones out", () => {
    const ring = new Ring(2000, 100_000);
    const long = "x".repeat(1_000_000);
    for (let turn = 0; turn < 100; turn += 1) ring.add([change({ after: { id: 1, note: long, other: long } })]);
    expect(ring.held.length).toBeGreaterThan(5);
    expect(ring.held.length).toBeLessThan(20);
    expect(JSON.stringify(ring.held).length).toBeLessThan(300_000);
    expect(ring.held[0]?.number).toBe(100);
  });

  test("who, what and why are cut and counted like the rows", () => {
    const long = "u".repeat(1_000_000);
    const context = { user_id: long, function_name: long, trace_id: long, session_user: long, application_name: long };
    const ring = new Ring(2000, 50_000);
    for (let turn = 0; turn < 100; turn += 1) {
      ring.add([change({ id: long, key: { id: long }, context: { ...context, more: { [long]: long } } })]);
    }
    expect(ring.held.length).toBeLessThan(20);
    expect(JSON.stringify(ring.held).length).toBeLessThan(200_000);
    expect(ring.held[0]?.change.context?.user_id).toMatch(/^u{500,}…$/);
  });

  test("a column may have any name", () => {
    const ring = new Ring();
    ring.add([change({ after: JSON.parse('{"id": 1, "__proto__": {"x": 1}}') })]);
    expect(Object.keys(ring.held[0]?.change.after ?? {})).toEqual(["id", "__proto__"]);
  });

  test("older ones come behind the others, as far as there is room", () => {
    const ring = new Ring(4);
    ring.add([change({ id: "1" }), change({ id: "2" })]);
    ring.addOlder([change({ id: "0" }), change({ id: "-1" }), change({ id: "-2" })]);
    expect(ring.held.map((seen) => [seen.number, seen.change.id])).toEqual([
      [2, "2"],
      [1, "1"],
      [0, "0"],
      [-1, "-1"],
    ]);
    ring.add([change({ id: "3" })]);
    expect(ring.held.map((seen) => seen.number)).toEqual([3, 2, 1, 0]);
  });

  test("a row that is too large by itself is kept nevertheless", () => {
    const ring = new Ring(2000, 10);
    ring.add([change()]);
    expect(ring.held.length).toBe(1);
  });
});

describe("names and keys", () => {
  test.each<[Partial<Change>, string | null, string]>([
    [{}, "4711", "4711"],
    [{ key: { id: 9007199254740993n } }, "9007199254740993", "9007199254740993"],
    [{ key: { region: "eu", number: 7 } }, '{"region":"eu","number":"7"}', "eu · 7"],
    [{ key: { name: "a=b, c" } }, '{"name":"a=b, c"}', "a=b, c"],
    [{ key: null, id: null }, null, ""],
    [{ key: null, id: '["eu","7"]' }, '["eu","7"]', '["eu","7"]'],
  ])("%o", (more, asked, read) => {
    const given = change(more);
    expect(keyOf(given)).toBe(asked);
    expect(readable(given.key, given.id)).toBe(read);
  });

  test("a table is quoted where it must be", () => {
    expect(tableOf({ schema: "shop", table: "orders" })).toBe("shop.orders");
    expect(tableOf({ schema: "Shop", table: 'a "b"' })).toBe('"Shop"."a ""b"""');
  });
});
