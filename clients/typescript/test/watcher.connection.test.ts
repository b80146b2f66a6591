/** What a connection reads and writes, told by SQLite itself, against what really changed. */

import sqlite3InitModule, { type Sqlite3Static } from "@sqlite.org/sqlite-wasm";
import fc from "fast-check";
import { beforeAll, describe, expect, it } from "vitest";
import { ForgeError } from "../src/errors";
import { Connection } from "../src/watcher/connection";
import { lineOf, type Params } from "../src/watcher/values";
import { everything, keyOf, meet, type Rows } from "../src/watcher/writes";

let sqlite3: Sqlite3Static;
beforeAll(async () => {
  sqlite3 = await sqlite3InitModule();
});

const SCHEMA = `
  CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INT, status TEXT, total TEXT);
  CREATE TABLE customers (name TEXT PRIMARY KEY, city TEXT);
  CREATE TABLE lines (place INT, sku TEXT, order_id INT REFERENCES orders ON UPDATE CASCADE ON DELETE CASCADE, n INT,
                      PRIMARY KEY (order_id, place)) WITHOUT ROWID;
  CREATE TABLE notes (body TEXT);
  CREATE TABLE folded (word TEXT COLLATE NOCASE PRIMARY KEY, n INT);
  CREATE TABLE counts (day INT PRIMARY KEY, n INT);
  CREATE VIEW paid AS SELECT * FROM orders WHERE status = 'paid';
  CREATE TRIGGER counted AFTER INSERT ON orders BEGIN
    INSERT INTO counts VALUES (new.customer, 1) ON CONFLICT DO UPDATE SET n = n + 1;
  END;
  CREATE VIRTUAL TABLE texts USING fts5(body);
  CREATE TABLE computed (double INT GENERATED ALWAYS AS (id * 2), id TEXT PRIMARY KEY);
`;

function opened(): Connection {
  const connection = new Connection(sqlite3, new sqlite3.oo1.DB(":memory:"));
  connection.exec(SCHEMA);
  connection.written();
  return connection;
}

function shown(rows: Rows): Record<string, string[] | "all"> {
  return Object.fromEntries([...rows].map(([table, keys]) => [table, keys === "all" ? keys : [...keys].sort()]));
}

describe("what is written", () => {
  it.each([
    ["INSERT INTO orders VALUES (1, 7, 'paid', '1.00')", { orders: ["1"], counts: ["7"] }],
    ["INSERT OR REPLACE INTO customers VALUES ('ada', 'Paris')", { customers: ["ada"] }],
    ["INSERT INTO lines VALUES (2, 'x', NULL, 1)", {}],
    ["INSERT INTO notes VALUES ('one'), ('two')", { notes: ["1", "2"] }],
    ["INSERT INTO texts VALUES ('hello')", { texts: "all" }],
    ["INSERT INTO computed (id) VALUES ('k')", { computed: ["k"] }],
    ["INSERT INTO orders SELECT 9007199254740993, 1, 'x', 'y'", { orders: ["9007199254740993"], counts: ["1"] }],
  ])("%s", (sql, rows) => {
    const connection = opened();
    try {
      connection.run(sql);
    } catch (error) {
      expect(rows).toEqual({});
    }
    expect(shown(connection.written())).toEqual(rows);
    expect(shown(connection.written())).toEqual({});
  });

  it("is both keys of a row that gets another one, and what a cascade removes", () => {
    const connection = opened();
    connection.exec("INSERT INTO orders VALUES (1, 7, 'a', ''), (2, 7, 'b', '')");
    connection.exec("INSERT INTO lines VALUES (5, 'x', 2, 1)");
    connection.written();
    connection.run("UPDATE orders SET id = 9 WHERE id = 1");
    expect(shown(connection.written())).toEqual({ orders: ["1", "9"] });
    connection.run("DELETE FROM orders");
    expect(shown(connection.written())).toEqual({ orders: ["2", "9"], lines: ["2\n5"] });
  });

  it("is what REPLACE removes", () => {
    const connection = opened();
    connection.exec("CREATE TABLE pairs (a INTEGER PRIMARY KEY, b UNIQUE); INSERT INTO pairs VALUES (1, 1), (2, 2)");
    connection.written();
    connection.run("INSERT OR REPLACE INTO pairs VALUES (1, 2)");
    expect(shown(connection.written())).toEqual({ pairs: ["1", "2"] });
  });

  it("is nothing when it is rolled back, and everything when the schema changes", () => {
    const connection = opened();
    expect(() => connection.exec("INSERT INTO notes VALUES ('x'); INSERT INTO nowhere VALUES (1)")).toThrow("nowhere");
    expect(connection.select("SELECT * FROM notes")).toEqual([]);
    expect(shown(connection.written())).toEqual({});
    connection.exec("ALTER TABLE notes ADD COLUMN at TEXT");
    expect(connection.written()).toBe(everything);
  });

  it("is the whole table when it is many rows", () => {
    const connection = opened();
    const numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)";
    connection.run(`${numbers} INSERT INTO notes SELECT i FROM n`);
    expect(shown(connection.written())).toEqual({ notes: "all" });
  });
});

