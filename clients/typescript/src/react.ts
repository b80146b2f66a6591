/** Live results for React: a hook. */

import { useSyncExternalStore } from "react";
import type { State } from "./live";
import type { Readable } from "./readable";

/** The state of a live result, a server's or a local one, and of each that follows; what did not change is the same. */
export function useLive<T>(live: Readable<State<T>>): State<T> {
  return useSyncExternalStore(live.subscribe, live.getSnapshot, live.getSnapshot);
}
