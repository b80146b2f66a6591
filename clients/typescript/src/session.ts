/**
 * The one stream that all subscriptions share: kept open, opened again, and with it every subscription.
 *
 * It is open while there is a sink. When it ends, however it ends, or falls silent, the session waits (longer each
 * time, or as long as the server asks) and opens another; then it subscribes again to all, with the hash of what each
 * holds, so nothing is sent again that did not change. A subscription has another name each time that it is asked for:
 * what still comes under an old name is of no interest.
 */

import { Backoff } from "./backoff.js";
import { asError, closed, type ForgeError, misfit, passes, told, unreachable } from "./errors.js";
import { type Event, readFields, readPush } from "./messages.js";
import type { Tokens } from "./tokens.js";
import type { Sink, Upstream } from "./upstream.js";

/** Takes an event; without one, it only says that something came, and perhaps the id of the last that was told. */
export type Heard = (event?: Event, lastId?: string) => void;

/** A way to the server. */
export interface Transport {
  /** Opens a stream and tells what comes until it ends; rejects when it cannot be opened, or breaks. */
  run(heard: Heard, signal: AbortSignal): Promise<void>;
  /** Says something on an open session: the fields of a JSON object, without its braces. */
  ask(session: string, what: "subscribe" | "unsubscribe" | "auth", fields: string): Promise<void>;
}

/** A sink, and what it is called on the stream that is open. */
interface Entry {
  readonly sink: Sink;
  readonly backoff: Backoff;
  name: string;
  /** In a row. */
  mismatches: number;
}

interface Stream {
  session: string;
  readonly cut: AbortController;
  readonly named: Map<string, Entry>;
  readonly queue: Entry[];
  asking: number;
  heardAt: number;
  wait: number;
  expelled?: string | undefined;
}

const MOST_MISMATCHES = 3;
const MOST_ASKING = 4;
const SETTLED = 5_000;
/** A server sends something every 25 s. */
const KEEP_ALIVE = 27_000;
/** Milliseconds without anything after which a stream counts as dead. */
export const SILENCE = 45_000;
const RESULTS = /^(snapshot|update|delta)$/;
const FINAL = /^(auth_failed|bad_arguments|forbidden|query_refused|unknown_name)$/;

export class Session implements Upstream {
  readonly #transport: Transport;
  readonly #tokens: Tokens;
  readonly #silence: number;
  readonly #opened: () => void;
  readonly #entries = new Map<Sink, Entry>();
  readonly #backoff = new Backoff();
  /** While it is the same, the same loop keeps a stream open. */
  #running: object | undefined;
  #stream: Stream | undefined;
  #names = 0;
  #connected = false;
  #closed = false;

  /** `opened` is called whenever a stream is: the server can be reached. */
  constructor(transport: Transport, tokens: Tokens, opened: () => void, silence = SILENCE) {
    this.#transport = transport;
    this.#opened = opened;
    this.#tokens = tokens;
    this.#silence = silence;
  }

