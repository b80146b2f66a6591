/**
 * The database of a tab, in its worker: runs what the page asks, and keeps its live queries true.
 *
 * In come the page's requests and the announcements of other tabs; out go replies, results of live queries, and an
 * announcement of each transaction's writes. A live query runs again when a write meets the rows that it reads, in this
 * tab or another, and the page is told when its result is another one. What always holds: a write is announced before
 * another tab can have its turn; a write whose announcement does not come is noticed by the file's version, and then
 * all queries run again.
 */

import { ForgeError } from "../errors.js";
import { applyChanges, replaceRows, storedCursor } from "./changes.js";
import type { Connection } from "./connection.js";
import { Heard } from "./heard.js";
import type { Message, Reply, Request, Requests } from "./protocol.js";
import { lineOf, type Params, type Row } from "./values.js";
import type { Turns } from "./turns.js";
import { everything, meet, type Rows } from "./writes.js";

interface Live {
  readonly sql: string;
  readonly params: Params;
  /** The rows that it reads; unknown before it ran, and when the schema changed. */
  reads: Rows | undefined;
  /** Of the result that the page has. */
  lines: readonly string[] | undefined;
  stale: boolean;
}

interface Transaction {
  readonly number: number;
  readonly connection: Connection;
  readonly end: (commit: boolean) => void;
  touched: number;
}

/** Milliseconds for which an announcement may be on its way. */
const LATE = 250;
/** Milliseconds after which a transaction that does nothing is rolled back: others wait for it. */
const IDLE = 10_000;
/** Milliseconds after which queries run again when there was no database to run them. */
const AGAIN = 2_000;

export class Engine {
  readonly #reply: (reply: Reply) => void;
  readonly #announce: (message: Message) => void;
  readonly #lives = new Map<number, Live>();
  #turns: Turns | undefined;
  #heard: Heard | undefined;
  #version = 0;
  #transaction: Transaction | undefined;
  #transactions = 0;
  #refreshing = false;
  #checking: ReturnType<typeof setTimeout> | undefined;
  #retrying: ReturnType<typeof setTimeout> | undefined;

  constructor(reply: (reply: Reply) => void, announce: (message: Message) => void) {
    this.#reply = reply;
    this.#announce = announce;
  }

  /** Opens the database, and brings it to the schema. */
  async open(turns: Turns, schema: readonly string[]): Promise<void> {
    this.#turns = turns;
    await this.#use((connection) => connection.migrate(schema));
  }

  /** The database was opened: of which version is it, and was all of it heard of? */
  opened(connection: Connection): void {
    this.#version = connection.version();
    this.#heard ??= new Heard(this.#version);
    this.#heard.seen(this.#version);
    this.#check();
  }

  async handle(request: Exclude<Request, { ask: "open" }>): Promise<void> {
    try {
      this.#reply({ id: request.id, answer: await this.#answer(request) });
    } catch (error) {
      this.#reply({ id: request.id, error: asFields(error) });
    }
  }

  hear(message: Message): void {
    if (message.kind === "want") return this.#turns?.want();
    this.#heard?.announced(message.from, message.to);
    this.#check();
    this.#touch(message.rows);
  }

