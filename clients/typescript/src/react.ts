/** Live results for React: a hook. */

import { useSyncExternalStore } from "react";
import type { Live, State } from "./live";

/** The state of a live result, and of each one that follows; rows that did not change are the same objects. */
export function useLive<T>(live: Live<T>): State<T> {
  return useSyncExternalStore(live.subscribe, live.getSnapshot, live.getSnapshot);
}
