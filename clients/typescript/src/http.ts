/**
 * Requests to the server: each with the token, each error typed.
 *
 * A 401 is tried once more with a newer token, if there can be one: nothing was done yet.
 */

import { asError, closed, ForgeError, type Told, told, unreachable } from "./errors.js";
import type { Tokens } from "./tokens.js";
import { type Answer, type Call, traceOf } from "./upstream.js";

export type Fetch = typeof globalThis.fetch;

export class Http {
  readonly base: string;
  readonly tokens: Tokens;
  readonly #fetch: Fetch;
  readonly #timeout: number;
  readonly #closing = new AbortController();

  /** `timeout`: milliseconds for an answer. */
  constructor(base: string, tokens: Tokens, timeout: number, fetch: Fetch = globalThis.fetch.bind(globalThis)) {
    this.base = base.replace(/\/+$/, "");
    this.tokens = tokens;
    this.#timeout = timeout;
    this.#fetch = fetch;
  }

  /** The text of the answer to a POST of JSON. */
  post(path: string, body: string, headers: Record<string, string> = {}): Promise<string> {
    const request = { method: "POST", body, headers: { "content-type": "application/json", ...headers } };
    return this.#send(path, request, (response) => response.text());
  }

  /** The answer to a GET of events, which go on: the headers have to come in time. */
  stream(path: string, signal: AbortSignal): Promise<Response> {
    const request = { headers: { accept: EVENTS }, cache: "no-store", signal } as const;
    return this.#send(path, request, (response) => {
      if (response.headers.get("content-type")?.startsWith(EVENTS)) return response;
      throw told(notForge(`${path} is no stream of events`), response.status);
    });
  }

  close(): void {
    this.#closing.abort();
  }

  /** What `use` makes of the answer, if it is done in time. */
  async #send<T>(path: string, asked: RequestInit, use: (it: Response) => T): Promise<Awaited<T>> {
    const closing = this.#closing.signal;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), this.#timeout);
    const signal = AbortSignal.any([closing, late.signal, asked.signal ?? closing]);
    const request = { ...asked, signal };
    try {
      closing.throwIfAborted();
      return await use(await this.tokens.use((token) => this.#once(path, request, token)));
    } catch (error) {
      if (closing.aborted) throw closed();
      throw signal.aborted ? unreachable("it does not answer in time") : asError(error);
    } finally {
      clearTimeout(timer);
    }
  }

  async #once(path: string, request: RequestInit, token: string | undefined): Promise<Response> {
    const headers = { ...request.headers, ...(token && { authorization: `Bearer ${token}` }) };
    const response = await this.#fetch(this.base + path, { ...request, headers });
    if (!response.ok) throw await failure(path, response);
    return response;
  }
}

const EVENTS = "text/event-stream";

function notForge(message: string): Told {
  return { code: "not_forge", message, fix: "use the URL of a Forge server" };
}

/** The error that an answer tells. */
async function failure(path: string, response: Response): Promise<ForgeError> {
  const { status } = response;
  const body = await response.text();
  let error: Told | undefined;
  try {
    error = (JSON.parse(body) as { error?: Told }).error;
  } catch {
    // what is no JSON is no answer of Forge's
  }
  error ??= notForge(`${path} was answered with ${status}`);
  return told({ retry_after_secs: Number(response.headers.get("retry-after")) || undefined, ...error }, status);
}

/** Runs calls by POST. */
export function caller(http: Http): (call: Call) => Promise<Answer> {
  return async ({ kind, name, args, after, key }) => {
    const headers = { ...(after && { "forge-after": after }), ...(key && keyed(key)) };
    return readAnswer(await http.post(pathOf(kind, name, headers), args, headers));
  };
}

/** Has the changes of a call carry its trace: who sees them knows whose they are. */
function keyed(key: string): Record<string, string> {
  const trace = traceOf(key);
  return { "idempotency-key": key, traceparent: `00-${trace}-${trace.slice(16)}-00` };
}

/** What can be in no request is refused here: as something that did not arrive, it would be sent for ever. */
function pathOf(kind: string, name: string, headers: Record<string, string>): string {
  try {
    new Headers(headers);
    return `/forge/${kind}/${encodeURIComponent(name)}`;
  } catch (error) {
    throw told({ code: "bad_arguments", message: String(error), fix: "use a UUID as the key" });
  }
}

const RESULT = ',"result":';

/** The answer to a query or a mutation: `result`, its last field, stays text. */
function readAnswer(text: string): Answer {
  const at = text.indexOf(RESULT);
  if (at < 0) throw told(notForge("the answer has no result"));
  const { xid = null, hash = null } = JSON.parse(`${text.slice(0, at)}}`) as Partial<Answer>;
  return { result: text.slice(at + RESULT.length, -1), xid, hash };
}
