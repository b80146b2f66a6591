/**
 * A database in the browser whose queries stay true, in this tab and all others of the site.
 *
 * `openWatcher` takes a worker that serves it, a name that tabs share, and the schema; it gives a `Watcher`. Writes of
 * any tab, and changes of a server that are applied, reach the live queries of all tabs that read what they wrote.
 */

import { closed } from "../errors.js";
import type { Live } from "../live.js";
import type { Readable } from "../readable.js";
import { localChanges, type Names, type RemoteChange, rowOf } from "./changes.js";
import { Calls } from "./calls.js";
import type { Ran } from "./connection.js";
import { Feed, type FeedOptions } from "./feed.js";
import { LocalLive } from "./local.js";
import type { Kind } from "./protocol.js";
import { lineOf, type Params, type Row } from "./values.js";

export interface WatcherOptions {
  /** Started by you: its script calls `serveWatcher`. */
  readonly worker: Worker;
  /** Of the database: tabs of one origin that use the same name share it. */
  readonly name: string;
  /** Steps, each of several statements: a database has each run once, in order. Add steps at the end, change none. */
  readonly schema: readonly string[];
}

/** What runs statements: the database, or a transaction. */
export interface Statements {
  /** Several statements, all or nothing. */
  exec(sql: string): Promise<void>;
  /** One statement that writes. */
  run(sql: string, params?: Params): Promise<Ran>;
  /** The rows of one statement. */
  select<T = Row>(sql: string, params?: Params): Promise<T[]>;
}

/** What follows a feed: a store of how it stands, until it is stopped. */
export type Following = Feed & { stop(): void };

/** Opens the database, or makes it. */
export async function openWatcher(options: WatcherOptions): Promise<Watcher> {
  const calls = new Calls(options.worker);
  const { name, schema } = options;
  const storage = await calls.ask("open", { name, schema });
  return new Watcher(name, storage, calls);
}

export class Watcher implements Statements {
  readonly name: string;
  /** `opfs`: a file that all tabs share and that stays; `memory`: this tab's alone, gone with it. */
  readonly storage: Kind;
  readonly #calls: Calls;
  readonly #lives = new Map<string, LocalLive<unknown>>();
  readonly #closing = new AbortController();

