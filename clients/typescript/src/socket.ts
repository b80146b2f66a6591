/**
 * A session over a WebSocket: the same events as over SSE, and what is said goes on the same connection.
 *
 * The token is the first message, since a browser cannot set a header. Every answer has the id of what was asked.
 */

import { type ForgeError, told, unreachable } from "./errors.js";
import type { Http } from "./http.js";
import { readFields } from "./messages.js";
import type { Heard, Transport } from "./session.js";

/** Ends what was asked: well, or with what rejects. */
type Waiting = (end?: Promise<never>) => void;

const CLOSED = "the connection was closed";

/** One connection at a time, to the server of an Http. */
export class Socket implements Transport {
  readonly #http: Http;
  readonly #waiting = new Map<string, Waiting>();
  #open: WebSocket | undefined;
  #ids = 0;

  constructor(http: Http) {
    this.#http = http;
  }

  run(heard: Heard, signal: AbortSignal): Promise<void> {
    return this.#http.tokens.use((token) => this.#once(token, heard, signal));
  }

  ask(_session: string, what: "subscribe" | "unsubscribe" | "auth", fields: string): Promise<void> {
    return new Promise((done) => {
      const id = String(++this.#ids);
      if (!this.#open) throw unreachable(CLOSED);
      this.#open.send(`{"type":"${what}","id":"${id}",${fields}}`);
      if (what === "auth") done(); // its answer is an event of the session
      else this.#waiting.set(id, done);
    });
  }

  #once(token: string | undefined, heard: Heard, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const url = new URL(`${this.#http.base}/forge/ws`, globalThis.location?.href);
      url.protocol = url.protocol.replace("http", "ws");
      const socket = new WebSocket(url);
      let begun = false;
      let error: ForgeError | undefined;
      signal.addEventListener("abort", () => socket.close());
      if (signal.aborted) socket.close();
      socket.onopen = () => {
        this.#open = socket;
        if (token !== undefined) socket.send(JSON.stringify({ type: "auth", token }));
      };
      socket.onmessage = ({ data }: MessageEvent<string>) => {
        begun ||= data.startsWith('{"event":"session"');
        try {
          const found = this.#heard(data, heard);
          if (!begun) error ??= found;
        } catch (thrown) {
          reject(thrown);
          socket.close();
        }
      };
      socket.onclose = ({ code }) => {
        if (this.#open === socket) this.#lost();
        if (begun) resolve();
        else reject(error ?? unreachable(`${CLOSED} with ${code}`));
      };
    });
  }

  /** Hands an event on, or an answer to whoever waits for it; returns an error that is of neither. */
  #heard(data: string, heard: Heard): ForgeError | undefined {
    const event = { name: data.split('"', 4)[3] ?? "", lines: data.split("\n"), id: "" };
    if (event.name !== "answer" && event.name !== "error") return void heard(event);
    const fields = readFields(event);
    if (fields.subscription !== undefined && event.name === "error") return void heard(event);
    heard();
    const asked = this.#waiting.get(fields.id ?? "");
    this.#waiting.delete(fields.id ?? "");
    if (event.name === "answer") return void asked?.();
    const error = told(fields);
    asked?.(Promise.reject(error));
    return error;
  }

  #lost(): void {
    this.#open = undefined;
    const left = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const done of left) done(Promise.reject(unreachable(CLOSED)));
  }
}