describe("what is read", () => {
  it.each<[string, Params, Record<string, string[] | "all">]>([
    ["SELECT * FROM orders WHERE id = ?", [5], { orders: ["5"] }],
    ["SELECT status FROM orders WHERE id = :id", { ":id": 5n }, { orders: ["5"] }],
    ["SELECT * FROM orders WHERE rowid = ?", [9007199254740993n], { orders: ["9007199254740993"] }],
    ["SELECT * FROM customers WHERE name = ?", ["ada"], { customers: ["ada"] }],
    ["SELECT * FROM customers WHERE name = 'ada' AND city > ''", [], { customers: ["ada"] }],
    ["SELECT * FROM lines WHERE order_id = ? AND place = ?", [1, 2], { lines: ["1\n2"] }],
    ["SELECT count(*) FROM orders WHERE id = ?", [5], { orders: ["5"] }],
    ["SELECT * FROM orders WHERE id = 1 UNION ALL SELECT * FROM orders WHERE id = 2", [], { orders: ["1", "2"] }],
    ["SELECT * FROM orders LEFT JOIN customers ON name = total WHERE id = ?", [5], { orders: ["5"], customers: "all" }],
    ["SELECT (SELECT status FROM orders WHERE id = ?), count(*) FROM notes", [5], { orders: ["5"], notes: "all" }],
    ["SELECT * FROM notes WHERE rowid = ?", [3], { notes: ["3"] }],
    // not by key, or not surely
    ["SELECT * FROM orders WHERE id > ?", [5], { orders: "all" }],
    ["SELECT * FROM orders WHERE id = ? + 1", [5], { orders: "all" }],
    ["SELECT * FROM orders WHERE id = CAST(? AS INTEGER)", [5.7], { orders: "all" }],
    ["SELECT * FROM orders WHERE id = ?", ["5"], { orders: "all" }],
    ["SELECT * FROM customers WHERE name = ?", [5], { customers: "all" }],
    ["SELECT * FROM customers WHERE rowid = ?", [5], { customers: "all" }],
    ["SELECT * FROM lines WHERE order_id = ?", [1], { lines: "all" }],
    ["SELECT * FROM folded WHERE word = ?", ["a"], { folded: "all" }],
    ["SELECT * FROM orders WHERE id = ? OR status = 'x'", [5], { orders: "all" }],
    ["SELECT a.* FROM orders AS a, orders AS b WHERE a.id = ?", [5], { orders: "all" }],
    ["SELECT count(*) FROM orders", [], { orders: "all" }],
    ["SELECT * FROM paid", [], { orders: "all", paid: "all" }],
    ["SELECT * FROM texts WHERE texts MATCH 'hello'", [], { texts: "all" }],
    ["SELECT 1 FROM orders WHERE id IN (SELECT n FROM counts WHERE day = ?)", [5], { orders: "all", counts: ["5"] }],
  ])("%s", (sql, params, rows) => {
    expect(shown(opened().look(sql, params).reads)).toEqual(rows);
  });
});