  async #answer(request: Exclude<Request, { ask: "open" }>): Promise<Requests[keyof Requests][1]> {
    switch (request.ask) {
      case "exec":
        return this.#within(request.transaction, (connection) => connection.exec(request.sql));
      case "run":
        return this.#within(request.transaction, (connection) => connection.run(request.sql, request.params));
      case "select":
        return this.#within(request.transaction, (connection) => connection.select(request.sql, request.params));
      case "begin":
        return this.#begin();
      case "end":
        return this.#end(request.transaction, request.commit);
      case "apply":
        return this.#use((connection) => applyChanges(connection, request.changes, request.cursor));
      case "cursor":
        return this.#use((connection) => storedCursor(connection, request.source));
      case "mirror":
        return this.#use((connection) => replaceRows(connection, request.table, request.rows, request.gone));
      case "watch": {
        const { live, sql, params } = request;
        this.#lives.set(live, { sql, params, reads: undefined, lines: undefined, stale: true });
        return this.#refresh();
      }
      case "unwatch":
        this.#lives.delete(request.live);
        return;
      case "check":
        return this.#use(() => undefined);
      case "close":
        clearTimeout(this.#checking);
        clearTimeout(this.#retrying);
        this.#lives.clear();
        return this.#turns?.close();
    }
  }

  /** Runs a job in its turn, and announces what it wrote. */
  #use<T>(job: (connection: Connection) => T | Promise<T>): Promise<T> {
    if (this.#turns === undefined) throw new ForgeError("closed", "the database is not open", "open it first");
    return this.#turns.use(async (connection) => {
      try {
        return await job(connection);
      } finally {
        connection.rollback();
        this.#settle(connection);
      }
    });
  }

  #settle(connection: Connection): void {
    const rows = connection.written();
    if (rows.size === 0) return;
    const [from, to] = [this.#version, connection.version()];
    this.#version = to;
    this.#announce({ kind: "written", from, to, rows });
    this.#heard?.announced(from, to);
    this.#touch(rows);
  }

  // Transactions

  #within<T>(transaction: number | undefined, work: (connection: Connection) => T): T | Promise<T> {
    if (transaction === undefined) return this.#use(work);
    const under = this.#under(transaction);
    try {
      return work(under.connection);
    } finally {
      under.touched = performance.now();
    }
  }

  #under(number: number): Transaction {
    const transaction = this.#transaction;
    if (transaction?.number !== number) {
      const message = `the transaction is over, or did nothing for ${IDLE / 1000} s`;
      const fix = "wait for nothing but the database inside of it";
      throw new ForgeError("refused", message, fix, { code: "transaction_ended" });
    }
    return transaction;
  }

  #begin(): Promise<number> {
    return new Promise((resolve, reject) => {
      const number = ++this.#transactions;
      const job = async (connection: Connection): Promise<void> => {
        connection.begin();
        const ended = new Promise<boolean>((end) => {
          this.#transaction = { number, connection, end, touched: performance.now() };
        });
        resolve(number);
        const watch = setInterval(() => {
          const quiet = performance.now() - (this.#transaction?.touched ?? 0);
          if (quiet > IDLE) this.#transaction?.end(false);
        }, IDLE / 10);
        await ended;
        clearInterval(watch);
        this.#transaction = undefined;
      };
      this.#use(job).catch(reject);
    });
  }

  #end(number: number, commit: boolean): void {
    const { connection, end } = this.#under(number);
    try {
      if (commit) connection.commit();
    } finally {
      end(commit);
    }
  }

  // Live queries

  #touch(rows: Rows): void {
    let any = false;
    for (const live of this.#lives.values()) {
      if (live.reads !== undefined && !meet(live.reads, rows)) continue;
      if (rows === everything || rows.has("*")) live.reads = undefined;
      live.stale = any = true;
    }
    if (any) void this.#refresh();
  }

  /** Runs the queries that are stale, all in one turn. */
  async #refresh(): Promise<void> {
    if (this.#refreshing) return;
    this.#refreshing = true;
    clearTimeout(this.#retrying);
    const again = (connection: Connection): void => {
      this.#refreshing = false;
      for (const [number, live] of this.#lives) if (live.stale) this.#look(connection, number, live);
    };
    try {
      await this.#use(again);
    } catch (error) {
      this.#refreshing = false;
      const stale = [...this.#lives].filter(([, live]) => live.stale);
      for (const [number, live] of stale) this.#fail(number, live, error);
      if (stale.length > 0) this.#retrying = setTimeout(() => void this.#refresh(), AGAIN);
    }
  }

  #look(connection: Connection, number: number, live: Live): void {
    live.stale = false;
    try {
      let rows: Row[];
      if (live.reads === undefined) ({ rows, reads: live.reads } = connection.look(live.sql, live.params));
      else rows = connection.select(live.sql, live.params);
      this.#push(number, live, rows);
    } catch (error) {
      this.#fail(number, live, error);
    }
  }

  /** The page has no rows then: what comes next is said whole. */
  #fail(number: number, live: Live, error: unknown): void {
    live.reads = live.lines = undefined;
    this.#reply({ live: number, error: asFields(error) });
  }

  #push(number: number, live: Live, rows: readonly Row[]): void {
    const lines = rows.map(lineOf);
    const before = live.lines;
    if (before?.length === lines.length && lines.every((line, i) => line === before[i])) return;
    live.lines = lines;
    const places = new Map(before?.map((line, i) => [line, i]));
    this.#reply({ live: number, rows: rows.map((row, i) => places.get(lines[i] ?? "") ?? row) });
  }

  /** If something is missing it may still be on its way, but not for long. */
  #check(): void {
    if (!this.#heard?.missing || this.#checking !== undefined) return;
    this.#checking = setTimeout(() => {
      this.#checking = undefined;
      if (!this.#heard?.missing) return;
      this.#heard.forgive();
      this.#touch(everything);
    }, LATE);
  }
}

function asFields(error: unknown): ReturnType<ForgeError["toJSON"]> {
  if (error instanceof ForgeError) return error.toJSON();
  const message = error instanceof Error ? error.message : String(error);
  return new ForgeError("failed", message, "see the worker's console", { code: "watcher" }).toJSON();
}