  add(sink: Sink): void {
    if (this.#closed) return sink.fault(closed(), true);
    if (this.#entries.has(sink)) return;
    const entry = { sink, backoff: new Backoff(), name: "", mismatches: 0 };
    this.#entries.set(sink, entry);
    if (!this.#running) void this.#run((this.#running = {}));
    else if (this.#stream?.session) this.#ask(this.#stream, entry);
  }

  remove(sink: Sink): void {
    const entry = this.#entries.get(sink);
    if (!entry) return;
    this.#entries.delete(sink);
    if (this.#entries.size > 0) this.#forget(entry);
    else this.#stop();
  }

  wake(): void {
    this.#backoff.wake();
    const stream = this.#stream;
    if (stream && Date.now() - stream.heardAt > KEEP_ALIVE) stream.cut.abort();
  }

  close(): void {
    this.#closed = true;
    this.#end(closed());
  }

  // The stream

  async #run(running: object): Promise<void> {
    this.#backoff.reset();
    while (this.#running === running) {
      const opened = Date.now();
      let wait = 0;
      let error: ForgeError;
      try {
        const stream = await this.#listen();
        error = unreachable("it ended the stream");
        wait = stream.wait;
        if (stream.expelled !== undefined) await this.#tokens.replace(stream.expelled);
      } catch (thrown) {
        error = asError(thrown);
      }
      if (this.#running !== running) return;
      if (!this.#passes(error)) return this.#end(error);
      for (const { sink } of [...this.#entries.values()]) sink.fault(error, false);
      if (Date.now() - opened > SETTLED) this.#backoff.reset();
      await this.#backoff.wait(wait, error);
    }
  }

  /** Open a stream and handle what comes until it ends. */
  async #listen(): Promise<Stream> {
    const cut = new AbortController();
    const stream: Stream = (this.#stream = {
      session: "",
      cut,
      named: new Map(),
      queue: [],
      asking: 0,
      heardAt: Date.now(),
      wait: 0,
    });
    const cutting = (): ReturnType<typeof setTimeout> => setTimeout(() => cut.abort(), this.#silence);
    let silence = cutting();
    try {
      await this.#transport.run((event) => {
        clearTimeout(silence);
        silence = cutting();
        stream.heardAt = Date.now();
        if (event && this.#stream === stream) this.#handle(stream, event);
      }, cut.signal);
      return stream;
    } catch (error) {
      throw cut.signal.aborted ? unreachable("it fell silent") : error;
    } finally {
      cut.abort();
      clearTimeout(silence);
      if (this.#stream === stream) this.#stream = undefined;
    }
  }

  #handle(stream: Stream, event: Event): void {
    const { name } = event;
    if (RESULTS.test(name)) return this.#push(stream, event);
    const fields = readFields(event);
    if (name === "session") {
      stream.session = fields.session ?? "";
      this.#connected = true;
      for (const entry of this.#entries.values()) this.#ask(stream, entry);
      this.#opened();
    } else if (name === "error") {
      const entry = stream.named.get(fields.subscription ?? "");
      if (!entry) return;
      const error = told(fields);
      if (FINAL.test(error.code)) this.#fail(entry, error);
      else entry.sink.fault(error, false);
    } else if (name === "auth") {
      stream.expelled = fields.reason;
      if (fields.renew && this.#tokens.renewable) void this.#renew(stream);
    } else if (name === "bye") {
      stream.wait = fields.retry_after_ms ?? 0;
    }
  }

  #push(stream: Stream, event: Event): void {
    const { subscription, push } = readPush(event);
    const entry = stream.named.get(subscription);
    if (!entry) return;
    try {
      entry.sink.push(push);
      entry.mismatches = 0;
      entry.backoff.reset();
    } catch (thrown) {
      const error = misfit(thrown);
      if (++entry.mismatches > MOST_MISMATCHES) return this.#fail(entry, error);
      void this.#again(stream, entry, error, entry.mismatches > 1);
    }
  }

  /**
   * Whether it is worth opening a stream again. A function that gave a token which is not taken may have another one
   * later. What something else than the server refuses may be on the way only.
   */
  #passes(error: ForgeError): boolean {
    const { kind, code } = error;
    if (kind === "not_forge") return this.#connected;
    return passes(error) || (code === "auth_failed" && this.#tokens.renewable);
  }

  /** Nothing more comes, for anybody. */
  #end(error: ForgeError): void {
    const entries = [...this.#entries.values()];
    this.#entries.clear();
    this.#stop();
    for (const { sink } of entries) sink.fault(error, true);
  }

  #fail(entry: Entry, error: ForgeError): void {
    this.remove(entry.sink);
    entry.sink.fault(error, true);
  }

  #stop(): void {
    const stream = this.#stream;
    this.#running = this.#stream = undefined;
    stream?.cut.abort();
    this.#backoff.wake();
  }

  // What is said on a session

  #ask(stream: Stream, entry: Entry): void {
    stream.queue.push(entry);
    if (stream.asking < MOST_ASKING) void this.#work(stream);
  }

  /** Nothing new comes now: ask again, at once or later. */
  async #again(stream: Stream, entry: Entry, error: ForgeError, later: boolean): Promise<void> {
    this.#forget(entry);
    entry.sink.fault(error, false);
    if (later) await entry.backoff.wait(0, error);
    this.#ask(stream, entry);
  }

  async #work(stream: Stream): Promise<void> {
    stream.asking++;
    for (let entry = stream.queue.shift(); entry; entry = stream.queue.shift()) await this.#subscribe(stream, entry);
    stream.asking--;
  }

  async #subscribe(stream: Stream, entry: Entry): Promise<void> {
    const { sink } = entry;
    const over = (): boolean => this.#stream !== stream || this.#entries.get(sink) !== entry;
    if (over()) return;
    const name = (entry.name = String(++this.#names));
    stream.named.set(name, entry);
    const { query, args, mode } = sink.asked;
    try {
      const fields = fieldsOf({ subscription: name, query, mode, hash: sink.hash });
      await this.#transport.ask(stream.session, "subscribe", `${fields},"args":${args}`);
    } catch (thrown) {
      if (over()) return;
      const error = asError(thrown);
      if (error.code === "unknown_session") return stream.cut.abort();
      if (!this.#passes(error)) return this.#fail(entry, error);
      // Others wait too: they would be told the same, and a server does not put up with many that are.
      await this.#again(stream, entry, error, true);
    }
  }

  /** What comes under its name is of no interest any more. */
  #forget(entry: Entry): void {
    const stream = this.#stream;
    if (!stream?.named.delete(entry.name)) return;
    // A session that cannot be told is one that ends, and its subscriptions with it.
    this.#transport.ask(stream.session, "unsubscribe", fieldsOf({ subscription: entry.name })).catch(() => {});
  }

  /** A token that the server takes keeps the session; without one it ends, and is opened again with another. */
  async #renew(stream: Stream): Promise<void> {
    try {
      const token = await this.#tokens.newer(await this.#tokens.current());
      await this.#transport.ask(stream.session, "auth", fieldsOf({ token }));
    } catch (error) {
      console.warn("forge: the token could not be renewed:", error);
    }
  }
}

/** As JSON, without the braces; what is undefined is left out. */
function fieldsOf(fields: object): string {
  return JSON.stringify(fields).slice(1, -1);
}
