/**
 * What mutations under way will change, shown before the server says it: one list of changes on top of a live result.
 *
 * A change is shown from when its mutation is made until a result comes that contains it, and is gone in the very state
 * that shows that result: it never shows twice, nor is missing in between. Which result that is, its snapshot says, or
 * a cause of it that has the mutation's trace. A mutation that wrote nothing, or failed, takes its changes with it.
 */

import type { Live } from "./live";
import { type Answer, type Caller, type Cause, type Optimistic, type Overlay, shows } from "./upstream";

type Change = (data: unknown) => unknown;

/** How long to wait for the result that shows a mutation before asking, in milliseconds. */
const OVERDUE = 1_000;
const LONGEST = 30_000;

/** The changes of one mutation to one live result. */
interface Patch {
  readonly change: Change;
  readonly trace: string;
  /** Of the transaction, once that is known. */
  xid: string | undefined;
}

/** The changes to one live result, in the order of the mutations. */
class Patches implements Overlay {
  #patches: readonly Patch[] = [];
  #base: unknown;
  #view: unknown;

  get empty(): boolean {
    return this.#patches.length === 0;
  }

  has(patch: Patch): boolean {
    return this.#patches.includes(patch);
  }

  add(patch: Patch): void {
    this.#patches = [...this.#patches, patch];
    this.#base = undefined;
  }

  /** Keeps those for which it is true. */
  keep(wanted: (patch: Patch) => boolean): void {
    const kept = this.#patches.filter(wanted);
    if (kept.length === this.#patches.length) return;
    this.#patches = kept;
    this.#base = undefined;
  }

  settle(snapshot: string | null, cause: readonly Cause[]): void {
    this.keep(({ xid, trace }) =>
      xid === undefined ? !cause.some((one) => one.trace === trace) : !shows(snapshot, xid),
    );
  }

  view(base: unknown): unknown {
    if (this.empty) return base;
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
    queueMicrotask(() => {
      throw error;
    });
    return data;
  }
}

/** Changes that a mutation is expected to make, from now until it is known whether it did. */
export class Expected {
  readonly #patches = new Map<Live<unknown>, Patch[]>();
  readonly #call: Caller;
  #over = false;

  constructor(optimistic: Optimistic, key: string, call: Caller) {
    this.#call = call;
    optimistic({
      update: (live, change) => {
        const found = live as Live<unknown>;
        const patch = { change: change as Change, trace: key, xid: undefined };
        this.#patches.set(found, [...(this.#patches.get(found) ?? []), patch]);
      },
    });
    for (const [live, patches] of this.#patches) {
      const overlay = overlayOf(live);
      for (const patch of patches) overlay.add(patch);
      live.refresh();
    }
  }

  /** It is done: its changes go when they are seen, or at once where they are, or where there are none. */
  done({ xid }: Answer): void {
    if (xid === null) return this.undo();
    for (const [live, patches] of this.#patches) {
      for (const patch of patches) patch.xid = xid;
      if (shows(live.state.snapshot, xid)) this.#drop(live);
      else this.#await(live, xid, OVERDUE);
    }
  }

  /** Nothing was changed. */
  undo(): void {
    this.#over = true;
    for (const live of this.#patches.keys()) this.#drop(live);
  }

  #drop(live: Live<unknown>): void {
    const patches = this.#patches.get(live) ?? [];
    if (!patches.some((patch) => overlayOf(live).has(patch))) return;
    overlayOf(live).keep((patch) => !patches.includes(patch));
    live.refresh();
  }

  /** A mutation may leave a result as it was, and then nothing is pushed. */
  #await(live: Live<unknown>, xid: string, ms: number): void {
    setTimeout(async () => {
      const patches = this.#patches.get(live) ?? [];
      if (this.#over || !patches.some((patch) => overlayOf(live).has(patch))) return;
      if (!live.watched) return ms < LONGEST ? this.#await(live, xid, ms * 2) : this.#drop(live);
      try {
        const { query: name, args } = live.asked;
        const answer = await this.#call({ kind: "query", name, args, after: xid });
        if (answer.hash === live.hash) return this.#drop(live);
      } catch {
        // it is asked again
      }
      this.#await(live, xid, Math.min(LONGEST, ms * 2));
    }, ms);
  }
}

function overlayOf(live: Live<unknown>): Patches {
  if (live.overlay instanceof Patches) return live.overlay;
  return (live.overlay = new Patches());
}
