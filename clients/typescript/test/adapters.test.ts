// @vitest-environment happy-dom
/** Live results in React and in TanStack Query. */

import { dehydrate, hydrate, QueryClient, QueryObserver } from "@tanstack/query-core";
import { act, createElement, memo, type ReactNode, StrictMode } from "react";
import { createRoot, hydrateRoot } from "react-dom/client";
import { renderToString } from "react-dom/server";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { createClient } from "../src/client";
import type { Live } from "../src/live";
import { useLive } from "../src/react";
import { liveQuery } from "../src/tanstack";
import { type Row, Server } from "./server";

let server: Server;
let live: Live<Row[]>;
beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  server = new Server();
  server.change([{ id: 1, n: "a" }, { id: 2, n: "b" }]);
  live = createClient({ url: "http://forge.test", share: false, fetch: server.fetch }).live<Row[]>("rows");
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const settle = (ms = 10): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

test("React renders each state, and of the rows only those that changed", async () => {
  const rendered: string[] = [];
  const statuses: string[] = [];
  const Item = memo(({ row }: { row: Row }): ReactNode => {
    rendered.push(row.n);
    return createElement("li", null, row.n);
  });
  const List = (): ReactNode => {
    const { data, status } = useLive(live);
    statuses.push(status);
    return createElement("ul", { title: status }, data?.map((row) => createElement(Item, { key: row.id, row })));
  };
  const container = document.createElement("div");
  const root = createRoot(container);
  await act(async () => root.render(createElement(List)));
  await act(() => settle());
  expect(container.innerHTML).toBe('<ul title="live"><li>a</li><li>b</li></ul>');
  server.change([{ id: 1, n: "a" }, { id: 2, n: "c" }]);
  await act(() => settle());
  expect(container.textContent).toBe("ac");
  expect([rendered, statuses]).toEqual([["a", "b", "c"], ["connecting", "live", "live"]]);
  await act(async () => root.unmount());
  await settle(2_000);
  expect(server.connections.size).toBe(0);
});

const Names = (): ReactNode => {
  const { data, status } = useLive(live);
  return createElement("p", { title: status }, data?.map(({ n }) => n).join());
};

test("what a server rendered is taken over as it is, also where the result is there already", async () => {
  const rendered = renderToString(createElement(Names));
  const end = live.subscribe(() => {});
  await settle();
  expect(live.state.status).toBe("live");
  const container = document.createElement("div");
  container.innerHTML = rendered;
  const mismatches: unknown[] = [];
  const errors = vi.spyOn(console, "error");
  await act(async () => {
    hydrateRoot(container, createElement(Names), { onRecoverableError: (error) => mismatches.push(error) });
  });
  expect([mismatches, errors.mock.calls]).toEqual([[], []]);
  expect(container.innerHTML).toBe('<p title="live">a,b</p>');
  errors.mockRestore();
  end();
});

test("what StrictMode mounts twice is one subscription, which ends", async () => {
  const container = document.createElement("div");
  const root = createRoot(container);
  await act(async () => root.render(createElement(StrictMode, null, createElement(Names))));
  await act(() => settle());
  expect(container.innerHTML).toBe('<p title="live">a,b</p>');
  expect([...server.connections].map(({ subscriptions }) => subscriptions.size)).toEqual([1]);
  server.change([{ id: 1, n: "z" }]);
  await act(() => settle());
  expect(container.textContent).toBe("z");
  await act(async () => root.unmount());
  await settle(2_000);
  expect(server.connections.size).toBe(0);
});

test("a query of TanStack's follows while it is observed, and again when it is observed again", async () => {
  const client = new QueryClient();
  const seen: (number | undefined)[] = [];
  const observe = (): (() => void) =>
    new QueryObserver(client, liveQuery(live)).subscribe(({ data }) => void seen.push(data?.length));
  const end = observe();
  await settle();
  server.change([]);
  await settle();
  expect(seen.at(-1)).toBe(0);
  expect(client.getQueryData(liveQuery(live).queryKey)).toBe(live.state.data);
  end();
  await settle(2_000);
  expect(server.connections.size).toBe(0);
  server.change([{ id: 7, n: "g" }]);
  observe();
  await settle();
  expect(seen.at(-1)).toBe(1);
});

