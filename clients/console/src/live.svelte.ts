/** A live query as state: what it is follows what the function returns, and nothing is subscribed to when unused. */

import type { ForgeError, Live } from "@forge/client";
import { SvelteDate } from "svelte/reactivity";

export interface Watched<T> {
  readonly status: "connecting" | "live" | "stale" | "error";
  readonly data: T | undefined;
  /** Why nothing new comes. */
  readonly error: ForgeError | undefined;
}

/** Must be called where effects may be: at the top of a component. */
export function watch<T>(live: () => Live<T> | null): Watched<T> {
  let state = $state.raw<Watched<T>>({ status: "connecting", data: undefined, error: undefined });
  $effect(() => {
    const followed = live();
    state = { status: "connecting", data: undefined, error: undefined };
    return followed?.subscribe((next) => (state = next));
  });
  return {
    get status() {
      return state.status;
    },
    get data() {
      return state.data;
    },
    get error() {
      return state.error;
    },
  };
}

/** The clock, once a second, while somebody looks at it. */
export function ticking(): { readonly now: number } {
  const at = new SvelteDate();
  $effect(() => {
    const timer = setInterval(() => at.setTime(Date.now()), 1000);
    return () => clearInterval(timer);
  });
  return {
    get now() {
      return at.getTime();
    },
  };
}
