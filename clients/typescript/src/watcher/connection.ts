/**
 * One connection to the database: runs statements, and knows which rows they read and wrote.
 *
 * In come statements with parameters, out go rows, and with `written()` the rows that were written and committed since
 * the last time. Writes are seen by SQLite's preupdate hook, which misses none: those of triggers, cascades, REPLACE
 * and tables without rowid too. What always holds: a statement that fails leaves nothing behind; nothing that a
 * connection has for itself (temporary tables, other files, settings) is let in, since connections come and go.
 */

import type { BindingSpec, CAPI, Database, PreparedStatement, Sqlite3Static } from "@sqlite.org/sqlite-wasm";
import { ForgeError } from "../errors.js";
import { type Instruction, rowsRead } from "./reads.js";
import { Schema } from "./schema.js";
import type { Params, Row, SqlValue } from "./values.js";
import { everything, Gathered, keyOf, type Rows } from "./writes.js";

/** What `run` answers. */
export interface Ran {
  /** Rows that it inserted, updated or deleted. */
  readonly changes: number;
  /** The rowid of the last row that it inserted; null when it inserted none. */
  readonly lastId: number | bigint | null;
}

/** What a PRAGMA may be told something for; all others are settings, which a connection must not change. */
const QUESTIONS = new Set([
  ...["table_info", "table_xinfo", "table_list", "index_info", "index_xinfo", "index_list"],
  ...["foreign_key_list", "foreign_key_check", "integrity_check", "quick_check", "optimize"],
]);

type Preupdate = CAPI["sqlite3_preupdate_hook"];
type Value = "sqlite3_preupdate_old_js" | "sqlite3_preupdate_new_js";

export class Connection {
  readonly #db: Database;
  readonly #capi: CAPI;
  readonly #pending = new Gathered();
  readonly #committed = new Gathered();
  readonly #schema: Schema;
  #commits = false;
  #guarded = true;
  #reading: Set<string> | undefined;
  #refused: string | undefined;

