/** Live results for React: a hook. */

import { useSyncExternalStore } from "react";
import type { State } from "./live.js";
import type { Readable } from "./readable.js";

/** What a server renders, and a page that takes that over renders first: nothing is known yet. */
const CONNECTING: State<never> = {
  status: "connecting",
  data: undefined,
  error: undefined,
  cause: [],
  snapshot: null,
};

/** The state of a live result, a server's or a local one, and of each that follows; what did not change is the same. */
export function useLive<T>(live: Readable<State<T>>): State<T> {
  return useSyncExternalStore(live.subscribe, live.getSnapshot, () => CONNECTING);
}
