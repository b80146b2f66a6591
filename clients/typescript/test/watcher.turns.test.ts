/** Tabs that take turns: never two at once, each in its time, and none forgotten. */

import { expect, it } from "vitest";
import type { Connection } from "../src/watcher/connection";
import { type Files, type Turn, Turns } from "../src/watcher/turns";

/** A lock that tabs share, first come, first served, and what they did with it. */
class Shared {
  readonly said: string[] = [];
  readonly tabs: Turns[] = [];
  #open: string | undefined;
  readonly #queue: (() => void)[] = [];

  tab(name: string): Turns {
    const files: Files = {
      open: async () => {
        await Promise.resolve();
        if (this.#open !== undefined) throw new Error(`${name} opened what ${this.#open} has open`);
        this.#open = name;
        return { name } as unknown as Connection;
      },
      close: () => {
        this.#open = undefined;
      },
    };
    const turn: Turn = {
      take: () =>
        new Promise((resolve) => {
          this.#queue.push(() => resolve(() => this.#next()));
          if (this.#queue.length === 1) this.#queue[0]?.();
          for (const other of this.tabs) if (other !== tab) other.want();
        }),
      wanted: () => Promise.resolve(this.#queue.length > 1),
    };
    const tab = new Turns(files, turn, () => this.said.push(`open ${name}`));
    this.tabs.push(tab);
    return tab;
  }

  #next(): void {
    this.#queue.shift();
    this.#queue[0]?.();
  }
}

it("keeps the database while nobody else wants it, and lets others in between jobs", async () => {
  const shared = new Shared();
  const [one, other] = [shared.tab("one"), shared.tab("other")];
  for (let i = 0; i < 3; i++) await one.use(() => shared.said.push("one"));
  expect(shared.said).toEqual(["open one", "one", "one", "one"]);
  await other.use(() => shared.said.push("other"));
  await one.use(() => shared.said.push("one"));
  expect(shared.said.slice(4)).toEqual(["open other", "other", "open one", "one"]);
});

it("runs all jobs of all tabs, each tab's in order, never two at once", async () => {
  const shared = new Shared();
  const tabs = ["a", "b", "c"].map((name) => ({ name, turns: shared.tab(name), done: [] as number[] }));
  let inside = 0;
  const jobs = tabs.flatMap(({ turns, done }) =>
    Array.from({ length: 20 }, (_, i) =>
      turns.use(async () => {
        expect(++inside).toBe(1);
        await new Promise((resolve) => setTimeout(resolve, i % 3));
        inside -= 1;
        done.push(i);
      }),
    ),
  );
  await Promise.all(jobs);
  for (const { done } of tabs) expect(done).toEqual(Array.from({ length: 20 }, (_, i) => i));
});

it("fails what waits when the database cannot be opened, and tries again for the next", async () => {
  const said: string[] = [];
  let broken = true;
  const files: Files = {
    open: () => (broken ? Promise.reject(new Error("no room")) : Promise.resolve({} as Connection)),
    close: () => said.push("closed"),
  };
  const turn: Turn = {
    take: () => Promise.resolve(() => said.push("ended")),
    wanted: () => Promise.resolve(false),
  };
  const turns = new Turns(files, turn, () => undefined);
  await expect(Promise.allSettled([turns.use(() => 1), turns.use(() => 2)])).resolves.toMatchObject([
    { status: "rejected" },
    { status: "rejected" },
  ]);
  expect(said).toEqual(["ended"]);
  broken = false;
  await expect(turns.use(() => 3)).resolves.toBe(3);
  await expect(turns.use(() => Promise.reject(new Error("a job's own")))).rejects.toThrow("a job's own");
  await expect(turns.use(() => 4)).resolves.toBe(4);
});

it("closes after the jobs that are here", async () => {
  const shared = new Shared();
  const one = shared.tab("one");
  const jobs = [1, 2, 3].map((n) => one.use(() => new Promise((resolve) => setTimeout(() => resolve(n), 1))));
  await one.close();
  expect(await Promise.all(jobs)).toEqual([1, 2, 3]);
  await shared.tab("other").use(() => undefined);
  expect(shared.said).toEqual(["open one", "open other"]);
});
