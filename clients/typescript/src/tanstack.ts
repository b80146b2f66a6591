/**
 * Live results for TanStack Query: options for `useQuery`, `prefetchQuery` and the like.
 *
 *     useQuery(liveQuery(client.live("open_orders", { customer_id: 7 })));
 *
 * What always holds: while a query has observers its data is what the live result has, and its error what ended that;
 * without any, the server is not asked. There is nothing to refetch, so it is never stale. A key is of one live result
 * of one client on one page: nobody is shown what a client of somebody else, or an earlier page, left in a cache.
 */

import type { Query, QueryFunctionContext, QueryKey } from "@tanstack/query-core";
import type { Live } from "./live.js";

export interface LiveQuery<T> {
  readonly queryKey: QueryKey;
  readonly queryFn: (context: QueryFunctionContext) => Promise<T>;
  readonly staleTime: number;
  /** What is in the cache, wherever it comes from, is followed from when it is first observed. */
  readonly refetchOnMount: "always";
  readonly structuralSharing: false;
  readonly retry: false;
}

/** The options of a query that follows a live result. */
export function liveQuery<T>(live: Live<T>): LiveQuery<T> {
  const { query, args, mode } = live.asked;
  return {
    queryKey: ["forge", query, args, mode, idOf(live)],
    queryFn: ({ client, queryKey, signal }) => {
      const found = client.getQueryCache().find<T>({ queryKey, exact: true });
      if (found) follow(live, found, client.getQueryCache());
      return current(live, signal);
    },
    staleTime: Number.POSITIVE_INFINITY,
    refetchOnMount: "always",
    structuralSharing: false,
    retry: false,
  };
}

const ids = new WeakMap<object, string>();

/** Of this live result alone: a number that is counted would be somebody else's in a cache that outlives the page. */
function idOf(live: object): string {
  const id = ids.get(live) ?? crypto.getRandomValues(new Uint32Array(4)).join("-");
  ids.set(live, id);
  return id;
}

type Cache = ReturnType<QueryFunctionContext["client"]["getQueryCache"]>;

/** What a query follows, and how to end that. */
const following = new WeakMap<object, { readonly live: unknown; readonly end: () => void }>();

/** Brings each result to the query until that leaves the cache, while somebody observes it. */
function follow<T>(live: Live<T>, query: Query<T>, cache: Cache): void {
  const before = following.get(query);
  if (before?.live === live) return;
  before?.end();
  let leave: (() => void) | undefined;
  const observe = (): void => {
    if (query.getObserversCount() > 0) leave ??= live.subscribe(() => show(live, query));
    else {
      leave?.();
      leave = undefined;
    }
  };
  const forget = cache.subscribe((event) => {
    if (event.query !== query) return;
    if (event.type === "observerAdded" || event.type === "observerRemoved") observe();
    // what was fetched may be older than what came since
    else if (event.type === "updated" && event.action.type === "success" && !event.action.manual) show(live, query);
    else if (event.type === "removed") end();
  });
  const end = (): void => {
    leave?.();
    forget();
    following.delete(query);
  };
  following.set(query, { live, end });
  observe();
}

/** Has the query say what the live result says; of one that is fetched, its function says whether that failed. */
function show<T>(live: Live<T>, query: Query<T>): void {
  const { status, data, error } = live.state;
  const now = query.state;
  if (status === "error" && error) {
    if (now.error === error || now.fetchStatus !== "idle") return;
    const counted = { errorUpdateCount: now.errorUpdateCount + 1, errorUpdatedAt: Date.now() };
    query.setState({ status, error, isInvalidated: true, ...counted });
  } else if (data !== undefined && (data !== now.data || now.status !== "success")) {
    query.setData(data, { manual: true });
  }
}

/** The result as the server has it, asked for again after an error; rejects when the query does not run. */
function current<T>(live: Live<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    let asked = false;
    const look = (): void => {
      const { status, data, error } = live.state;
      if (!asked || (status !== "live" && status !== "error")) return;
      end();
      if (status === "live") resolve(data as T);
      else reject(error);
    };
    const end = live.subscribe(look);
    signal.addEventListener("abort", end);
    live.retry();
    asked = true;
    look();
  });
}
