/**
 * The result of a local query that stays true: the same store as a live query of the server.
 *
 * What always holds: rows that did not change are the same objects as before.
 */

import type { ForgeError } from "../errors.js";
import { Results } from "../live.js";

export class LocalLive<T> extends Results<readonly T[]> {
  readonly #started: () => void;
  readonly #ended: () => void;
  #leaving: ReturnType<typeof setTimeout> | undefined;

  constructor(started: () => void, ended: () => void) {
    super();
    this.#started = started;
    this.#ended = ended;
  }

  /** Rows, or places of rows in the result before. */
  push(rows: readonly (T | number)[]): void {
    const before = this.state.data ?? [];
    const data = rows.map((row) => (typeof row === "number" ? (before[row] as T) : row));
    this.set({ ...this.state, status: "live", data, error: undefined });
  }

  fail(error: ForgeError): void {
    this.set({ ...this.state, status: "error", data: undefined, error });
  }

  protected override started(): void {
    clearTimeout(this.#leaving);
    this.#leaving = undefined;
    this.#started();
  }

  /** A component that is drawn again leaves and comes back at once. */
  protected override ended(): void {
    this.#leaving = setTimeout(() => {
      this.set({ ...this.state, status: this.state.data ? "stale" : "connecting" });
      this.#ended();
    }, 100);
  }
}
