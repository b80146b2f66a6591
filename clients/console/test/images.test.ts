import fc from "fast-check";
import { expect, test } from "vitest";
import { UNAVAILABLE } from "../../typescript/src/values";
import { images } from "../src/images";
import type { Difference, Entry, Op, Row } from "../src/shapes";

function entry(op: Op, diff: Difference[], more: Partial<Entry> = {}): Entry {
  const context = {
    user_id: null,
    function_name: null,
    trace_id: null,
    session_user: null,
    application_name: null,
    more: {},
  };
  return { op, at: "", key: { id: 1 }, change_id: String(Math.random()), transaction: "1", diff, context, ...more };
}

test("a life from its beginning to its end", () => {
  const life = [
    entry("DELETE", [
      { column: "id", before: 1 },
      { column: "status", before: "paid" },
    ]),
    entry("UPDATE", [{ column: "status", before: "placed", after: "paid" }]),
    entry("INSERT", [
      { column: "id", after: 1 },
      { column: "status", after: "placed" },
    ]),
    entry("SCHEMA", [], { redefined: ["tracking began"] }),
  ];
  expect(images(life, null)).toEqual([null, { id: 1, status: "paid" }, { id: 1, status: "placed" }, null]);
});

test("a row that was there before it was tracked", () => {
  const life = [
    entry("UPDATE", [{ column: "status", before: "paid", after: "shipped" }]),
    entry("UPDATE", [{ column: "total", before: 1, after: 2 }]),
    entry("SCHEMA", [], { redefined: ["tracking began"] }),
  ];
  expect(images(life, { id: 1, status: "shipped", total: 2 })).toEqual([
    { id: 1, status: "shipped", total: 2 },
    { id: 1, status: "paid", total: 2 },
    { id: 1, status: "paid", total: 1 },
  ]);
});

test("hidden values stay hidden", () => {
  expect(images([entry("UPDATE", [{ column: "card", hidden: true }])], { id: 1 })).toEqual([
    { id: 1, card: UNAVAILABLE },
  ]);
});

test("any life is told again from its differences", () => {
  const columns = ["a", "b", "c"];
  const write = fc.record({ a: fc.nat(3), b: fc.nat(3), c: fc.nat(3) });
  fc.assert(
    fc.property(fc.array(fc.option(write), { minLength: 1, maxLength: 12 }), fc.nat(12), (wanted, from) => {
      const entries: Entry[] = [];
      const rows: (Row | null)[] = [];
      let row: Row | null = null;
      for (const next of wanted) {
        if (next === null && row === null) continue;
        const names = columns.filter((name) => next === null || row === null || next[name as "a"] !== row[name]);
        if (names.length === 0) continue;
        const diff = names.map((column) => ({
          column,
          ...(row ? { before: row[column] } : {}),
          ...(next ? { after: next[column as "a"] } : {}),
        }));
        entries.unshift(entry(row === null ? "INSERT" : next === null ? "DELETE" : "UPDATE", diff));
        rows.unshift(next);
        row = next;
      }
      // Only the newest page of it is known, and what the server has now.
      const page = entries.slice(0, from + 1);
      expect(images(page, row)).toEqual(rows.slice(0, from + 1));
    }),
  );
});

test("a row of which nothing is known but its table was never there", () => {
  const table = [entry("SCHEMA", [], { redefined: ["tracking began"] })];
  expect(images(table, null)).toEqual([null]);
  expect(images(table, { id: 1 })).toEqual([{ id: 1 }]);
});
