/**
 * The live feed: changes come in from the source, the last 2,000 stay, and those who look are told ten times per second
 * at the most, however many come.
 *
 * Paused, it goes on collecting, and shows what there was; resumed, it shows all at once. A broken stream is taken up
 * behind the last cursor, so nothing is left out or shown twice, unless the server does not know that cursor any more.
 */

import type { ForgeError } from "@forge/client";
import { Backoff } from "../../typescript/src/backoff";
import { asError, passes } from "../../typescript/src/errors";
import { Ring, type Seen } from "./ring";
import type { Audit, Audited, Change } from "./shapes";
import type { Source } from "./source";

export type FeedStatus = "connecting" | "live" | "lost" | "refused";

const EVERY = 100;
const SECONDS = 60;
const EARLIER = 100;

export class Feed {
  status = $state<FeedStatus>("connecting");
  refusal = $state.raw<ForgeError | null>(null);
  seen = $state.raw<readonly Seen[]>([]);
  paused = $state(false);
  /** How many came since it was paused. */
  waiting = $state(0);
  total = $state(0);
  /** How often it had to begin again. */
  gaps = $state(0);
  /** How many came in each of the last 60 seconds, the newest last. */
  rates = $state.raw<readonly number[]>(new Array(SECONDS).fill(0));

  #ring = new Ring();
  #incoming: Change[] = [];
  #cursor = "now";
  #flushing: ReturnType<typeof setTimeout> | undefined;
  #stop = new AbortController();

  constructor(private readonly source: Source) {}

  /** Follow the source until the function that is returned is called. */
  start(): () => void {
    const second = setInterval(() => (this.rates = [...this.rates.slice(1), 0]), 1000);
    void this.#follow();
    return () => {
      clearInterval(second);
      clearTimeout(this.#flushing);
      this.#stop.abort();
    };
  }

  pause(on: boolean): void {
    this.paused = on;
    if (!on) this.#show();
  }

  clear(): void {
    this.#ring.clear();
    this.#show();
  }

  /** The last changes from before it began, by whom and of which row; the log's summary has no values. */
  async earlier(): Promise<void> {
    const { entries } = await this.source.ask<Audit>("forge.audit", { limit: EARLIER });
    const known = new Set(this.#ring.held.map((seen) => seen.change.source?.transaction));
    this.#ring.addOlder(entries.filter((entry) => !known.has(entry.transaction)).map(summary));
    this.#show();
  }

  async #follow(): Promise<void> {
    const backoff = new Backoff(500, 10_000);
    const { signal } = this.#stop;
    const told = (change: Change) => this.#take(change);
    const at = (place: string) => {
      if (place) this.#cursor = place;
      if (this.status === "live") return;
      [this.status, this.refusal] = ["live", null];
      backoff.reset();
    };
    while (!signal.aborted) {
      try {
        await this.source.changes(this.#cursor, told, at, signal);
      } catch (thrown) {
        if (signal.aborted) return;
        this.refusal = asError(thrown);
        if (this.refusal.status === 410) {
          this.#cursor = "now";
          this.gaps += 1;
        } else if (!passes(this.refusal)) {
          this.status = "refused";
          return;
        }
      }
      this.status = "lost";
      await backoff.wait();
    }
  }

  #take(change: Change): void {
    this.#incoming.push(change);
    this.#flushing ??= setTimeout(() => this.#flush(), EVERY);
    if (this.#incoming.length >= this.#ring.most) this.#flush();
  }

  #flush(): void {
    clearTimeout(this.#flushing);
    this.#flushing = undefined;
    const news = this.#incoming;
    this.#incoming = [];
    this.#ring.add(news);
    this.total = this.#ring.total;
    this.rates = [...this.rates.slice(0, -1), (this.rates.at(-1) ?? 0) + news.length];
    if (this.paused) this.waiting += news.length;
    else this.#show();
  }

  #show(): void {
    this.seen = this.#ring.held;
    this.waiting = 0;
  }
}

function summary(entry: Audited): Change {
  const dot = entry.table.indexOf(".");
  const { user_id, function_name, trace_id, session_user, application_name } = entry;
  return {
    schema: entry.table.slice(0, dot),
    table: entry.table.slice(dot + 1),
    operation: entry.op,
    id: entry.key,
    timestamp: entry.at,
    change_id: "",
    ...(entry.op === "UPDATE" ? { changed_columns: entry.changed_columns } : {}),
    source: { kind: "audit", name: "", position: "", transaction: entry.transaction },
    context: { user_id, function_name, trace_id, session_user, application_name, more: {} },
  };
}
