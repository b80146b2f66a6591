/**
 * The raw feed of a Forge server, written into the local tables: every change once, whatever happens in between.
 *
 * In come the events of `/forge/changes`, out go batches of changes, each with the cursor behind it; both are stored in
 * one transaction, and the next stream begins behind what is stored. Changes that come while a batch is written are the
 * next batch; the cursor of a feed that is quiet is stored at its beginning and now and then. What always holds: the
 * cursor is never ahead of the rows, and no change is left out.
 */

import { Backoff, whenBack } from "../backoff.js";
import { asError, ForgeError, unreachable } from "../errors.js";
import { Http } from "../http.js";
import type { Event } from "../messages.js";
import { changeOf, RawFeed } from "../rawfeed.js";
import { Cell } from "../readable.js";
import { type Token, Tokens } from "../tokens.js";
import { parse } from "../values.js";
import type { Names, RemoteChange } from "./changes.js";

export interface FeedOptions {
  /** Of the Forge server. */
  readonly url: string;
  readonly token?: Token;
  /** Local tables by the names of the remote ones; the feed is asked for these alone. */
  readonly tables: Names;
  /** Where to begin when nothing is stored yet: behind what is there now, or with the oldest change of the log. */
  readonly from?: "now" | "start";
}

export interface FeedState {
  readonly status: "waiting" | "connecting" | "live" | "stale" | "error";
  readonly error: ForgeError | undefined;
}

/** Where batches go. */
export interface Store {
  /** The cursor that is stored. */
  cursor(): Promise<string | null>;
  write(changes: readonly RemoteChange[], cursor: string): Promise<void>;
}

/** Milliseconds after which the place of a quiet feed is stored again: the server's log does not go back for ever. */
const QUIET = 600_000;
/** Milliseconds for an answer. */
const TIMEOUT = 15_000;
/** What does not get better by trying again. */
const FINAL = new Set([
  ...["auth_failed", "forbidden", "bad_arguments", "cursor_expired", "cursor_foreign", "invalidated"],
  ...["sql", "no_key", "closed"],
]);

export class Feed extends Cell<FeedState> {
  readonly #http: Http;
  readonly #tables: readonly string[];
  readonly #from: string;
  readonly #store: Store;
  #batch: RemoteChange[] = [];
  /** Behind what was heard, and what of it is stored. */
  #cursor = "";
  #stored = "";
  #writing: Promise<void> | undefined;

  constructor({ url, token, tables, from = "now" }: FeedOptions, store: Store) {
    super({ status: "waiting", error: undefined });
    this.#http = new Http(url, new Tokens(token), TIMEOUT);
    this.#tables = Object.keys(tables);
    this.#from = from;
    this.#store = store;
  }

  /** Follows until the signal, or an error that stays. */
  async run(signal: AbortSignal): Promise<void> {
    const backoff = new Backoff();
    whenBack(signal, () => backoff.wake());
    signal.addEventListener("abort", () => backoff.wake());
    while (!signal.aborted) {
      let error: ForgeError;
      try {
        this.set({ status: "connecting", error: undefined });
        await this.#listen(signal);
        error = unreachable("it ended the stream");
      } catch (thrown) {
        error = asError(thrown);
      }
      if (signal.aborted) return;
      if (this.getSnapshot().status === "live") backoff.reset();
      // a function that gave a token which is not taken may have another one later
      const final = FINAL.has(error.code) && !(error.code === "auth_failed" && this.#http.tokens.renewable);
      this.set({ status: final ? "error" : "stale", error });
      if (final) return;
      await backoff.wait(0, error);
    }
  }

  async #listen(signal: AbortSignal): Promise<void> {
    const stored = await this.#store.cursor();
    this.#cursor = this.#stored = stored ?? "";
    let quietSince = stored === null ? 0 : Date.now();
    let expired: string | undefined;
    let failed: unknown;
    const cut = new AbortController();
    const feed = new RawFeed(this.#http);
    const heard = (event?: Event): void => {
      if (this.getSnapshot().status !== "live") this.set({ status: "live", error: undefined });
      if (event?.name === "auth") expired = reasonOf(event) ?? expired;
      if (event?.name === "change") {
        this.#batch.push(changeOf(event));
        this.#cursor = event.id;
      } else if (!event && feed.place !== "" && Date.now() - quietSince > QUIET) this.#cursor = feed.place;
      if (this.#writing || !this.#unwritten) return;
      quietSince = Date.now();
      this.#writing = this.#write().catch((error: unknown) => {
        failed = error;
        cut.abort();
      });
    };
    try {
      await feed.follow(stored ?? this.#from, this.#tables, heard, AbortSignal.any([signal, cut.signal]));
    } catch (error) {
      throw failed ?? error;
    } finally {
      await this.#writing;
      this.#batch = [];
    }
    if (failed !== undefined) throw failed;
    if (expired !== undefined) await this.#http.tokens.replace(expired);
  }

  get #unwritten(): boolean {
    return this.#batch.length > 0 || this.#cursor !== this.#stored;
  }

  async #write(): Promise<void> {
    try {
      while (this.#unwritten) {
        const [batch, cursor] = [this.#batch, this.#cursor];
        this.#batch = [];
        await this.#store.write(batch, cursor);
        this.#stored = cursor;
        const unknown = batch.find(({ operation }) => operation === "INVALIDATE");
        if (unknown !== undefined) throw invalidated(unknown.table);
      }
    } finally {
      this.#writing = undefined;
    }
  }
}

function reasonOf(event: Event): string | undefined {
  return (parse(event.lines.join("\n")) as { reason?: string }).reason;
}

function invalidated(table: string): ForgeError {
  const message = `something changed in ${table} that the server's log does not have`;
  return new ForgeError("failed", message, "have its rows again, then follow again", { code: "invalidated" });
}

