/**
 * A query's result that stays true: a store that anything can watch.
 *
 * In come the messages of its upstream, out go states. What always holds: data was proven by the server's hash (and has
 * the changes of mutations under way on top); it comes in the server's order; what did not change is the same object as
 * before, rows too. The server is asked while somebody watches, and for a moment longer.
 */

import type { ForgeError } from "./errors.js";
import { Keeper } from "./held.js";
import { Cell } from "./readable.js";
import type { Asked, Cause, Holder, Overlay, Push, Upstream, Whole } from "./upstream.js";

export type Status =
  /** Nothing is known yet. */
  | "connecting"
  /** The data is what the server has. */
  | "live"
  /** The data was true once; the server cannot be heard, or cannot run the query now. `error` says why. */
  | "stale"
  /** The query does not run: `error` says why. */
  | "error";

export interface State<T> {
  readonly status: Status;
  /** The result; undefined before the first one. */
  readonly data: T | undefined;
  /** Why nothing new comes now. */
  readonly error: ForgeError | undefined;
  /** Up to 20 changes that led to the result; empty for a first one. */
  readonly cause: readonly Cause[];
  /** The transactions that it shows. */
  readonly snapshot: string | null;
}

/** What both live results are, a server's and a local one: a store of states, and its results one by one. */
export class Results<T> extends Cell<State<T>> {
  constructor() {
    super({ status: "connecting", data: undefined, error: undefined, cause: [], snapshot: null });
  }

  get state(): State<T> {
    return this.getSnapshot();
  }

  /** The results, the latest for whoever is slow; throws when the query does not run. */
  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    let told = (): void => {};
    let given: T | undefined;
    const end = this.subscribe(() => told());
    try {
      for (;;) {
        const { status, data, error } = this.state;
        if (data !== undefined && data !== given) {
          given = data;
          yield data;
        } else if (error?.kind === "closed") {
          return;
        } else if (status === "error") {
          throw error;
        } else {
          await new Promise<void>((resolve) => {
            told = resolve;
          });
        }
      }
    } finally {
      end();
    }
  }
}

export class Live<T> extends Results<T> implements Holder {
  /** Changes of mutations under way; whoever sets it calls `refresh` when they change. */
  overlay: Overlay | undefined;
  readonly asked: Asked;
  readonly #upstream: Upstream;
  readonly #linger: number;
  readonly #keeper = new Keeper();
  #leaving: ReturnType<typeof setTimeout> | undefined;

  /** `linger`: milliseconds for which the server is still asked when nobody watches any more. */
  constructor(asked: Asked, upstream: Upstream, linger: number) {
    super();
    this.asked = asked;
    this.#upstream = upstream;
    this.#linger = linger;
  }

  /** What the server sent, without anything on top. */
  get base(): T | undefined {
    return this.#keeper.held?.value as T | undefined;
  }

  /** Ask again after an error that was final. */
  retry(): void {
    if (!this.watched) return;
    if (this.state.status === "error") this.#show({ status: this.#idle(), error: undefined });
    this.#upstream.add(this);
  }

  /** Show what the overlay makes of the result now. */
  refresh(): void {
    this.#show({});
  }

  // Of a sink

  get hash(): string | undefined {
    return this.#keeper.hash;
  }

  push(message: Push): void {
    this.#keeper.push(message);
    const { cause, snapshot } = message;
    this.overlay?.settle(snapshot, cause);
    this.#show({ status: "live", error: undefined, cause, snapshot });
  }

  whole(): Whole | undefined {
    return this.#keeper.whole();
  }

  fault(error: ForgeError, final: boolean): void {
    const broken = final || (!this.#keeper.held && isOfQuery(error));
    this.#show({ status: broken ? "error" : this.#idle(), error });
  }

  // Of a store

  protected override started(): void {
    clearTimeout(this.#leaving);
    this.retry();
  }

  protected override ended(): void {
    this.#leaving = setTimeout(() => {
      this.#upstream.remove(this);
      this.#show({ status: this.#idle(), error: undefined });
    }, this.#linger);
  }

  #idle(): Status {
    return this.#keeper.held ? "stale" : "connecting";
  }

  #show(change: Partial<State<T>>): void {
    const base = this.base;
    const data = base === undefined || !this.overlay ? base : (this.overlay.view(base) as T);
    this.set({ ...this.state, ...change, data });
  }
}

/** Whether the server could be asked, and it is the query that fails. */
function isOfQuery({ kind, code }: ForgeError): boolean {
  return kind === "refused" || kind === "unauthorized" || (kind === "failed" && code !== "server_error");
}
