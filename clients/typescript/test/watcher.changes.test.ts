/** Changes of a server, written into local tables. */

import sqlite3InitModule, { type Sqlite3Static } from "@sqlite.org/sqlite-wasm";
import { beforeAll, expect, it } from "vitest";
import { Decimal, UNAVAILABLE } from "../src/values";
import { applyChanges, localChanges, type RemoteChange, replaceRows } from "../src/watcher/changes";
import { Connection } from "../src/watcher/connection";

let sqlite3: Sqlite3Static;
beforeAll(async () => {
  sqlite3 = await sqlite3InitModule();
});

function opened(): Connection {
  const connection = new Connection(sqlite3, new sqlite3.oo1.DB(":memory:"));
  connection.exec(`
    CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, total TEXT, paid INT, tags TEXT);
    CREATE TABLE lines (order_id INT REFERENCES orders ON DELETE CASCADE, place INT, PRIMARY KEY (order_id, place));
    CREATE TABLE keyless (a)`);
  connection.written();
  return connection;
}

const insert: RemoteChange = {
  schema: "public",
  table: "orders",
  operation: "INSERT",
  key: { id: 1 },
  after: { id: 1, status: "placed", total: new Decimal("12.30"), paid: false, tags: ["a", { b: 2n }], elsewhere: 1 },
};

it("writes rows as SQLite keeps them, once", () => {
  const connection = opened();
  applyChanges(connection, localChanges([insert]));
  const row = { id: 1, status: "placed", total: "12.30", paid: 0, tags: '["a",{"b":"2"}]' };
  expect(connection.select("SELECT * FROM orders")).toEqual([row]);
  expect([...connection.written().keys()]).toEqual(["orders"]);
  applyChanges(connection, localChanges([insert]));
  expect(connection.written().size).toBe(0);
});

it("updates, moves, deletes and clears", () => {
  const connection = opened();
  const after = { id: 1, status: "paid", total: UNAVAILABLE };
  const update = { ...insert, operation: "UPDATE", before: { id: 1, total: UNAVAILABLE }, after };
  applyChanges(connection, localChanges([insert, update]));
  const [row] = connection.select("SELECT id, status, total FROM orders");
  expect(row).toEqual({ id: 1, status: "paid", total: "12.30" });
  const moved = { ...insert, operation: "UPDATE", key: { id: 2 }, before: { id: 1 }, after: { id: 2, status: "x" } };
  applyChanges(connection, localChanges([moved]));
  expect(connection.select("SELECT id FROM orders")).toEqual([{ id: 2 }]);
  applyChanges(connection, localChanges([{ ...insert, operation: "DELETE", key: { id: 2 } }]));
  expect(connection.select("SELECT id FROM orders")).toEqual([]);
  applyChanges(connection, localChanges([insert, { ...insert, operation: "TRUNCATE", key: null, after: null }]));
  expect(connection.select("SELECT id FROM orders")).toEqual([]);
});

it("writes all of them or none", () => {
  const connection = opened();
  const line = { table: "lines", operation: "INSERT", after: { order_id: 1, place: 1 } };
  const orphan = { ...line, after: { order_id: 99, place: 1 } };
  expect(() => applyChanges(connection, localChanges([insert, orphan]))).toThrow("FOREIGN KEY");
  expect(connection.select("SELECT * FROM orders")).toEqual([]);
  applyChanges(connection, localChanges([line, insert]));
  expect(connection.select("SELECT * FROM lines")).toHaveLength(1);
});

it("leaves out tables that are not named or not there, and says when there is no key", () => {
  const connection = opened();
  applyChanges(connection, localChanges([{ ...insert, table: "nowhere" }]));
  expect(localChanges([insert], { "public.items": "orders" })).toEqual([]);
  expect(localChanges([insert], { "public.orders": "mine" })).toMatchObject([{ table: "mine" }]);
  const keyless = { table: "keyless", operation: "INSERT", after: { a: 1 } };
  expect(() => applyChanges(connection, localChanges([keyless]))).toThrow("has no primary key");
  const unnamed = { table: "orders", operation: "INSERT", after: { status: "x" } };
  expect(() => applyChanges(connection, localChanges([unnamed]))).toThrow("does not tell id");
});

it("makes a table equal to rows, and touches only what differs", () => {
  const connection = opened();
  connection.exec("INSERT INTO orders (id, status) VALUES (1, 'a'), (2, 'b'), (3, 'c')");
  connection.exec("INSERT INTO lines VALUES (2, 1)");
  connection.written();
  replaceRows(connection, "orders", [{ id: 1, status: "a" }, { id: 2, status: "new" }, { id: 4, status: "d" }]);
  const rows = (): unknown[] => connection.select("SELECT id || status AS row FROM orders").map(({ row }) => row);
  expect(rows()).toEqual(["1a", "2new", "4d"]);
  expect(connection.select("SELECT * FROM lines")).toHaveLength(1);
  expect([...(connection.written().get("orders") ?? [])].sort()).toEqual(["2", "3", "4"]);
  replaceRows(connection, "orders", [{ id: 4, status: "e" }], [{ id: 4 }, { id: 1 }]);
  expect(rows()).toEqual(["2new", "4e"]);
});

it("takes no key for another, whatever is in it", () => {
  const connection = opened();
  connection.exec("CREATE TABLE words (a TEXT, b TEXT, PRIMARY KEY (a, b))");
  replaceRows(connection, "words", [{ a: "x\ny", b: "z" }]);
  replaceRows(connection, "words", [{ a: "x", b: "y\nz" }]);
  expect(connection.select("SELECT * FROM words")).toEqual([{ a: "x", b: "y\nz" }]);
});
