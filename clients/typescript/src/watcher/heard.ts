/**
 * Whether a tab was told of every transaction that the file has.
 *
 * In come the file's version as it is seen, and the announcements: each leads from one version to the next.
 * Announcements may come late, in another order, or not at all, when the tab that wrote was closed before it could
 * speak. What always holds: while `missing` is false, everything up to the newest version was announced.
 */

export class Heard {
  #upTo: number;
  #newest: number;
  readonly #ahead = new Map<number, number>();

  constructor(version: number) {
    this.#upTo = this.#newest = version;
  }

  /** A transaction led from one version to another. */
  announced(from: number, to: number): void {
    this.seen(to);
    if (from >= this.#upTo) this.#ahead.set(from, to);
    for (let next = this.#ahead.get(this.#upTo); next !== undefined; next = this.#ahead.get(this.#upTo)) {
      this.#ahead.delete(this.#upTo);
      this.#upTo = next;
    }
  }

  /** The file has this version. */
  seen(version: number): void {
    this.#newest = Math.max(this.#newest, version);
  }

  get missing(): boolean {
    return this.#upTo !== this.#newest;
  }

  /** What was not heard was looked up. */
  forgive(): void {
    this.#upTo = this.#newest;
    this.#ahead.clear();
  }
}
