/** A live query as state: what it is follows what the function returns, and nothing is subscribed to when unused. */

import type { Live } from "@forge/client";
import { SvelteDate } from "svelte/reactivity";

export interface Watched<T> {
  readonly status: "connecting" | "live" | "stale" | "error";
  readonly data: T | undefined;
  readonly error: { message: string; code?: string; fix?: string | null } | null;
}

/** Must be called where effects may be: at the top of a component. */
export function watch<T>(live: () => Live<T> | null): Watched<T> {
  let state = $state.raw<Watched<T>>({ status: "connecting", data: undefined, error: null });
  $effect(() => {
    const followed = live();
    state = { status: "connecting", data: undefined, error: null };
    return followed?.subscribe((next) => {
      state = { status: next.status, data: next.data, error: (next.error as Watched<T>["error"]) ?? null };
    });
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
