/**
 * How long to wait before the next try: twice as long each time up to a limit, and never the same for two that wait.
 * In milliseconds.
 */

export class Backoff {
  readonly #first: number;
  readonly #most: number;
  readonly #chance: () => number;
  #limit: number;

  constructor(first = 250, most = 30_000, chance: () => number = Math.random) {
    this.#first = this.#limit = first;
    this.#most = most;
    this.#chance = chance;
  }

  /** From half of the limit to all of it, after what the other side asked to wait. */
  next(atLeast = 0): number {
    const limit = this.#limit;
    this.#limit = Math.min(this.#most, limit * 2);
    return atLeast + limit * (0.5 + 0.5 * this.#chance());
  }

  /** All is well again. */
  reset(): void {
    this.#limit = this.#first;
  }
}

/** A wait that can be cut short. */
export class Pause {
  #go: (() => void) | undefined;

  wait(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#go = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  wake(): void {
    this.#go?.();
  }
}
