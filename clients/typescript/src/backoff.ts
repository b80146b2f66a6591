/**
 * Waits before the next try: twice as long each time up to a limit, never the same for two that wait, and not any
 * longer when there is a good moment. In milliseconds.
 */

import type { ErrorFields } from "./errors.js";

export class Backoff {
  readonly #first: number;
  readonly #most: number;
  #limit: number;
  #go = (): void => {};

  constructor(first = 250, most = 30_000) {
    this.#first = this.#limit = first;
    this.#most = most;
  }

  /** From half of the limit to all of it, after what the other side asked to wait: by itself, or in an error. */
  wait(atLeast = 0, { retryAfter = 0 }: Pick<ErrorFields, "retryAfter"> = {}): Promise<void> {
    const limit = this.#limit;
    this.#limit = Math.min(this.#most, limit * 2);
    return this.pause(atLeast + retryAfter * 1000 + limit * (0.5 + Math.random() / 2));
  }

  pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#go = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Whoever waits goes on now. */
  wake(): void {
    this.#go();
  }

  /** All is well again. */
  reset(): void {
    this.#limit = this.#first;
  }
}

/** Calls back whenever a page is seen again, or has its network back: good moments to try, until `signal`. */
export function whenBack(signal: AbortSignal, wake: () => void): void {
  globalThis.addEventListener?.("online", wake, { signal });
  const { document } = globalThis;
  document?.addEventListener("visibilitychange", () => document.visibilityState === "visible" && wake(), { signal });
}
