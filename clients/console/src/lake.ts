/**
 * What the lake's page says of it, from what the server last told: good only while nothing waits that it does not say.
 */

import { ago, count, duration } from "./format";
import type { Pipeline } from "./shapes";

/** Seconds after which a comparison is of the past, and a change that is not in the lake is late. */
const LATE = 60;

export type Tone = "good" | "warn" | "bad" | "";

/** Whether it is the database, as of the last comparison; with what waits, unless that was just now. */
export function verdict(lake: Pipeline, now: number): { word: string; tone: Tone } {
  if (lake.equal === null) return { word: "not compared yet", tone: "" };
  if (!lake.equal) return { word: "lake ≠ database", tone: "bad" };
  const waiting = lake.lag_events ?? 0;
  if (waiting === 0 || since(lake.compared_at, now) <= LATE) return { word: "lake = database", tone: "good" };
  const changes = waiting === 1 ? "1 change is" : `${count(waiting)} changes are`;
  return { word: `lake = database ${ago(lake.compared_at, now)}; ${changes} not in it yet`, tone: late(lake) ? "warn" : "" };
}

/** What it does: for how long nothing came, where something should have. */
export function doing(lake: Pipeline, now: number): { word: string; tone: Tone } {
  if (lake.state !== "ok") return { word: lake.state, tone: "warn" };
  if (!late(lake) || since(lake.last_at, now) <= LATE) return { word: "ok", tone: "good" };
  return { word: `no batch for ${duration(since(lake.last_at, now))}`, tone: "warn" };
}

function late({ lag_events, lag_seconds }: Pipeline): boolean {
  return (lag_events ?? 0) > 0 && (lag_seconds ?? 0) > LATE;
}

function since(at: string | null, now: number): number {
  return at === null ? 0 : (now - Date.parse(at)) / 1000;
}
