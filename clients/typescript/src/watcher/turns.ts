/**
 * Takes turns with the other tabs at the database: one has it open at a time.
 *
 * In come jobs, which are run one after the other with a connection. A tab keeps the database until another tab wants
 * it or it was idle for a while, so a tab that is alone waits for nobody. The turn is a Web Lock, which the browser
 * takes from a tab that ends, with its files: a transaction under way is then rolled back by whoever opens the file
 * next. What always holds: no job runs without the lock, and between two jobs of a tab others get their turn.
 */

import type { SAHPoolUtil, Sqlite3Static } from "@sqlite.org/sqlite-wasm";
import { ForgeError } from "../errors.js";
import { Connection } from "./connection.js";
import { Schema } from "./schema.js";

type Job = (connection: Connection) => Promise<void>;

/** Opens and closes the database. */
export interface Files {
  open(): Promise<Connection>;
  close(connection: Connection): void;
}

/** Who may open it. */
export interface Turn {
  /** Resolves when it is this tab's turn, with how to end it. */
  take(): Promise<() => void>;
  /** Whether another tab waits. */
  wanted(): Promise<boolean>;
}

/** Milliseconds of work after which a tab that others wait for lets them. */
const LONGEST = 20;
/** Milliseconds after which a tab that has nothing to do closes the database: a page that sleeps holds nobody up. */
const IDLE = 1_000;

export class Turns {
  readonly #files: Files;
  readonly #turn: Turn;
  readonly #opened: (connection: Connection) => void;
  readonly #waiting: { job: Job; reject: (error: unknown) => void }[] = [];
  #held: { connection: Connection; end: () => void } | undefined;
  #wanted = false;
  #working = false;
  #closing: (() => void) | undefined;
  #idle: ReturnType<typeof setTimeout> | undefined;

  /** `opened` is told of each connection before the first job has it. */
  constructor(files: Files, turn: Turn, opened: (connection: Connection) => void) {
    this.#files = files;
    this.#turn = turn;
    this.#opened = opened;
  }

  use<T>(job: (connection: Connection) => T | Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const run = async (connection: Connection): Promise<void> => {
        try {
          resolve(await job(connection));
        } catch (error) {
          reject(error);
        }
      };
      this.#waiting.push({ job: run, reject });
      void this.#work();
    });
  }

  /** Another tab waits for its turn. */
  want(): void {
    this.#wanted = true;
    if (!this.#working) this.#release();
  }

  async #work(): Promise<void> {
    if (this.#working) return;
    this.#working = true;
    clearTimeout(this.#idle);
    while (this.#waiting.length > 0) {
      try {
        const connection = await this.#take();
        const since = performance.now();
        for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
          await next.job(connection);
          if (this.#wanted && performance.now() - since > LONGEST) break;
        }
      } catch (error) {
        for (const { reject } of this.#waiting.splice(0)) reject(error);
      }
      if (this.#wanted) this.#release();
    }
    this.#working = false;
    if (this.#closing !== undefined) return this.#closing();
    this.#idle = setTimeout(() => this.#release(), IDLE);
  }

  async #take(): Promise<Connection> {
    if (this.#held !== undefined) return this.#held.connection;
    const end = await this.#turn.take();
    this.#wanted = false;
    try {
      const asked = this.#turn.wanted();
      const connection = await this.#files.open();
      this.#held = { connection, end };
      if (await asked) this.#wanted = true;
      this.#opened(connection);
      return connection;
    } catch (error) {
      if (this.#held !== undefined) this.#release();
      else end();
      throw error;
    }
  }

  #release(): void {
    this.#wanted = false;
    if (this.#held === undefined) return;
    const { connection, end } = this.#held;
    this.#held = undefined;
    try {
      this.#files.close(connection);
    } finally {
      end();
    }
  }

  /** After the jobs that are here. */
  close(): Promise<void> {
    return new Promise((resolve) => {
      this.#closing = () => {
        clearTimeout(this.#idle);
        this.#release();
        resolve();
      };
      if (!this.#working) this.#closing();
    });
  }
}

/** A file of the origin's private file system. */
export class OpfsFiles implements Files {
  readonly #sqlite3: Sqlite3Static;
  readonly #name: string;
  readonly #schema = new Schema();
  #pool: SAHPoolUtil | undefined;

  constructor(sqlite3: Sqlite3Static, name: string) {
    this.#sqlite3 = sqlite3;
    this.#name = encodeURIComponent(name);
  }

  async open(): Promise<Connection> {
    await patiently(async () => {
      if (this.#pool === undefined) this.#pool = await this.#install();
      else await this.#pool.unpauseVfs();
    });
    if (this.#pool === undefined) throw new TypeError("the pool is there by now");
    return new Connection(this.#sqlite3, new this.#pool.OpfsSAHPoolDb("/database"), this.#schema);
  }

  close(connection: Connection): void {
    connection.close();
    this.#pool?.pauseVfs();
  }

  #install(): Promise<SAHPoolUtil> {
    return this.#sqlite3.installOpfsSAHPoolVfs({
      name: `forge-${this.#name}`,
      directory: `/.forge/${this.#name}`,
      // the database, its journal, and one to spare
      initialCapacity: 3,
      preserveOnInitFailure: true,
      ...{ forceReinitIfPreviouslyFailed: true, verbosity: 0 },
    });
  }
}

/** A tab that was killed loses its lock a moment before its files. */
async function patiently(work: () => Promise<void>): Promise<void> {
  const deadline = performance.now() + 3_000;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      const busy = error instanceof DOMException && error.name === "NoModificationAllowedError";
      if (!busy || performance.now() > deadline) throw unopened(error);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
}

function unopened(error: unknown): ForgeError {
  const message = `the database's files cannot be opened: ${error instanceof Error ? error.message : String(error)}`;
  const fix = "see that the browser lets this site store data, and has room";
  return new ForgeError("failed", message, fix, { code: "storage" });
}

/** A database of this tab alone. */
export class MemoryFiles implements Files {
  readonly #connection: Connection;

  constructor(sqlite3: Sqlite3Static) {
    this.#connection = new Connection(sqlite3, new sqlite3.oo1.DB(":memory:"));
  }

  open(): Promise<Connection> {
    return Promise.resolve(this.#connection);
  }

  close(): void {}
}

/** The turn of tabs that share a file: a Web Lock. */
export class LockTurn implements Turn {
  readonly #name: string;
  readonly #ask: () => void;

  /** `ask` tells the other tabs that one waits. */
  constructor(name: string, ask: () => void) {
    this.#name = name;
    this.#ask = ask;
  }

  take(): Promise<() => void> {
    return new Promise((resolve, reject) => {
      const held = (): Promise<void> => new Promise((end) => resolve(end));
      navigator.locks.request(this.#name, held).catch(reject);
      this.#ask();
    });
  }

  async wanted(): Promise<boolean> {
    const { pending = [] } = await navigator.locks.query();
    return pending.some(({ name }) => name === this.#name);
  }
}

/** The turn of whoever has nobody to share with. */
export const alone: Turn = {
  take: () => Promise.resolve(() => {}),
  wanted: () => Promise.resolve(false),
};
