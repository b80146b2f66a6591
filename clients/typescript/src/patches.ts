/**
 * What mutations under way will change, shown before the server says it: one list of changes on top of a live result.
 *
 * A change is shown from when its mutation is made until a result comes that contains it, and is gone in the very state
 * that shows that result: it never shows twice, nor is missing in between. Which result that is, its snapshot says, or
 * before the answer, a cause of it that has the mutation's trace; where that is not among those that the server names,
 * it shows twice until the answer. A mutation that wrote nothing, or failed, takes its changes with it.
 */

import type { ForgeError } from "./errors.js";
import type { Live } from "./live.js";
import { report } from "./readable.js";
import { type Answer, type Caller, type Cause, type Optimistic, type Overlay, shows, traceOf } from "./upstream.js";

type Change = (data: unknown) => unknown;

/** How long to wait for the result that shows a mutation before asking, in milliseconds. */
const OVERDUE = 1_000;
const LONGEST = 30_000;

/** A change of a live result, and the mutation that makes it. */
interface Patch {
  readonly change: Change;
  readonly by: Expected;
}

/** The changes to one live result, in the order of the mutations. */
class Patches implements Overlay {
  #patches: readonly Patch[] = [];
  #base: unknown;
  #view: unknown;

  /** Whether something of it is shown. */
  has(expected: Expected): boolean {
    return this.#patches.some(({ by }) => by === expected);
  }

  add(patch: Patch): void {
    this.#patches = [...this.#patches, patch];
    this.#base = undefined;
  }

  /** Drops those of mutations for which it is true. */
  drop(gone: (by: Expected) => boolean): void {
    const kept = this.#patches.filter(({ by }) => !gone(by));
    if (kept.length === this.#patches.length) return;
    this.#patches = kept;
    this.#base = undefined;
  }

  settle(snapshot: string | null, cause: readonly Cause[]): void {
    this.drop((by) => (by.xid === undefined ? cause.some(({ trace }) => trace === by.trace) : shows(snapshot, by.xid)));
  }

  view(base: unknown): unknown {
    if (this.#base !== base) {
      this.#view = this.#patches.reduce(applied, base);
      this.#base = base;
    }
    return this.#view;
  }
}

/** A change that fails is not shown, and harms no other. */
function applied(data: unknown, { change }: Patch): unknown {
  try {
    return change(data);
  } catch (error) {
    report(error);
    return data;
  }
}

/** Changes that a mutation is expected to make, from now until it is known whether it did. */
export class Expected {
  readonly trace: string;
  /** Of the transaction, once that is known. */
  xid: string | undefined;
  readonly #lives: ReadonlySet<Live<unknown>>;
  readonly #call: Caller;

  constructor(optimistic: Optimistic, key: string, call: Caller) {
    this.trace = traceOf(key);
    this.#call = call;
    const changes: [Live<unknown>, Change][] = [];
    optimistic({ update: (live, change) => changes.push([live as Live<unknown>, change as Change]) });
    this.#lives = new Set(changes.map(([live]) => live));
    for (const [live, change] of changes) overlayOf(live).add({ change, by: this });
    for (const live of this.#lives) live.refresh();
  }

  /** It is done: its changes go when they are seen, or at once where they are, or where there are none. */
  done({ xid }: Answer): void {
    if (xid === null) return this.undo();
    this.xid = xid;
    for (const live of this.#lives) {
      if (shows(live.state.snapshot, xid)) this.#drop(live);
      else this.#await(live, xid, OVERDUE);
    }
  }

  /** Nothing was changed. */
  undo(): void {
    for (const live of this.#lives) this.#drop(live);
  }

  #drop(live: Live<unknown>): void {
    const overlay = overlayOf(live);
    if (!overlay.has(this)) return;
    overlay.drop((by) => by === this);
    live.refresh();
  }

  /** A mutation may leave a result as it was, and then nothing is pushed. */
  #await(live: Live<unknown>, xid: string, ms: number): void {
    setTimeout(async () => {
      if (!overlayOf(live).has(this)) return;
      if (!live.watched) return ms < LONGEST ? this.#await(live, xid, ms * 2) : this.#drop(live);
      try {
        const { query: name, args } = live.asked;
        const answer = await this.#call({ kind: "query", name, args, after: xid });
        if (answer.hash === live.hash) return this.#drop(live);
      } catch (error) {
        if ((error as ForgeError).kind === "closed") return; // else it is asked again
      }
      this.#await(live, xid, Math.min(LONGEST, ms * 2));
    }, ms);
  }
}

function overlayOf(live: Live<unknown>): Patches {
  if (live.overlay instanceof Patches) return live.overlay;
  return (live.overlay = new Patches());
}