  constructor(name: string, storage: Kind, calls: Calls) {
    this.name = name;
    this.storage = storage;
    this.#calls = calls;
    addEventListener("pageshow", this.#check);
    document.addEventListener("visibilitychange", this.#check);
  }

  exec(sql: string): Promise<void> {
    return this.#calls.ask("exec", { sql });
  }

  run(sql: string, params: Params = []): Promise<Ran> {
    return this.#calls.ask("run", { sql, params });
  }

  select<T = Row>(sql: string, params: Params = []): Promise<T[]> {
    return this.#calls.ask("select", { sql, params }) as Promise<T[]>;
  }

  /** All or nothing of what `work` does with what it is given; other tabs wait, so wait for nothing else inside. */
  async transaction<T>(work: (tx: Statements) => Promise<T>): Promise<T> {
    const calls = this.#calls;
    const transaction = await calls.ask("begin", {});
    const tx: Statements = {
      exec: (sql) => calls.ask("exec", { sql, transaction }),
      run: (sql, params = []) => calls.ask("run", { sql, params, transaction }),
      select: <R>(sql: string, params: Params = []) =>
        calls.ask("select", { sql, params, transaction }) as Promise<R[]>,
    };
    let result: T;
    try {
      result = await work(tx);
    } catch (error) {
      // the error that ended the work says more than one of a transaction that is over already
      await calls.ask("end", { transaction, commit: false }).catch(() => undefined);
      throw error;
    }
    await calls.ask("end", { transaction, commit: true });
    return result;
  }

  /** The result of a query that stays true. The same query with the same parameters is the same object. */
  live<T = Row>(sql: string, params: Params = []): LocalLive<T> {
    const key = `${sql}\n${lineOf(params as Row)}`;
    const found = this.#lives.get(key);
    if (found !== undefined) return found as LocalLive<T>;
    let number: number | undefined;
    const started = (): void => {
      this.#lives.set(key, live);
      number ??= this.#calls.watch(live, sql, params);
    };
    const ended = (): void => {
      this.#lives.delete(key);
      if (number !== undefined) this.#calls.unwatch(number);
      number = undefined;
    };
    const live = new LocalLive<unknown>(started, ended);
    this.#lives.set(key, live);
    return live as LocalLive<T>;
  }

  /** Writes changes of a server's rows into the local tables of the same names, or of those that `tables` gives. */
  apply(changes: readonly RemoteChange[], options: { readonly tables?: Names } = {}): Promise<void> {
    return this.#calls.ask("apply", { changes: localChanges(changes, options.tables) });
  }

  /**
   * Keeps a local table equal to a live query of the server; returns how to end that. Of several tabs that do it, one
   * does the writing.
   */
  mirror<T extends object>(live: Pick<Live<readonly T[]>, keyof Readable<unknown>>, table: string): () => void {
    return this.#alone(`mirror ${table}`, (signal) => this.#mirror(live, table, signal));
  }

  /**
   * Writes every change of a server's tables into local ones, once, from where it stopped the last time; `stop` ends
   * that. Of several tabs that do it, one does the writing, and the others wait for its end.
   */
  follow(options: FeedOptions): Following {
    const source = `${options.url} ${Object.keys(options.tables).sort().join()}`;
    const feed = new Feed(options, {
      cursor: () => this.#calls.ask("cursor", { source }),
      write: (remote, at) => {
        const changes = localChanges(remote, options.tables);
        return this.#calls.ask("apply", { changes, cursor: { source, at } });
      },
    });
    const stop = this.#alone(`feed ${source}`, (signal) => feed.run(signal));
    return Object.assign(feed, { stop });
  }

  async close(): Promise<void> {
    removeEventListener("pageshow", this.#check);
    document.removeEventListener("visibilitychange", this.#check);
    this.#closing.abort();
    await this.#calls.ask("close", {}).catch(() => undefined); // a worker that is gone has nothing open
    this.#calls.end();
    for (const live of this.#lives.values()) live.fail(closed());
  }

  /** Does the work while no other tab does it; returns how to end that. */
  #alone(what: string, work: (signal: AbortSignal) => Promise<void>): () => void {
    const ended = new AbortController();
    const signal = AbortSignal.any([ended.signal, this.#closing.signal]);
    const lock = `forge:watcher:${this.name}:${what}`;
    const done =
      this.storage === "memory" ? work(signal) : navigator.locks.request(lock, { signal }, () => work(signal));
    done.catch((error: unknown) => {
      if (!signal.aborted) reportError(error);
    });
    return () => ended.abort();
  }

  readonly #check = (): void => {
    if (document.visibilityState === "visible") void this.#calls.ask("check", {}).catch(() => undefined);
  };

  async #mirror<T extends object>(
    live: Pick<Live<readonly T[]>, keyof Readable<unknown>>,
    table: string,
    signal: AbortSignal,
  ): Promise<void> {
    let told = (): void => {};
    let written: readonly T[] | undefined;
    const end = live.subscribe(() => told());
    const aborted = (): void => told();
    signal.addEventListener("abort", aborted);
    try {
      while (!signal.aborted) {
        const { data } = live.getSnapshot();
        if (data !== undefined && data !== written) {
          const [held, kept] = [new Set(written), new Set(data)];
          const rows = data.filter((row) => !held.has(row)).map(plain);
          const gone = written?.filter((row) => !kept.has(row)).map(plain);
          await this.#calls.ask("mirror", { table, rows, gone });
          written = data;
        } else {
          await new Promise<void>((resolve) => {
            told = resolve;
          });
        }
      }
    } finally {
      signal.removeEventListener("abort", aborted);
      end();
    }
  }
}

function plain(row: object): Row {
  return rowOf(row as Record<string, unknown>);
}