  /** `schema`: what other connections to the same file learnt of it. */
  constructor(sqlite3: Sqlite3Static, db: Database, schema = new Schema()) {
    this.#db = db;
    this.#capi = sqlite3.capi;
    this.#schema = schema;
    // a tab that is killed loses nothing with `normal`, and a write waits for the disk less often
    db.exec(`PRAGMA temp_store = memory; PRAGMA foreign_keys = ON;
             PRAGMA journal_mode = truncate; PRAGMA synchronous = normal`);
    this.#learn();
    const authorize = (_: number, code: number, ...names: (string | 0)[]): number => this.#authorize(code, names);
    this.#capi.sqlite3_set_authorizer(db, authorize, 0);
    // the third argument is needed, and missing in the package's types
    const hook = this.#capi.sqlite3_preupdate_hook as (...args: [...Parameters<Preupdate>, number]) => void;
    hook(db, (_, __, op, ___, table, old, now) => this.#sawWrite(op, table, old, now), 0);
    this.#capi.sqlite3_commit_hook(db, () => this.#sawCommit(), 0);
  }

  /** Runs one statement. */
  run(sql: string, params: Params = []): Ran {
    const before = Number(this.#db.changes(true, true));
    this.#capi.sqlite3_set_last_insert_rowid(this.#db, 0n);
    // it begins a transaction and attaches a file by itself, and ends both
    if (/^\s*VACUUM\s*;?\s*$/i.test(sql)) this.#own(sql);
    else this.#execute(sql, params);
    const last = this.#capi.sqlite3_last_insert_rowid(this.#db);
    const safe = Number.isSafeInteger(Number(last));
    return {
      changes: Number(this.#db.changes(true, true)) - before,
      lastId: last === 0n ? null : safe ? Number(last) : last,
    };
  }

  /** The rows of one statement. */
  select(sql: string, params: Params = []): Row[] {
    return this.#execute(sql, params);
  }

  /** Runs several statements, all or nothing. */
  exec(sql: string): void {
    this.transaction(() => void this.#execute(sql, []));
  }

  /** The rows of a query, and those that it read to find them. */
  look(sql: string, params: Params = []): { rows: Row[]; reads: Rows } {
    const reads = this.#readsOf(sql, params);
    return { rows: this.select(sql, params), reads };
  }

  /** All or nothing of what happens inside, which may be inside another. `deferred`: rows may refer to later ones. */
  transaction<T>(work: () => T, deferred = false): T {
    if (!this.#capi.sqlite3_get_autocommit(this.#db)) return this.#nested(work);
    this.begin();
    try {
      if (deferred) this.#own("PRAGMA defer_foreign_keys = ON");
      const result = work();
      this.commit();
      return result;
    } catch (error) {
      this.rollback();
      throw error;
    }
  }

  #nested<T>(work: () => T): T {
    this.#own("SAVEPOINT forge_nested");
    try {
      return work();
    } catch (error) {
      // SQLite itself may have rolled back all of it
      if (!this.#capi.sqlite3_get_autocommit(this.#db)) this.#own("ROLLBACK TO forge_nested");
      throw error;
    } finally {
      if (!this.#capi.sqlite3_get_autocommit(this.#db)) this.#own("RELEASE forge_nested");
    }
  }

  begin(): void {
    this.#own("BEGIN IMMEDIATE");
  }

  commit(): void {
    this.#own("COMMIT");
  }

  rollback(): void {
    if (!this.#capi.sqlite3_get_autocommit(this.#db)) this.#own("ROLLBACK");
  }

  /** Each step of the schema is run once, in order. */
  migrate(steps: readonly string[]): void {
    const done = Number(this.#own("PRAGMA user_version")[0]?.["user_version"]);
    if (done > steps.length) {
      const message = `the database has ${done} steps of its schema, this page knows ${steps.length}`;
      throw new ForgeError("refused", message, "reload the page: it is an older version", { code: "newer_schema" });
    }
    if (done === steps.length) return;
    this.transaction(() => {
      for (const step of steps.slice(done)) this.#execute(step, []);
      this.#own(`PRAGMA user_version = ${steps.length}`);
    });
  }

  /** The rows that were committed since the last time; empty when nothing was. */
  written(): Rows {
    this.#pending.take();
    const rows = this.#committed.take();
    const schema = this.#commits && this.#learn();
    this.#commits = false;
    return schema ? everything : rows;
  }

  /** Grows by one with every transaction that writes, of any connection to the file. */
  version(): number {
    const page = this.#own("SELECT substr(data, 25, 4) AS counter FROM sqlite_dbpage WHERE pgno = 1")[0]?.["counter"];
    return page instanceof Uint8Array ? new DataView(page.buffer, page.byteOffset).getUint32(0) : 0;
  }

  /** Columns of a table, in order, with their place in the primary key (from 1; 0 outside of it); empty without it. */
  columns(table: string): { name: string; pk: number }[] {
    const rows = this.#own("SELECT name, pk FROM pragma_table_info(?)", [table]);
    return rows.map(({ name, pk }) => ({ name: String(name), pk: Number(pk) }));
  }

  close(): void {
    this.#db.close();
  }

  #execute(sql: string, bind: Params): Row[] {
    return this.#telling(sql, () => {
      const rows: Row[] = [];
      const given = Array.isArray(bind) ? bind.length : Object.keys(bind).length;
      const options = { sql, rowMode: "object", resultRows: rows } as const;
      this.#db.exec(given ? { ...options, bind: bind as BindingSpec } : options);
      return rows;
    });
  }

  /** Errors of SQLite as those of Forge. */
  #telling<T>(sql: string, work: () => T): T {
    this.#refused = undefined;
    try {
      return work();
    } catch (error) {
      if (this.#refused !== undefined) throw refused(this.#refused);
      const message = error instanceof Error ? error.message : String(error);
      const short = message.replace(/^SQLITE_\w+: sqlite3 result code \d+: /, "");
      throw new ForgeError("failed", `${short}, in: ${sql.slice(0, 200)}`, "fix the statement", { code: "sql" });
    }
  }

  /** Runs a statement of this class. */
  #own(sql: string, bind: Params = []): Row[] {
    this.#guarded = false;
    try {
      return this.#execute(sql, bind);
    } finally {
      this.#guarded = true;
    }
  }

  #authorize(code: number, [one, two, three]: readonly (string | 0 | undefined)[]): number {
    const capi = this.#capi;
    if (code === capi.SQLITE_READ && one) this.#reading?.add(one);
    if (!this.#guarded) return capi.SQLITE_OK;
    const temporary = three === "temp" && code !== capi.SQLITE_READ;
    if (temporary) this.#refused = "a temporary table, view, index or trigger";
    else if (code === capi.SQLITE_ATTACH || code === capi.SQLITE_DETACH) this.#refused = "another file";
    else if (code === capi.SQLITE_TRANSACTION) this.#refused = `${one} as a statement`;
    else if (code === capi.SQLITE_PRAGMA && two && !QUESTIONS.has(one || "")) this.#refused = `PRAGMA ${one}`;
    else return capi.SQLITE_OK;
    return capi.SQLITE_DENY;
  }

  #sawWrite(op: number, table: string, old: bigint, now: bigint): void {
    const { key, owner } = this.#schema.tables.get(table) ?? { key: [], owner: undefined };
    if (owner !== undefined) return this.#pending.addAll(owner);
    if (this.#pending.hasAll(table)) return;
    if (op !== this.#capi.SQLITE_INSERT) this.#pending.add(table, this.#key(key, old, "sqlite3_preupdate_old_js"));
    if (op !== this.#capi.SQLITE_DELETE) this.#pending.add(table, this.#key(key, now, "sqlite3_preupdate_new_js"));
  }

  #key(columns: readonly number[], rowid: bigint, value: Value): string {
    if (columns.length === 0) return String(rowid);
    return keyOf(columns.map((column) => this.#capi[value](this.#db, column) as SqlValue));
  }

  #sawCommit(): number {
    this.#committed.addRows(this.#pending.take());
    this.#commits = true;
    return 0;
  }

  #learn(): boolean {
    return this.#schema.learn((query, params) => this.#own(query, params));
  }

  #readsOf(sql: string, params: Params): Rows {
    const reading = new Set<string>();
    const values = this.#telling(sql, () => {
      this.#reading = reading;
      const statement = this.#prepared(sql);
      try {
        if (!this.#isQuery(statement, sql)) throw new Error("a live query is one statement that reads");
        return this.#valuesOf(statement, params);
      } finally {
        statement.finalize();
      }
    });
    const program = this.#own(`EXPLAIN ${sql}`) as unknown as Instruction[];
    return rowsRead(reading, program, this.#schema.trees, values);
  }

  #prepared(sql: string): PreparedStatement {
    try {
      return this.#db.prepare(sql);
    } finally {
      this.#reading = undefined;
    }
  }

  #isQuery(statement: PreparedStatement, sql: string): boolean {
    const first = this.#capi.sqlite3_sql(statement);
    return this.#capi.sqlite3_stmt_readonly(statement) !== 0 && sql.slice(first?.length).trim() === "";
  }

  #valuesOf(statement: PreparedStatement, params: Params): SqlValue[] {
    return Array.from({ length: statement.parameterCount }, (_, i) => {
      const name = this.#capi.sqlite3_bind_parameter_name(statement, i + 1) ?? "";
      const value = (params as Record<string | number, SqlValue | boolean>)[Array.isArray(params) ? i : name];
      return typeof value === "boolean" ? Number(value) : (value ?? null);
    });
  }
}

function refused(what: string): ForgeError {
  const fix = "use watcher.transaction, and tables of the database itself: settings and temporary things do not last";
  return new ForgeError("refused", `${what} is not let in`, fix, { code: "sql_refused" });
}
