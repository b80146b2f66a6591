/**
 * The raw feed of a server, `/forge/changes`: in come the place to begin behind and the tables, out go its events until
 * the stream ends.
 *
 * What always holds: a stream that says nothing for too long is cut; `place` is behind all that was told, also where
 * there was nothing to tell, so whoever begins there misses nothing.
 */

import { unreachable } from "./errors";
import type { Http } from "./http";
import { type Heard, SILENCE } from "./session";
import { Parser, read } from "./sse";

export class RawFeed {
  readonly #http: Http;
  readonly #parser = new Parser();

  constructor(http: Http) {
    this.#http = http;
  }

  /** Behind what was told; empty before the server has said anything. */
  get place(): string {
    return this.#parser.lastId;
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
      const told: Heard = (event) => {
        clearTimeout(silence);
        silence = cutting();
        heard(event);
      };
      await read(response, told, this.#parser);
    } catch (error) {
      throw cut.signal.aborted ? unreachable("the stream fell silent") : error;
    } finally {
      clearTimeout(silence);
    }
  }
}