it("watches one statement that reads, and nothing else", () => {
  const connection = opened();
  const others = ["DELETE FROM notes RETURNING *", "SELECT 1; DELETE FROM notes", "SELECT * FROM no", "SELEC", "", "BEGIN"];
  connection.run("INSERT INTO notes VALUES ('é')");
  for (const sql of others) expect(() => connection.look(sql), sql).toThrow(ForgeError);
  expect(connection.look("SELECT 'é' AS e FROM notes ; ").rows).toEqual([{ e: "é" }]);
  expect(connection.look("-- é\nSELECT body FROM notes").rows).toEqual([{ body: "é" }]);
});

it("does not let in what a connection has for itself", () => {
  const connection = opened();
  const own = ["BEGIN", "COMMIT", "ATTACH ':memory:' AS other", "CREATE TEMP TABLE t (a)", "PRAGMA foreign_keys = OFF"];
  for (const sql of own) {
    expect(() => connection.run(sql), sql).toThrow("is not let in");
  }
  expect(connection.select("PRAGMA table_info(notes)")).toHaveLength(1);
  connection.run("VACUUM");
});

it("runs each step of the schema once", () => {
  const connection = new Connection(sqlite3, new sqlite3.oo1.DB(":memory:"));
  connection.migrate(["CREATE TABLE a (x)"]);
  connection.migrate(["CREATE TABLE a (x)", "CREATE TABLE b (x)"]);
  expect(connection.select("SELECT count(*) AS n FROM sqlite_schema")).toEqual([{ n: 2 }]);
  expect(() => connection.migrate(["CREATE TABLE a (x)"])).toThrow("this page knows 1");
  expect(() => connection.migrate(["", "", "CREATE TABLE c (x); CREATE TABLE c (x)"])).toThrow("already exists");
  expect(connection.select("SELECT count(*) AS n FROM sqlite_schema")).toEqual([{ n: 2 }]);
});

it("keeps values exact", () => {
  const connection = opened();
  const values = ["é\u0000\u202e", 1.5, 9007199254740991, 9007199254740993n, -9223372036854775808n, null, true];
  for (const value of values) {
    const [row] = connection.select("SELECT ? AS v", [value]);
    expect(row?.["v"]).toEqual(value === true ? 1 : value);
  }
  expect(connection.select("SELECT ? AS v", [Uint8Array.of(0, 255)])).toEqual([{ v: Uint8Array.of(0, 255) }]);
  expect(lineOf({ v: Infinity })).not.toBe(lineOf({ v: null }));
});

/** Statements and queries over few keys, so that they meet often. */
const small = fc.integer({ min: 1, max: 4 });
const word = fc.constantFrom("a", "b", "A", "1", "2");
const write = fc.oneof(
  fc.tuple(small, small, word).map(([id, n, word]) => `REPLACE INTO orders VALUES (${id}, ${n}, '${word}', '')`),
  fc.tuple(small, word).map(([id, status]) => `UPDATE orders SET status = '${status}' WHERE id = ${id}`),
  fc.tuple(small, small).map(([id, other]) => `UPDATE OR IGNORE orders SET id = ${id} WHERE id = ${other}`),
  fc.tuple(small, small).map(([id, other]) => `UPDATE OR REPLACE orders SET id = ${id} WHERE id = ${other}`),
  small.map((id) => `DELETE FROM orders WHERE id = ${id}`),
  fc.tuple(word, word).map(([name, city]) => `INSERT OR REPLACE INTO customers VALUES ('${name}', '${city}')`),
  fc.tuple(word, word).map(([to, from]) => `UPDATE OR REPLACE customers SET name = '${to}' WHERE name = '${from}'`),
  fc
    .tuple(small, word, small)
    .map(([n, sku, id]) => `INSERT OR IGNORE INTO lines SELECT ${n}, '${sku}', id, 1 FROM orders WHERE id = ${id}`),
  fc.tuple(small, small).map(([n, place]) => `UPDATE lines SET n = ${n} WHERE place = ${place}`),
  fc.tuple(word, small).map(([text, n]) => `INSERT OR REPLACE INTO folded VALUES ('${text}', ${n})`),
  word.map((text) => `INSERT INTO texts VALUES ('${text}')`),
  fc.constant("DELETE FROM customers"),
);
const query = fc.oneof(
  fc.tuple(
    fc.constantFrom(
      "SELECT * FROM orders WHERE id = ?",
      "SELECT * FROM orders WHERE id = ? AND status = 'a'",
      "SELECT o.*, city FROM orders AS o LEFT JOIN customers ON name = status WHERE o.id = ?",
      "SELECT * FROM orders WHERE id IN (?, 2)",
      "SELECT * FROM orders WHERE id = ? OR id = 3",
      "SELECT * FROM lines WHERE order_id = ? ORDER BY place",
      "SELECT max(n), count(*) FROM lines WHERE order_id = ?1 AND place = ?1",
      "SELECT * FROM counts WHERE day = ?",
      "SELECT *, (SELECT city FROM customers WHERE name = 'a') FROM counts WHERE day = ?",
      "SELECT status FROM orders WHERE id = (SELECT customer FROM orders WHERE id = ?)",
    ),
    fc.oneof(small, small.map(String), small.map(BigInt)),
  ),
  fc.tuple(
    fc.constantFrom(
      "SELECT * FROM customers WHERE name = ?",
      "SELECT * FROM folded WHERE word = ?",
      "SELECT * FROM texts WHERE texts MATCH ?",
      "SELECT count(*) FROM orders WHERE status = ?",
      "WITH c AS (SELECT city FROM customers WHERE name = ?) SELECT * FROM orders, c WHERE status = city ORDER BY id",
    ),
    fc.oneof(word, small),
  ),
);

