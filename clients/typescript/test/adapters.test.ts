// @vitest-environment happy-dom
/** Live results in React and in TanStack Query. */

import { QueryClient, QueryObserver } from "@tanstack/query-core";
import { act, createElement, memo, type ReactNode } from "react";
import { createRoot } from "react-dom/client";
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
