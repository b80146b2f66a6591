/**
 * Server-sent events by `fetch`, which can send a token, as EventSource cannot: bytes in, cut anywhere, events out.
 *
 * Lines end with LF, as a Forge server writes them. An event without data is none, but its id counts. An event that the
 * end of the stream cuts off is none either.
 */

import type { Http } from "./http.js";
import type { Event } from "./messages.js";
import type { Heard, Transport } from "./session.js";

export class Parser {
  #cut = "";
  #name = "";
  #lines: string[] = [];
  #id = "";

  /** The id of the last event, also of one that had no data. */
  lastId = "";

  /** The events that end in this piece. */
  feed(piece: string): Event[] {
    const found: Event[] = [];
    if (!piece.includes("\n")) {
      this.#cut += piece;
      return found;
    }
    const lines = (this.#cut + piece).split("\n");
    this.#cut = lines.pop() as string;
    for (const line of lines) {
      if (line !== "") this.#field(line);
      else this.#end(found);
    }
    return found;
  }

  #field(line: string): void {
    const [field] = line.split(":", 1);
    const value = line.slice((field as string).length + 1).replace(/^ /, "");
    if (field === "data") this.#lines.push(value);
    else if (field === "event") this.#name = value;
    else if (field === "id") this.#id = value;
  }

  #end(found: Event[]): void {
    this.lastId = this.#id;
    if (this.#lines.some((line) => line !== "")) found.push({ name: this.#name, lines: this.#lines, id: this.#id });
    this.#name = "";
    this.#lines = [];
  }
}

/** Tells what comes on a stream until it ends; rejects when it breaks. */
export async function read(response: Response, heard: Heard): Promise<void> {
  const decoder = new TextDecoder();
  const parser = new Parser();
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of parser.feed(decoder.decode(value, { stream: true }))) heard(event);
    heard(undefined, parser.lastId);
  }
}

/** A session over HTTP: its stream, and a POST for each thing to say. */
export function sse(http: Http): Transport {
  return {
    async run(heard, signal) {
      await read(await http.stream("/forge/session", signal), heard);
    },
    async ask(session, what, body) {
      await http.post(`/forge/session/${encodeURIComponent(session)}/${what}`, `{${body}}`);
    },
  };
}
