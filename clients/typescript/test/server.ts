/**
 * A Forge server of the tests, in memory: it speaks the protocol of docs/reference/events.md over SSE (as a `fetch`)
 * and WebSocket, and goes wrong when it is told to. Whatever it sends, it knows each result that it ever had.
 */

import { createHash } from "node:crypto";

export type Row = { readonly id: number; readonly n: string };
export type Fault = "hash" | "line" | "from" | "lost";

interface Result {
  readonly lines: readonly string[];
  readonly keys: readonly string[] | undefined;
  readonly key: readonly string[];
  readonly single: boolean;
  readonly hash: string;
}

interface Subscription {
  readonly query: string;
  readonly mode: string;
  sent: Result | undefined;
}

interface Connection {
  readonly id: string;
  readonly subscriptions: Map<string, Subscription>;
  send(event: string, body: string): void;
  /** `break`s it, or ends it in order. */
  end(broken: boolean): void;
  forgotten: boolean;
  mute: boolean;
}

const QUERIES = ["rows", "unkeyed", "count"] as const;
const MOST_FAULTS = 3;

export class Server {
  rows: Row[] = [];
  version = 1;
  /** The results that each query had, in order, as JSON. */
  readonly history: Record<string, string[]> = { rows: [], unkeyed: [], count: [] };
  readonly connections = new Set<Connection>();
  /** How many connections, and things said, are refused from now on, and how. */
  refused = { connects: 0, asks: 0, status: 503 };
  /** What is wrong with the next push. */
  fault: Fault | undefined;
  /** Whether each push has a fault. */
  broken = false;
  lost = false;
  /** The tokens that are taken; all, and none, where it is undefined. */
  tokens: Set<string> | undefined;
  pieces: readonly number[] = [1000];
  /** Every body that was posted, by path. */
  readonly posted: { path: string; body: Record<string, unknown>; headers: Record<string, string> }[] = [];
  #inARow = 0;
  #ids = 0;

  constructor() {
    this.#remember();
  }

  // What happens to it

  change(rows: Row[]): void {
    this.rows = rows;
    this.version++;
    this.#remember();
    for (const connection of this.connections) {
      for (const [name, subscription] of connection.subscriptions) this.#push(connection, name, subscription);
    }
  }

