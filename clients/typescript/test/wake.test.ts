// @vitest-environment happy-dom
/** A page that is seen again, or has its network back, connects at once: not after what is left of a long wait. */

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { createClient } from "../src/client";
import { Server } from "./server";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test.each([
  ["online", () => window.dispatchEvent(new Event("online"))],
  ["visibilitychange", () => document.dispatchEvent(new Event("visibilitychange"))],
])("%s", async (_, happens) => {
  const server = new Server();
  server.refused = { connects: 1_000, asks: 0, status: 0 };
  const client = createClient({ url: "http://forge.test", share: false, fetch: server.fetch });
  const live = client.live("rows");
  live.subscribe(() => {});
  await vi.advanceTimersByTimeAsync(120_000);
  server.heal();
  await vi.advanceTimersByTimeAsync(10);
  expect(live.state.status).toBe("connecting");
  happens();
  await vi.advanceTimersByTimeAsync(10);
  expect(live.state.status).toBe("live");
  client.close();
});
