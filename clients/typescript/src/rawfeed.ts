/**
 * The raw feed of a server, `/forge/changes`: in come the place to begin behind and the tables, out go its events until
 * the stream ends.
 *
 * What always holds: a stream that says nothing for too long is cut; `place` is behind all that was told, also where
 * there was nothing to tell, so whoever begins there misses nothing.
 */

import { unreachable } from "./errors.js";
import type { Http } from "./http.js";
import type { Event } from "./messages.js";
import { type Heard, SILENCE } from "./session.js";
import { read } from "./sse.js";
import { decodeRow, parse } from "./values.js";

type Row = Readonly<Record<string, unknown>>;

/** A change as docs/reference/wire-form.md has it, its values decoded. */
export interface RawChange {
  readonly schema?: string | null;
  readonly table: string;
  readonly operation: string;
  readonly key?: Row | null;
  readonly before?: Row | null;
  readonly after?: Row | null;
  readonly context?: { readonly more?: Row };
}

/** The change that an event says. */
export function changeOf(event: Event): RawChange {
  const change = parse(event.lines.join("\n")) as RawChange;
  const { key, before, after, context } = change;
  const decoded = (row: Row | null | undefined): Row | null => (row ? (decodeRow(row) as Row) : null);
  const images = { key: decoded(key), before: decoded(before), after: decoded(after) };
  return { ...change, ...images, ...(context && { context: { ...context, more: decoded(context.more) ?? {} } }) };
}

export class RawFeed {
  readonly #http: Http;
  /** Behind what was told; empty before the server has said anything. */
  place = "";

  constructor(http: Http) {
    this.#http = http;
  }

  /** Tells what comes, and after each piece of it that something came; rejects when the stream breaks. */
  async follow(from: string, tables: readonly string[], heard: Heard, signal: AbortSignal): Promise<void> {
    const query = new URLSearchParams({ from, backpressure: "pause" });
    for (const table of tables) query.append("table", table);
    const cut = new AbortController();
    const cutting = (): ReturnType<typeof setTimeout> => setTimeout(() => cut.abort(), SILENCE);
    let silence = cutting();
    try {
      const either = AbortSignal.any([signal, cut.signal]);
      const response = await this.#http.stream(`/forge/changes?${query}`, either);
      await read(response, (event, lastId = this.place) => {
        clearTimeout(silence);
        silence = cutting();
        this.place = lastId;
        heard(event);
      });
    } catch (error) {
      throw cut.signal.aborted ? unreachable("the stream fell silent") : error;
    } finally {
      clearTimeout(silence);
    }
  }
}
