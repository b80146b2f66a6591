/**
 * What a page uses: a client of one server, its live results, its calls.
 *
 *     const client = createClient({ url: "http://127.0.0.1:8710", token });
 *     const orders = client.live("orders_of", { customer_id: 7 });
 *     orders.subscribe(({ data, status }) => …);
 *     await client.mutate("pay", { order_id: 4711 });
 *
 * It connects when something is first watched. The same question is one live result for the whole page.
 */

import { whenBack } from "./backoff.js";
import { groupOf } from "./group.js";
import { type Fetch, caller, Http } from "./http.js";
import { browser, Seat } from "./leader.js";
import { Live } from "./live.js";
import { Queue } from "./queue.js";
import type { Readable } from "./readable.js";
import { Relay } from "./relay.js";
import { Session } from "./session.js";
import { Socket } from "./socket.js";
import { sse } from "./sse.js";
import { Kept } from "./store.js";
import { type Token, Tokens } from "./tokens.js";
import type { App, ArgsOf, ResultOf, Untyped } from "./types.js";
import {
  type Asked,
  type Call,
  type Caller,
  keyOf,
  type Mode,
  type Mutations,
  type Optimistic,
  type Pending,
  type Upstream,
} from "./upstream.js";
import { decodeResult, encodeArgs } from "./values.js";

export interface ClientOptions {
  /** The server; may have a path. The page's own origin unless given. */
  readonly url?: string;
  /** A text, or a function that is asked whenever a newer token is needed. */
  readonly token?: Token;
  readonly transport?: "sse" | "ws";
  /** Whether tabs of one user share one connection; they do unless it is false. */
  readonly share?: boolean;
  /** Milliseconds for an answer: 35,000; servers end what takes longer than 30,000, and say so. */
  readonly timeout?: number;
  /** Milliseconds without anything after which a stream counts as dead: 45,000; servers send something every 25,000. */
  readonly silence?: number;
  /** Milliseconds for which a result that nobody watches any more is kept up to date: 1,000. */
  readonly linger?: number;
  readonly fetch?: Fetch;
}

export interface LiveOptions {
  /** How results travel: what changed (`delta`, the default), or whole. What you are given is the same. */
  readonly mode?: Mode;
}

export interface MutateOptions {
  /** What is shown until the server's answer is. */
  readonly optimistic?: Optimistic;
  /** The server runs what has the same key once; one is made unless given. */
  readonly key?: string;
}

/** What a mutation returned, and the number of its transaction; null when it wrote nothing. */
export interface Mutated<T> {
  readonly result: T;
  readonly xid: string | null;
}

type Args = Readonly<Record<string, unknown>>;
/** Arguments may be left out where none must be given. */
type Rest<A, O> = Record<never, never> extends A ? [args?: A, options?: O] : [args: A, options?: O];

export interface Client<A = Untyped> {
  /** The result of a query, now and whenever it changes: the same one for the same arguments. */
  readonly live: A extends App
    ? <N extends keyof A["queries"] & string>(
        name: N,
        ...rest: Rest<ArgsOf<A["queries"], N>, LiveOptions>
      ) => Live<ResultOf<A["queries"], N>>
    : <T = unknown>(name: string, args?: Args, options?: LiveOptions) => Live<T>;
  /** The result of a query now, with everything that this client wrote. */
  readonly query: A extends App
    ? <N extends keyof A["queries"] & string>(
        name: N,
        ...rest: Rest<ArgsOf<A["queries"], N>, never>
      ) => Promise<ResultOf<A["queries"], N>>
    : <T = unknown>(name: string, args?: Args) => Promise<T>;
  /** Run a mutation once. While the server cannot be reached it waits, and is sent again. */
  readonly mutate: A extends App
    ? <N extends keyof A["mutations"] & string>(
        name: N,
        ...rest: Rest<ArgsOf<A["mutations"], N>, MutateOptions>
      ) => Promise<Mutated<ResultOf<A["mutations"], N>>>
    : <T = unknown>(name: string, args?: Args, options?: MutateOptions) => Promise<Mutated<T>>;
  /** The mutations that were not answered yet. */
  readonly pending: Readable<readonly Pending[]>;
  /** End everything. */
  close(): void;
}

/** A client of the Forge server at a URL. */
export function createClient<A = Untyped>(options: ClientOptions = {}): Client<A> {
  return new Page(options) as unknown as Client<A>;
}

class Page implements Client {
  readonly #http: Http;
  readonly #call: Caller;
  readonly #upstream: Upstream;
  readonly #mutations: Mutations;
  readonly #seat: Seat;
  readonly #linger: number;
  readonly #lives = new Map<string, WeakRef<Live<unknown>>>();
  readonly #leaving = new AbortController();
  /** The mutations that were answered: queries show them, whichever node answers. */
  #after: ReadonlySet<string> = new Set();

  constructor(options: ClientOptions) {
    const { url = "", token, transport, share, timeout = 35_000, silence, linger = 1_000, fetch } = options;
    const tokens = new Tokens(token);
    this.#http = new Http(url, tokens, timeout, fetch);
    this.#call = caller(this.#http);
    this.#linger = linger;
    const way = transport === "ws" ? new Socket(this.#http) : sse(this.#http);
    const group = async (): Promise<string> => groupOf(this.#http.base, await tokens.current());
    this.#seat = new Seat(group, browser(share !== false));
    tokens.changed = () => this.#seat.leave();
    const session = new Session(way, tokens, () => this.#mutations.wake(), silence);
    this.#upstream = new Relay(this.#seat, session);
    this.#mutations = new Queue(this.#seat, this.#call, new Kept());
    whenBack(this.#leaving.signal, () => this.#seat.wake());
  }

  get pending(): Readable<readonly Pending[]> {
    return this.#mutations.pending;
  }

  readonly live = <T>(name: string, args?: Args, { mode = "delta" }: LiveOptions = {}): Live<T> => {
    const asked: Asked = { query: name, args: encodeArgs(args), mode };
    const key = keyOf(asked);
    const known = this.#lives.get(key)?.deref();
    if (known) return known as Live<T>;
    for (const [old, live] of this.#lives) if (!live.deref()) this.#lives.delete(old);
    const live = new Live<T>(asked, this.#upstream, this.#linger);
    this.#lives.set(key, new WeakRef(live as Live<unknown>));
    return live;
  };

  readonly query = async <T>(name: string, args?: Args): Promise<T> => {
    const answer = await this.#call({ kind: "query", name, args: encodeArgs(args), after: [...this.#after].join() });
    return decodeResult(answer.result) as T;
  };

  readonly mutate = async <T>(name: string, args?: Args, options: MutateOptions = {}): Promise<Mutated<T>> => {
    const call: Call = { kind: "mutation", name, args: encodeArgs(args), key: options.key };
    const known = options.key === undefined ? this.#after : new Set<string>(); // it may have run before
    const answer = await this.#mutations.run(call, options.optimistic);
    if (answer.xid !== null) this.#after = superseded(this.#after, known, answer.xid);
    return { result: decodeResult(answer.result) as T, xid: answer.xid };
  };

  close(): void {
    this.#leaving.abort();
    this.#mutations.close();
    this.#upstream.close();
    this.#seat.close();
    this.#http.close();
  }
}

const MOST_AFTER = 50;

/** Whoever is shown a transaction is shown all that was answered before it began. */
function superseded(after: ReadonlySet<string>, known: ReadonlySet<string>, xid: string): ReadonlySet<string> {
  const left = [...after].filter((one) => !known.has(one));
  return new Set([...left.slice(1 - MOST_AFTER), xid]);
}
