/**
 * Live results for TanStack Query: options for `useQuery`, `prefetchQuery` and the like.
 *
 *     useQuery(liveQuery(client.live("open_orders", { customer_id: 7 })));
 *
 * What always holds: while a query has observers its data is what the live result has; without any, the server is not
 * asked. There is nothing to refetch, so it is never stale.
 */

import type { QueryClient, QueryFunctionContext, QueryKey } from "@tanstack/query-core";
import type { Live } from "./live";

export interface LiveQuery<T> {
  readonly queryKey: QueryKey;
  readonly queryFn: (context: QueryFunctionContext) => Promise<T>;
  readonly staleTime: number;
  readonly structuralSharing: false;
  readonly retry: false;
}

/** The options of a query that follows a live result. */
export function liveQuery<T>(live: Live<T>): LiveQuery<T> {
  const { query, args, mode } = live.asked;
  return {
    queryKey: ["forge", query, args, mode],
    queryFn: ({ client, queryKey }) => {
      follow(live, client, queryKey);
      return first(live);
    },
    staleTime: Number.POSITIVE_INFINITY,
    structuralSharing: false,
    retry: false,
  };
}

const following = new WeakMap<QueryClient, Set<unknown>>();

/** Brings each result to the cache until the query leaves it, while somebody observes it. */
function follow<T>(live: Live<T>, client: QueryClient, queryKey: QueryKey): void {
  const followed = following.get(client) ?? new Set();
  following.set(client, followed);
  if (followed.has(live)) return;
  followed.add(live);
  const cache = client.getQueryCache();
  const query = cache.find({ queryKey, exact: true });
  let end: (() => void) | undefined;
  const observe = (): void => {
    if ((query?.getObserversCount() ?? 0) > 0) {
      end ??= live.subscribe(({ data }) => {
        if (data !== undefined) client.setQueryData(queryKey, data);
      });
    } else {
      end?.();
      end = undefined;
    }
  };
  const forget = cache.subscribe((event) => {
    if (event.query !== query) return;
    if (event.type === "observerAdded" || event.type === "observerRemoved") observe();
    if (event.type !== "removed") return;
    end?.();
    forget();
    followed.delete(live);
  });
  observe();
}

async function first<T>(live: Live<T>): Promise<T> {
  for await (const data of live) return data;
  throw live.state.error;
}