it("never misses: a result that a write changed was met by it", () => {
  let spared = 0;
  const queries = fc.array(query, { minLength: 3, maxLength: 8 });
  const writes = fc.array(write, { minLength: 1, maxLength: 25 });
  const property = fc.property(queries, writes, (some, statements) => {
    const connection = opened();
    const watched = some.map(([sql, value]) => {
      const params = [typeof value === "string" && sql.includes("MATCH") ? `"${value}"` : value];
      const { rows, reads } = connection.look(sql, params);
      return { sql, params, reads, lines: rows.map(lineOf).join("\n") };
    });
    for (const statement of statements) {
      connection.run(statement);
      const written = connection.written();
      for (const one of watched) {
        const lines = connection.select(one.sql, one.params).map(lineOf).join("\n");
        const met = meet(one.reads, written);
        if (!met) spared += 1;
        if (lines !== one.lines) expect(met, `${one.sql} of ${one.params} after ${statement}`).toBe(true);
        one.lines = lines;
      }
    }
  });
  fc.assert(property, { numRuns: 50 });
  expect(spared).toBeGreaterThan(300);
});

it("writes the same key for equal values", () => {
  expect(keyOf([5])).toBe(keyOf([5n]));
  expect(keyOf(["a", 1])).not.toBe(keyOf(["a", 2]));
});

describe("several statements inside a transaction", () => {
  const half = "INSERT INTO notes VALUES ('half'); INSERT INTO customers VALUES ('ada', 'Paris')";

  it("are all or nothing where their error is caught", () => {
    const connection = opened();
    connection.begin();
    connection.exec("INSERT INTO customers VALUES ('ada', 'Rome')");
    expect(() => connection.exec(half)).toThrow("UNIQUE");
    connection.exec("INSERT INTO notes VALUES ('whole')");
    connection.commit();
    expect(connection.select("SELECT body FROM notes")).toEqual([{ body: "whole" }]);
    expect(connection.select("SELECT city FROM customers")).toEqual([{ city: "Rome" }]);
    expect(shown(connection.written())["customers"]).toContain("ada");
  });

  it("tell the error also where it ended the transaction", () => {
    const connection = opened();
    connection.begin();
    connection.exec("INSERT INTO customers VALUES ('ada', 'Rome')");
    expect(() => connection.exec(half.replace("INSERT INTO c", "INSERT OR ROLLBACK INTO c"))).toThrow("UNIQUE");
    expect(connection.select("SELECT * FROM customers")).toEqual([]);
  });
});
