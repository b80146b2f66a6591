/** The live queries of a tab while its database comes and goes. */

import sqlite3InitModule, { type Sqlite3Static } from "@sqlite.org/sqlite-wasm";
import { afterEach, beforeAll, beforeEach, expect, it, vi } from "vitest";
import { ForgeError } from "../src/errors";
import { Connection } from "../src/watcher/connection";
import { Engine } from "../src/watcher/engine";
import { LocalLive } from "../src/watcher/local";
import type { Turns } from "../src/watcher/turns";

let sqlite3: Sqlite3Static;
beforeAll(async () => {
  sqlite3 = await sqlite3InitModule();
});
beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const settle = (ms = 10): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

/** A tab with a query of two rows, whose file may not be there. */
class World {
  readonly live = new LocalLive<{ id: number; n: string }>(
    () => {},
    () => {},
  );
  away = false;
  asked = 0;
  readonly #connection = new Connection(sqlite3, new sqlite3.oo1.DB(":memory:"));
  readonly #engine = new Engine(
    (reply) => {
      if (!("live" in reply)) return;
      if ("rows" in reply) this.live.push(reply.rows as never);
      else this.live.fail(ForgeError.of(reply.error));
    },
    () => {},
  );

  async open(): Promise<void> {
    const use = async (job: (connection: Connection) => unknown): Promise<unknown> => {
      this.asked++;
      if (this.away) throw new Error("the file is in use");
      return job(this.#connection);
    };
    await this.#engine.open({ use, close: async () => {} } as unknown as Turns, [
      "CREATE TABLE t (id INTEGER PRIMARY KEY, n TEXT); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    ]);
    this.#engine.opened(this.#connection);
    await this.#ask({ ask: "watch", live: 1, sql: "SELECT * FROM t ORDER BY id", params: [] });
  }

  /** Another tab wrote. */
  written(sql: string): void {
    const from = this.#connection.version();
    this.#connection.exec(sql);
    const to = this.#connection.version();
    this.#engine.hear({ kind: "written", from, to, rows: this.#connection.written() });
  }

  close(): Promise<void> {
    return this.#ask({ ask: "close" });
  }

  #ask(request: object): Promise<void> {
    return this.#engine.handle({ id: 0, ...request } as never);
  }
}

const ALL = [{ id: 1, n: "a" }, { id: 2, n: "z" }];

it("shows all rows again when the database is back: by itself, or at the next write", async () => {
  for (const writes of [false, true]) {
    const world = new World();
    await world.open();
    expect(world.live.state.data?.length).toBe(2);
    world.away = true;
    world.written("UPDATE t SET n = 'z' WHERE id = 2");
    await settle();
    const failed = { status: "error", data: undefined, error: { message: "the file is in use" } };
    expect(world.live.state).toMatchObject(failed);
    world.away = false;
    if (writes) world.written("UPDATE t SET n = 'z' WHERE id = 2");
    await settle(writes ? 10 : 3_000);
    expect(world.live.state).toMatchObject({ status: "live", data: ALL });
    await world.close();
  }
});

it("tries now and then while it is away, and no more once it is closed", async () => {
  const world = new World();
  await world.open();
  world.away = true;
  for (const n of ["x", "y", "z"]) world.written(`UPDATE t SET n = '${n}' WHERE id = 2`);
  const before = world.asked;
  await settle(21_000);
  expect(world.asked - before).toBeLessThan(15);
  await world.close();
  expect(vi.getTimerCount()).toBe(0);
});
