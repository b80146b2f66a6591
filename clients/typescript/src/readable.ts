/**
 * A value that changes, for those who show it: a store of Svelte's contract, and of React's useSyncExternalStore.
 *
 * Listeners are told in the order in which they came, each of the newest value; one that throws harms no other.
 */

export interface Readable<T> {
  /** Calls the listener at once, and whenever the value changes; returns how to end that. */
  subscribe(listener: (value: T) => void): () => void;
  /** The value; the same one until it changes. */
  getSnapshot(): T;
}

export class Cell<T> implements Readable<T> {
  #value: T;
  readonly #listeners = new Set<{ listener: (value: T) => void }>();

  constructor(value: T) {
    this.#value = value;
  }

  readonly getSnapshot = (): T => this.#value;

  readonly subscribe = (listener: (value: T) => void): (() => void) => {
    const entry = { listener };
    this.#listeners.add(entry);
    if (this.#listeners.size === 1) this.started();
    tell(listener, this.#value);
    return () => {
      if (this.#listeners.delete(entry) && this.#listeners.size === 0) this.ended();
    };
  };

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const entry of [...this.#listeners]) if (this.#listeners.has(entry)) tell(entry.listener, this.#value);
  }

  get watched(): boolean {
    return this.#listeners.size > 0;
  }

  /** The first listener came. */
  protected started(): void {}

  /** The last listener went. */
  protected ended(): void {}
}

/** One that throws harms no other. */
export function tell<T>(listener: (value: T) => void, value: T): void {
  try {
    listener(value);
  } catch (error) {
    report(error);
  }
}

/** To the page's own handling of errors, behind what is under way. */
export function report(error: unknown): void {
  queueMicrotask(() => {
    throw error;
  });
}
