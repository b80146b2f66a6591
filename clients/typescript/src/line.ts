/**
 * A WebSocket that is kept open: opened again whenever it ends, and asked on.
 *
 * In come a server's URL and tokens; out go a word whenever a session begins, its events, and why it is over. When a
 * connection ends, however it ends, or falls silent, the line waits, longer each time, or as long as the server asks.
 * What always holds: what is asked is sent once, and is answered or fails; nothing of an old connection is told.
 */

import { Backoff } from "./backoff.js";
import { asError, closed, type ForgeError, passes, told, unreachable } from "./errors.js";
import { SILENCE } from "./session.js";
import { type Token, Tokens } from "./tokens.js";
import { parse } from "./values.js";

/** A client in a channel. */
export interface Member {
  /** Of its connection: another one after each. */
  readonly id: string;
  /** By its token; null where it has none. */
  readonly user: string | null;
}

/** What the server says: the fields of all events. */
export interface Said {
  readonly event: string;
  readonly id?: string | null;
  readonly channel?: string;
  readonly kind?: "join" | "leave" | "message";
  readonly from?: Member;
  readonly data?: unknown;
  readonly you?: string;
  readonly members?: readonly Member[];
  readonly renew?: boolean;
  readonly reason?: string;
  readonly retry_after_ms?: number;
  readonly code?: string;
  readonly message?: string;
  readonly fix?: string;
  readonly retry_after_secs?: number;
}

export interface Listener {
  /** A session is open, and nothing was asked on it yet. */
  begun(): void;
  heard(said: Said): void;
  /** There is no session now; when it is `final`, none is tried for any more. */
  lost(error: ForgeError, final: boolean): void;
}

interface Asked {
  readonly done: (answer: Said) => void;
  readonly failed: (error: ForgeError) => void;
}

/** Milliseconds for an answer. */
const TIMEOUT = 15_000;
/** Milliseconds after which a connection counts as one that lasts. */
const SETTLED = 5_000;
/** A server sends something every 25 s. */
const KEEP_ALIVE = 27_000;

export class Line {
  readonly #url: URL;
  readonly #tokens: Tokens;
  readonly #listener: Listener;
  readonly #asked = new Map<string, Asked>();
  readonly #backoff = new Backoff();
  /** While it is the same, the same loop keeps a connection open. */
  #running: object | undefined;
  /** Has a session. */
  #socket: WebSocket | undefined;
  #heardAt = 0;
  #ids = 0;
  #cut: (error: ForgeError) => void = () => {};

  constructor(url: string, token: Token | undefined, listener: Listener) {
    this.#url = new URL(`${url.replace(/\/+$/, "")}/forge/ws`, globalThis.location?.href);
    this.#url.protocol = this.#url.protocol.replace("http", "ws");
    this.#tokens = new Tokens(token);
    this.#listener = listener;
  }

  open(): void {
    if (!this.#running) void this.#run((this.#running = {}));
  }

  close(): void {
    this.#running = this.#socket = undefined;
    this.#cut(closed());
    this.#backoff.wake();
  }

  /** A good moment to connect, if one waits to, or to see that a connection died while nobody looked. */
  wake(): void {
    this.#backoff.wake();
    if (this.#socket && Date.now() - this.#heardAt > KEEP_ALIVE) this.#cut(unreachable("the connection fell silent"));
  }

  /** Says something on the session; `use` is given the answer before anything that comes after it is told. */
  ask(type: string, fields: object, use: (answer: Said) => void = () => {}): Promise<void> {
    return new Promise((resolve, reject) => {
      const socket = this.#socket;
      if (!socket) throw unreachable("there is no connection");
      const id = String(++this.#ids);
      socket.send(JSON.stringify({ type, id, ...fields }));
      const ended = (): void => {
        clearTimeout(late);
        this.#asked.delete(id);
      };
      const failed = (error: ForgeError): void => {
        ended();
        reject(error);
      };
      const late = setTimeout(() => failed(unreachable("it does not answer in time")), TIMEOUT);
      const done = (answer: Said): void => {
        ended();
        use(answer);
        resolve();
      };
      this.#asked.set(id, { done, failed });
    });
  }

  async #run(running: object): Promise<void> {
    this.#backoff.reset();
    while (this.#running === running) {
      const opened = Date.now();
      let error: ForgeError;
      let wait = 0;
      try {
        wait = await this.#tokens.use((token) => this.#once(token, running));
        error = unreachable("it ended the connection");
      } catch (thrown) {
        error = asError(thrown);
      }
      if (this.#running !== running) return;
      // a function that gave a token which is not taken may have another one later
      const final = !passes(error) && !(error.code === "auth_failed" && this.#tokens.renewable);
      if (final) this.#running = undefined;
      this.#listener.lost(error, final);
      if (this.#running !== running) return;
      if (Date.now() - opened > SETTLED) this.#backoff.reset();
      await this.#backoff.wait(wait, error);
    }
  }

  /** One connection from beginning to end: the milliseconds to wait that the server asked for. */
  async #once(token: string | undefined, running: object): Promise<number> {
    if (this.#running !== running) throw closed();
    const socket = new WebSocket(this.#url);
    let [begun, wait] = [false, 0];
    let expelled: string | undefined;
    let watch: ReturnType<typeof setTimeout> | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        this.#cut = reject;
        const alive = (): void => {
          clearTimeout(watch);
          watch = setTimeout(() => reject(unreachable("the connection fell silent")), SILENCE);
          this.#heardAt = Date.now();
        };
        alive();
        socket.onopen = () => token !== undefined && socket.send(JSON.stringify({ type: "auth", token }));
        socket.onclose = ({ code }) => {
          if (begun) resolve();
          else reject(unreachable(`the connection was closed with ${code}`));
        };
        socket.onmessage = ({ data }: MessageEvent<string>) => {
          alive();
          try {
            const said = parse(data) as Said;
            if (said.event === "session") {
              begun = true;
              this.#socket = socket;
              this.#listener.begun();
            } else if (said.event === "auth") {
              expelled = said.reason;
              if (said.renew && this.#tokens.renewable) void this.#renew(socket);
            } else if (said.event === "bye") wait = said.retry_after_ms ?? 0;
            else if (said.event === "answer") this.#asked.get(said.id ?? "")?.done(said);
            else if (said.event === "error" && !begun) reject(told(said));
            else if (said.event === "error") this.#asked.get(said.id ?? "")?.failed(told(said));
            else this.#listener.heard(said);
          } catch (error) {
            reject(error);
          }
        };
      });
    } finally {
      clearTimeout(watch);
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
      if (this.#socket === socket) this.#socket = undefined;
      for (const { failed } of [...this.#asked.values()]) failed(unreachable("the connection was closed"));
    }
    if (expelled !== undefined) await this.#tokens.replace(expelled);
    return wait;
  }

  /** A token that the server takes keeps the session; without one it ends, and is opened again with another. */
  async #renew(socket: WebSocket): Promise<void> {
    try {
      const token = await this.#tokens.newer(await this.#tokens.current());
      if (this.#socket === socket) socket.send(JSON.stringify({ type: "auth", token }));
    } catch (error) {
      console.warn("forge: the token could not be renewed:", error);
    }
  }
}
