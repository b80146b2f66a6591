/**
 * What the watcher knows of the database's schema: how each table's rows are named, and which b-trees are whose.
 *
 * It is read when the schema's version is another one, by whichever connection notices.
 */

import type { Tree } from "./reads.js";
import type { Row, SqlValue } from "./values.js";

/** How the rows of a table are named. */
export interface Table {
  /** Places of the columns of the primary key; empty when rows are named by their rowid. */
  readonly key: readonly number[];
  /** The virtual table that keeps its data here. */
  readonly owner: string | undefined;
}

type Ask = (sql: string, params?: readonly SqlValue[]) => Row[];

export class Schema {
  readonly tables = new Map<string, Table>();
  /** By root page. */
  readonly trees = new Map<number, Tree>();
  #version = -1;

  /** Reads it if it is not the known one; whether it was another. */
  learn(ask: Ask): boolean {
    const version = Number(ask("PRAGMA schema_version")[0]?.["schema_version"]);
    if (version === this.#version) return false;
    this.#version = version;
    const tables = ask("SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main'");
    this.#learnTables(ask, tables);
    this.#learnTrees(ask, new Set(tables.filter(({ wr }) => wr === 1).map(({ name }) => name)));
    return true;
  }

  #learnTables(ask: Ask, tables: readonly Row[]): void {
    this.tables.clear();
    const virtual = tables.filter(({ type }) => type === "virtual").map(({ name }) => String(name));
    for (const { name, type } of tables) {
      const table = String(name);
      const owner = type === "shadow" ? virtual.find((one) => table.startsWith(`${one}_`)) : undefined;
      const key = ask("SELECT cid FROM pragma_table_xinfo(?) WHERE pk > 0 ORDER BY pk", [table]);
      this.tables.set(table, { key: key.map(({ cid }) => Number(cid)), owner });
    }
  }

  #learnTrees(ask: Ask, rowidless: ReadonlySet<unknown>): void {
    this.trees.clear();
    const trees = ask(
      "SELECT s.name, tbl_name, rootpage, origin FROM sqlite_schema AS s " +
        "LEFT JOIN pragma_index_list(tbl_name) AS i ON i.name = s.name WHERE rootpage > 0",
    );
    const indexed = new Set(trees.filter(({ origin }) => origin === "pk").map(({ tbl_name }) => tbl_name));
    for (const { name, tbl_name, rootpage, origin } of trees) {
      const table = String(tbl_name);
      const columns = this.tables.get(table)?.key.length ?? 0;
      const byRowid = name === table && !indexed.has(table) && !rowidless.has(table);
      const byKey = origin === "pk" || (name === table && rowidless.has(table));
      this.trees.set(Number(rootpage), { table, key: byRowid ? "rowid" : byKey ? columns : "none" });
    }
  }
}
