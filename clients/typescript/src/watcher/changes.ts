/**
 * Changes of rows from elsewhere, as statements on the local tables.
 *
 * In come inserts, updates and deletes in their order, each with its row's key. What always holds: applying a change
 * again writes nothing, so nobody is told. Tables and columns that the local database does not have are left out; a
 * column whose value was not told keeps the one that it has.
 */

import { ForgeError } from "../errors.js";
import type { RawChange } from "../rawfeed.js";
import type { Connection } from "./connection.js";
import { asSql, type Row, type SqlValue } from "./values.js";

/** A row that was written, or is to be gone, of a table of the local database. */
export type Change =
  | { readonly table: string; readonly op: "put"; readonly row: Row }
  | { readonly table: string; readonly op: "remove"; readonly row: Row }
  | { readonly table: string; readonly op: "clear" };

/** A change as Forge's feed has it (`/forge/changes`), its values decoded. */
export type RemoteChange = Omit<RawChange, "context">;

/** Local tables by the name of the remote one, with or without its schema. */
export type Names = Readonly<Record<string, string>>;

/** What to do with the local tables; without names, each remote table is the local one of the same name. */
export function localChanges(changes: readonly RemoteChange[], names?: Names): Change[] {
  return changes.flatMap((change): Change[] => {
    const local = names ? (names[`${change.schema ?? ""}.${change.table}`] ?? names[change.table]) : change.table;
    return local === undefined ? [] : localChange(change, local);
  });
}

function localChange({ operation, key, before, after }: RemoteChange, table: string): Change[] {
  switch (operation) {
    case "INSERT":
    case "READ":
      return [{ table, op: "put", row: rowOf(after) }];
    case "UPDATE": {
      const was = before && key ? rowOf(Object.fromEntries(Object.keys(key).map((name) => [name, before[name]]))) : {};
      const now = rowOf(after);
      const moved = Object.entries(was).some(([name, value]) => now[name] !== value);
      return [...(moved ? [{ table, op: "remove", row: was } as const] : []), { table, op: "put", row: now }];
    }
    case "DELETE":
      return [{ table, op: "remove", row: rowOf(key ?? before) }];
    case "TRUNCATE":
      return [{ table, op: "clear" }];
    default:
      return [];
  }
}

/** A server's row as SQLite keeps it. */
export function rowOf(values: Readonly<Record<string, unknown>> | null | undefined): Row {
  const row: Record<string, SqlValue> = {};
  for (const [name, value] of Object.entries(values ?? {})) {
    const kept = asSql(value);
    if (kept !== undefined) row[name] = kept;
  }
  return row;
}

/** Where a source of changes stands. */
export interface Cursor {
  readonly source: string;
  readonly at: string;
}

const CURSORS = "CREATE TABLE IF NOT EXISTS forge_cursors (source TEXT PRIMARY KEY, at TEXT NOT NULL) WITHOUT ROWID";

export function storedCursor(connection: Connection, source: string): string | null {
  if (connection.columns("forge_cursors").length === 0) return null;
  const [row] = connection.select("SELECT at FROM forge_cursors WHERE source = ?", [source]);
  return row === undefined ? null : String(row["at"]);
}

/** Writes them, in one transaction, and the cursor with them. */
export function applyChanges(connection: Connection, changes: readonly Change[], cursor?: Cursor): void {
  const tables = new Map<string, Table>();
  connection.transaction(() => {
    if (cursor !== undefined) {
      if (connection.columns("forge_cursors").length === 0) connection.run(CURSORS);
      connection.run("REPLACE INTO forge_cursors VALUES (?, ?)", [cursor.source, cursor.at]);
    }
    for (const change of changes) {
      let table = tables.get(change.table);
      if (table === undefined) tables.set(change.table, (table = new Table(connection, change.table)));
      table.apply(change);
    }
  }, true);
}

/** Writes rows into a table, and removes those that are gone and not among them: by default all others. */
export function replaceRows(connection: Connection, name: string, rows: readonly Row[], gone?: readonly Row[]): void {
  connection.transaction(() => {
    const table = new Table(connection, name);
    const kept = new Set(rows.map((row) => table.keyOf(row)));
    for (const row of gone ?? table.keys()) {
      if (!kept.has(table.keyOf(row))) table.apply({ table: name, op: "remove", row });
    }
    for (const row of rows) table.apply({ table: name, op: "put", row });
  }, true);
}

class Table {
  readonly #connection: Connection;
  readonly #name: string;
  readonly #columns: ReadonlySet<string>;
  readonly #key: readonly string[];

  constructor(connection: Connection, name: string) {
    const columns = connection.columns(name);
    this.#connection = connection;
    this.#name = quoted(name);
    this.#columns = new Set(columns.map((column) => column.name));
    this.#key = columns.filter(({ pk }) => pk > 0).map((column) => column.name);
    if (columns.length > 0 && this.#key.length === 0) {
      const fix = `declare the same primary key as the remote table's`;
      throw new ForgeError("refused", `the table ${name} has no primary key`, fix, { code: "no_key" });
    }
  }

  keyOf(row: Row): string {
    return JSON.stringify(this.#key.map((name) => String(row[name])));
  }

  keys(): Row[] {
    if (this.#columns.size === 0) return [];
    return this.#connection.select(`SELECT ${this.#key.map(quoted).join()} FROM ${this.#name}`);
  }

  apply(change: Change): void {
    if (this.#columns.size === 0) return;
    if (change.op === "clear") {
      this.#connection.run(`DELETE FROM ${this.#name}`);
      return;
    }
    const missing = this.#key.find((name) => change.row[name] === undefined);
    if (missing !== undefined) {
      const fix = "let the local table have the same primary key as the remote one";
      throw new ForgeError("refused", `a change of ${this.#name} does not tell ${missing}`, fix, { code: "no_key" });
    }
    if (change.op === "put") this.#put(change.row);
    else this.#remove(change.row);
  }

  #put(row: Row): void {
    const names = Object.keys(row).filter((name) => this.#columns.has(name));
    const others = names.filter((name) => !this.#key.includes(name)).map(quoted);
    const key = this.#key.map(quoted).join();
    const set = others.map((name) => `${name} = excluded.${name}`).join();
    const differs = others.map((name) => `${this.#name}.${name} IS NOT excluded.${name}`).join(" OR ");
    const update = others.length ? `UPDATE SET ${set} WHERE ${differs}` : "NOTHING";
    const places = names.map(() => "?").join();
    this.#connection.run(
      `INSERT INTO ${this.#name} (${names.map(quoted).join()}) VALUES (${places}) ON CONFLICT (${key}) DO ${update}`,
      names.map((name) => row[name] ?? null),
    );
  }

  #remove(row: Row): void {
    const where = this.#key.map((name) => `${quoted(name)} IS ?`).join(" AND ");
    this.#connection.run(`DELETE FROM ${this.#name} WHERE ${where}`, this.#key.map((name) => row[name] ?? null));
  }
}

function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
