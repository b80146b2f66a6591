/**
 * The client against random sequences of what a server may do: changes, gaps, errors, messages that are wrong or lost,
 * refusals, streams that break, fall silent or are forgotten, while lives are watched and left.
 *
 * Whatever happens, each state that is told has a result that the server had, none older than the one before; and when
 * it is over, every live that is watched has the server's result.
 */

import fc from "fast-check";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { createClient } from "../src/client";
import type { Live, State } from "../src/live";
import { type Fault, type Row, Server } from "./server";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const RUNS = Number(process.env["FORGE_RUNS"] ?? 30);
const TEXTS = ["", "a", "é🦊", '"quoted"', "line\nfeed", "],", "[", '{"$int":"1"}', "\u2028\r"];
const text = fc.constantFrom(...TEXTS);
const place = fc.nat({ max: 7 });

type Step = (server: Server, world: World) => Promise<void> | void;

interface World {
  readonly watch: (live: number) => void;
  readonly leave: (live: number) => void;
}

const step = (name: string, run: Step): Step => Object.assign(run, { [fc.toStringMethod]: () => name });
const changed = (name: string, change: (rows: Row[]) => Row[]): Step =>
  step(name, (server) => server.change(change([...server.rows])));

const refuse = (connects: number, asks: number, status: number): Step =>
  step(`refuse ${connects} ${asks} ${status}`, (server) => void (server.refused = { connects, asks, status }));
const fresh = (rows: Row[], id: number): boolean => rows.every((row) => row.id !== id);

const insert = fc.tuple(place, fc.nat({ max: 20 }), text).map(([at, id, n]) =>
  changed(`insert ${id} at ${at}`, (rows) => (fresh(rows, id) ? rows.toSpliced(at, 0, { id, n }) : rows)),
);
const update = fc
  .tuple(place, text)
  .map(([at, n]) => changed(`update ${at}`, (rows) => rows.map((row, i) => (i === at ? { ...row, n } : row))));
const remove = place.map((at) => changed(`remove ${at}`, (rows) => rows.toSpliced(at, 1)));
const fault = fc
  .constantFrom<Fault>("hash", "line", "from", "lost")
  .map((fault) => step(`fault ${fault}`, (server) => void (server.fault = fault)));
const fail = fc
  .constantFrom("server_error", "query_failed", "unexpected")
  .map((code) => step(`fail ${code}`, (server) => server.fail(code)));
const end = fc.constantFrom("end" as const, "break" as const, "bye" as const).map((how) =>
  step(how, (server) => server.end(how)),
);
const refusal = fc
  .tuple(fc.nat({ max: 3 }), fc.nat({ max: 3 }), fc.constantFrom(0, 429, 503))
  .map(([connects, asks, status]) => refuse(connects, asks, status));
const lose = fc.constantFrom("forgotten" as const, "mute" as const).map((what) =>
  step(what, (server) => server.connections.forEach((connection) => void (connection[what] = true))),
);
const watch = fc.nat({ max: 3 }).map((live) => step(`watch ${live}`, (_, world) => world.watch(live)));
const leave = fc.nat({ max: 3 }).map((live) => step(`leave ${live}`, (_, world) => world.leave(live)));
const wait = fc
  .constantFrom(0, 1, 300, 2_000, 50_000)
  .map((ms) => step(`wait ${ms}`, async () => void (await vi.advanceTimersByTimeAsync(ms))));

const steps: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: insert },
  { weight: 4, arbitrary: update },
  { weight: 2, arbitrary: remove },
  { weight: 1, arbitrary: fc.constant(changed("reverse", (rows) => rows.toReversed())) },
  { weight: 3, arbitrary: fault },
  { weight: 2, arbitrary: fc.constant(step("gap", (server) => server.gap())) },
  { weight: 2, arbitrary: fail },
  { weight: 1, arbitrary: fc.constant(step("recover", (server) => server.recover())) },
  { weight: 1, arbitrary: fc.constant(step("stray", (server) => server.stray())) },
  { weight: 3, arbitrary: end },
  { weight: 2, arbitrary: refusal },
  { weight: 1, arbitrary: lose },
  { weight: 3, arbitrary: watch },
  { weight: 2, arbitrary: leave },
  { weight: 5, arbitrary: wait },
);

const pieces = fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 5 });

test.each(["sse", "ws"] as const)("over %s, every live ends with the server's result", async (transport) => {
  const runs = fc.asyncProperty(fc.array(steps, { maxLength: 40 }), pieces, async (sequence, pieces) => {
    const server = new Server();
    server.pieces = pieces;
    vi.stubGlobal("WebSocket", server.socket());
    const client = createClient({ url: "http://forge.test", transport, share: false, fetch: server.fetch });
    const lives: Live<unknown>[] = [
      client.live("rows"),
      client.live("rows", {}, { mode: "full" }),
      client.live("unkeyed"),
      client.live("count"),
    ];
    const watched = new Map<number, () => void>();
    const latest = lives.map(() => 0);
    const wrong: unknown[] = [];
    const world: World = {
      watch(index) {
        const live = lives[index] as Live<unknown>;
        if (watched.has(index)) return;
        const check = ({ data }: State<unknown>): void => {
          if (data === undefined) return;
          const history = server.history[live.asked.query] as string[];
          const found = history.indexOf(JSON.stringify(data), latest[index]);
          if (found < 0) wrong.push(data);
          else latest[index] = found;
        };
        watched.set(index, live.subscribe(check));
      },
      leave(index) {
        watched.get(index)?.();
        watched.delete(index);
      },
    };
    try {
      world.watch(0);
      for (const step of sequence) await step(server, world);
      server.heal();
      for (const index of lives.keys()) world.watch(index);
      await vi.advanceTimersByTimeAsync(100_000);
      for (const { state, asked } of lives) {
        const { status, error, data } = state;
        expect({ status, error, data }).toEqual({ status: "live", error: undefined, data: server.result(asked.query) });
      }
      expect(wrong, "results that the server never had, or had before").toEqual([]);
      for (const index of lives.keys()) world.leave(index);
      await vi.advanceTimersByTimeAsync(5_000);
      expect(server.connections.size).toBe(0);
    } finally {
      client.close();
    }
  });
  await fc.assert(runs, { numRuns: RUNS });
}, 120_000);