  /** Each subscriber missed something, and is told all of it. */
  gap(): void {
    this.#each((connection, name, subscription) => {
      connection.send("gap", `"subscription":"${name}"}`);
      subscription.sent = undefined;
      this.#push(connection, name, subscription);
    });
  }

  fail(code: string): void {
    this.#each((connection, name) => {
      connection.send("error", `"subscription":"${name}","code":"${code}","message":"cannot run","fix":"wait"}`);
    });
  }

  /** After an error all is well again. */
  recover(): void {
    this.#each((connection, name, { sent }) => {
      if (sent) connection.send("snapshot", `"subscription":"${name}",${this.#head(sent.hash)},"unchanged":true}`);
    });
  }

  /** What comes under a name that was never given, or is not any more. */
  stray(): void {
    for (const { send } of this.connections) {
      send("update", `"subscription":"0",${this.#head("0".repeat(32))},"key":[],"rows":[\n1\n]}`);
    }
  }

  /** An event to all sessions. */
  say(event: string, fields: object): void {
    for (const { send } of this.connections) send(event, JSON.stringify(fields).slice(1));
  }

  end(how: "end" | "break" | "bye"): void {
    for (const connection of [...this.connections]) {
      if (how === "bye") connection.send("bye", '"reason":"restart","retry_after_ms":700}');
      connection.end(how === "break");
    }
  }

  heal(): void {
    this.refused = { connects: 0, asks: 0, status: 503 };
    this.fault = undefined;
    for (const connection of [...this.connections]) if (connection.forgotten || connection.mute) connection.end(true);
    if (this.lost) this.change([...this.rows, { id: 1 + Math.max(0, ...this.rows.map(({ id }) => id)), n: "last" }]);
    this.recover();
  }

  #each(what: (connection: Connection, name: string, subscription: Subscription) => void): void {
    for (const connection of this.connections) {
      for (const [name, subscription] of connection.subscriptions) what(connection, name, subscription);
    }
  }

  // What it has

  result(query: string): unknown {
    return query === "count" ? { count: this.rows.length, version: this.version } : this.rows;
  }

  #remember(): void {
    for (const query of QUERIES) this.history[query]?.push(JSON.stringify(this.result(query)));
  }

  #result(query: string): Result {
    const single = query === "count";
    const found = this.result(query);
    const lines = single ? [JSON.stringify(found)] : this.rows.map((row) => JSON.stringify(row));
    const keys = query === "rows" ? this.rows.map(({ id }) => `[${id}]`) : undefined;
    return { lines, keys, key: keys ? ["id"] : [], single, hash: digest(lines) };
  }

  #head(hash: string): string {
    return `"hash":"${hash}","snapshot":"${this.version}:${this.version}:","cause":[]`;
  }

  #push(connection: Connection, name: string, subscription: Subscription, first = false): void {
    const { sent } = subscription;
    const now = this.#result(subscription.query);
    if (now.hash === sent?.hash) return;
    subscription.sent = now;
    const fault = this.broken ? "hash" : this.#inARow < MOST_FAULTS ? this.fault : undefined;
    this.fault = undefined;
    this.#inARow = fault ? this.#inARow + 1 : 0;
    if (fault === "lost") {
      this.lost = true;
      return;
    }
    const delta = subscription.mode === "delta" && sent ? difference(sent, now) : undefined;
    const head = this.#head(fault === "hash" ? "f".repeat(32) : now.hash);
    const from = fault === "from" ? "e".repeat(32) : sent?.hash;
    const lines = fault === "line" ? ['{"id":999,"n":"wrong"}', ...now.lines] : now.lines;
    let body: string;
    if (delta) {
      const order = delta.order ? `,"order":[${delta.order.join()}]` : "";
      body =
        `${head},"from":"${from}","removed":[${delta.removed.join()}],"at":[${delta.at.join()}]${order},` +
        `"changed":${written(delta.changed)},"added":${written(delta.added)}}`;
    } else if (now.single) {
      body = `${head},"key":[],"value":${now.lines[0]}}`;
    } else {
      body = `${head},"key":${JSON.stringify(now.key)},"rows":${written(lines)}}`;
    }
    connection.send(delta ? "delta" : first ? "snapshot" : "update", `"subscription":"${name}",${body}`);
  }

  // What it is asked

  #refusal(kind: "connects" | "asks"): boolean {
    if (this.refused[kind] === 0) return false;
    this.refused[kind]--;
    return true;
  }

  #open(send: Connection["send"], end: Connection["end"]): Connection {
    const found: Connection = {
      id: `s${++this.#ids}`,
      subscriptions: new Map(),
      send: (event, body) => void (found.mute || send(event, body)),
      end: (broken) => {
        this.connections.delete(found);
        end(broken);
      },
      forgotten: false,
      mute: false,
    };
    this.connections.add(found);
    found.send("session", `"session":"${found.id}","expires_at":null}`);
    return found;
  }

  #said(connection: Connection, what: string, body: Record<string, unknown>): void {
    const name = String(body["subscription"]);
    if (what === "unsubscribe") connection.subscriptions.delete(name);
    if (what !== "subscribe") return;
    const subscription: Subscription = { query: String(body["query"]), mode: String(body["mode"]), sent: undefined };
    connection.subscriptions.set(name, subscription);
    const now = this.#result(subscription.query);
    if (now.hash !== body["hash"]) return this.#push(connection, name, subscription, true);
    subscription.sent = now;
    connection.send("snapshot", `"subscription":"${name}",${this.#head(now.hash)},"unchanged":true}`);
  }

  readonly fetch = async (input: unknown, init: RequestInit = {}): Promise<Response> => {
    const { pathname } = new URL(String(input));
    const headers = init.headers as Record<string, string>;
    if (init.method === "POST") {
      const body = JSON.parse(String(init.body)) as Record<string, unknown>;
      this.posted.push({ path: pathname, body, headers });
    }
    if (this.tokens && !this.tokens.has(headers["authorization"] ?? "")) {
      const error = { code: "auth_failed", message: "the token is expired", fix: "have a newer one" };
      return Response.json({ error }, { status: 401 });
    }
    const [, , kind, id, what = ""] = pathname.split("/");
    if (kind !== "session") return Response.json({ xid: String(this.version), result: this.rows.length });
    if (id === undefined) return this.#refusal("connects") ? this.#refuse() : this.#stream(init.signal as AbortSignal);
    if (this.#refusal("asks")) return this.#refuse();
    const connection = [...this.connections].find((one) => one.id === id && !one.forgotten);
    const unknown = { error: { code: "unknown_session", message: "gone", fix: "" } };
    if (!connection) return Response.json(unknown, { status: 404 });
    this.#said(connection, what, JSON.parse(String(init.body)) as Record<string, unknown>);
    return Response.json({});
  };

  #refuse(): Response {
    const { status } = this.refused;
    if (status === 0) throw new TypeError("fetch failed");
    const error = { code: status === 429 ? "too_many" : "server_error", message: "not now", fix: "wait" };
    return Response.json({ error: { ...error, retry_after_secs: status === 429 ? 1 : undefined } }, { status });
  }

  #stream(signal: AbortSignal): Response {
    let source: ReadableStreamDefaultController<Uint8Array>;
    const body = new ReadableStream<Uint8Array>({ start: (controller) => void (source = controller) });
    const connection = this.#open(
      (event, text) => {
        const bytes = Buffer.from(`: \n\nevent: ${event}\ndata: {${text.replaceAll("\n", "\ndata: ")}\n\n`);
        for (let at = 0, i = 0; at < bytes.length; i++) {
          const next = at + (this.pieces[i % this.pieces.length] ?? 1000);
          source.enqueue(new Uint8Array(bytes.subarray(at, next)));
          at = next;
        }
      },
      (broken) => (broken ? source.error(new TypeError("network error")) : source.close()),
    );
    signal.addEventListener("abort", () => {
      if (this.connections.has(connection)) connection.end(true);
    });
    return new Response(body, { headers: { "content-type": "text/event-stream; charset=utf-8" } });
  }

  /** The class that is to be the global WebSocket. */
  socket(): typeof WebSocket {
    const server = this;
    return class {
      onopen: (() => void) | undefined;
      onmessage: ((event: { data: string }) => void) | undefined;
      onclose: ((event: { code: number }) => void) | undefined;
      #connection: Connection | undefined;
      #over = false;

      constructor() {
        queueMicrotask(() => {
          if (this.#over) return;
          if (server.#refusal("connects")) return this.#gone(1006);
          this.onopen?.();
          this.#connection = server.#open(
            (event, text) => {
              const data = `{"event":"${event}",${text}`;
              queueMicrotask(() => this.#over || this.onmessage?.({ data }));
            },
            (broken) => queueMicrotask(() => this.#gone(broken ? 1006 : 1012)),
          );
        });
      }

      send(text: string): void {
        const { type, id, ...body } = JSON.parse(text) as Record<string, unknown>;
        const connection = this.#connection;
        if (!connection || connection.mute || this.#over) return;
        if (server.#refusal("asks")) {
          const code = server.refused.status === 429 ? "too_many" : "server_error";
          return connection.send("error", `"id":"${String(id)}","code":"${code}","message":"not now","fix":""}`);
        }
        if (connection.forgotten) return connection.end(true);
        connection.send("answer", `"id":"${String(id)}"}`);
        server.#said(connection, String(type), body);
      }

      close(): void {
        if (this.#connection) server.connections.delete(this.#connection);
        this.#gone(1000);
      }

      #gone(code: number): void {
        if (this.#over) return;
        this.#over = true;
        queueMicrotask(() => this.onclose?.({ code }));
      }
    } as unknown as typeof WebSocket;
  }
}

function digest(lines: readonly string[]): string {
  return createHash("sha256").update(lines.join("\n")).digest("hex").slice(0, 32);
}

function written(lines: readonly string[]): string {
  return lines.length > 0 ? `[\n${lines.join(",\n")}\n]` : "[\n]";
}

function difference(old: Result, now: Result) {
  if (!old.keys || !now.keys) return undefined;
  const before = new Map(old.keys.map((key, i) => [key, old.lines[i]]));
  const after = new Map(now.keys.map((key, i) => [key, now.lines[i] as string]));
  const added = [...after].filter(([key]) => !before.has(key));
  const stays = old.keys.filter((key) => after.has(key));
  const stayed = now.keys.filter((key) => before.has(key));
  return {
    removed: old.keys.filter((key) => !after.has(key)),
    changed: [...after].filter(([key, line]) => before.has(key) && before.get(key) !== line).map(([, line]) => line),
    added: added.map(([, line]) => line),
    at: added.map(([key]) => (now.keys as string[]).indexOf(key)),
    order: String(stays) === String(stayed) ? undefined : now.keys,
  };
}