test("a query of TanStack's that the server refuses is an error", async () => {
  const client = new QueryClient();
  server.refused = { connects: 9, asks: 0, status: 401 };
  const fetching = client.fetchQuery(liveQuery(live));
  await Promise.all([expect(fetching).rejects.toMatchObject({ kind: "unauthorized" }), settle()]);
});

test("a cache that clients of two users share shows neither the other's rows", async () => {
  const [cache, others] = [new QueryClient(), new Server()];
  others.change([{ id: 9, n: "another's" }]);
  const other = createClient({ url: "http://forge.test", share: false, fetch: others.fetch }).live<Row[]>("rows");
  const seen: string[][] = [];
  for (const one of [live, other]) {
    const names: string[] = [];
    seen.push(names);
    const observer = new QueryObserver(cache, liveQuery(one));
    const end = observer.subscribe(({ data = [] }) => void names.push(...data.map(({ n }) => n)));
    await settle();
    end();
  }
  expect(seen.map((names) => [...new Set(names)])).toEqual([["a", "b"], ["another's"]]);
  expect(liveQuery(live).queryKey).toEqual(liveQuery(live).queryKey);
});

test("what an earlier page kept is nobody's, and what is put into a cache is live once it is observed", async () => {
  const [earlier, cache] = [new QueryClient(), new QueryClient()];
  const before = createClient({ url: "http://forge.test", share: false, fetch: server.fetch }).live<Row[]>("rows");
  const prefetched = earlier.prefetchQuery(liveQuery(before));
  await settle();
  await prefetched;
  hydrate(cache, dehydrate(earlier));
  const { queryKey } = liveQuery(live);
  expect([cache.getQueryCache().getAll().length, cache.getQueryData(queryKey)]).toEqual([1, undefined]);
  cache.setQueryData(queryKey, [{ id: 1, n: "old" }]);
  const seen: string[] = [];
  const observer = new QueryObserver(cache, liveQuery(live));
  observer.subscribe(({ data = [] }) => void seen.push(data.map(({ n }) => n).join()));
  await settle();
  server.change([{ id: 3, n: "c" }]);
  await settle();
  expect([...new Set(seen)]).toEqual(["old", "a,b", "c"]);
});

test("an error that ends a query of TanStack's is its error, until it is asked for again", async () => {
  const cache = new QueryClient();
  const observer = new QueryObserver(cache, liveQuery(live));
  const end = observer.subscribe(() => {});
  await settle();
  const { data } = observer.getCurrentResult();
  server.fail("forbidden");
  await settle();
  const failed = { status: "error", error: { code: "forbidden" }, fetchStatus: "idle" };
  expect(observer.getCurrentResult()).toMatchObject(failed);
  expect(observer.getCurrentResult().data).toBe(data);
  const again = observer.refetch();
  await settle();
  expect(await again).toMatchObject({ status: "success", error: null });
  server.change([{ id: 5, n: "e" }]);
  await settle();
  expect(observer.getCurrentResult()).toMatchObject({ status: "success", data: [{ n: "e" }] });
  end();
  await settle(2_000);
  expect(server.connections.size).toBe(0);
});

test("a query of TanStack's that nobody waits for any more asks nobody", async () => {
  server.refused = { connects: 1_000, asks: 0, status: 503 };
  const end = new QueryObserver(new QueryClient(), liveQuery(live)).subscribe(() => {});
  await settle();
  expect(live.watched).toBe(true);
  end();
  await settle();
  expect(live.watched).toBe(false);
});

test("a key of one's own follows the live result that was given last", async () => {
  const [cache, others] = [new QueryClient(), new Server()];
  others.change([{ id: 9, n: "second" }]);
  const other = createClient({ url: "http://forge.test", share: false, fetch: others.fetch }).live<Row[]>("rows");
  const queryKey = ["mine"];
  const observer = new QueryObserver(cache, { ...liveQuery(live), queryKey });
  observer.subscribe(() => {});
  await settle();
  observer.setOptions({ ...liveQuery(other), queryKey });
  void observer.refetch();
  await settle();
  server.change([{ id: 1, n: "first" }]);
  others.change([{ id: 9, n: "last" }]);
  await settle();
  expect(observer.getCurrentResult().data).toEqual([{ id: 9, n: "last" }]);
});
