/**
 * Requests to the server: each with the token, each error typed.
 *
 * A 401 is tried once more with a newer token, if there can be one: nothing was done yet.
 */

import { asError, closed, ForgeError, type Told, told, unreachable } from "./errors";
import type { Tokens } from "./tokens";
import type { Answer, Call } from "./upstream";

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
    return this.#send(path, request, AbortSignal.timeout(this.#timeout), (response) => response.text());
  }

  /** The answer to a GET of events, which go on: the headers have to come in time. */
  async stream(path: string, signal: AbortSignal): Promise<Response> {
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), this.#timeout);
    try {
      const either = AbortSignal.any([signal, late.signal]);
      return await this.#send(path, { headers: { accept: EVENTS }, cache: "no-store" }, either, (response) => {
        if (response.headers.get("content-type")?.startsWith(EVENTS)) return response;
        throw told({ code: "not_forge", message: `${path} is no stream of events`, fix: USE }, response.status);
      });
    } finally {
      clearTimeout(timer);
    }
  }

  close(): void {
    this.#closing.abort();
  }

  async #send<T>(path: string, asked: RequestInit, until: AbortSignal, use: (it: Response) => T): Promise<Awaited<T>> {
    const closing = this.#closing.signal;
    const signal = AbortSignal.any([until, closing]);
    const request = { ...asked, signal };
    try {
      closing.throwIfAborted();
      const token = await this.tokens.current();
      let response = await this.#once(path, request, token);
      if (response.status === 401 && this.tokens.renewable) {
        response = await this.#once(path, request, await this.tokens.newer(token));
      }
      if (!response.ok) throw await failure(path, response);
      return await use(response);
    } catch (error) {
      if (closing.aborted) throw closed();
      throw signal.aborted ? unreachable("it does not answer in time") : asError(error);
    }
  }

  #once(path: string, request: RequestInit, token: string | undefined): Promise<Response> {
    const headers = { ...request.headers, ...(token && { authorization: `Bearer ${token}` }) };
    return this.#fetch(this.base + path, { ...request, headers });
  }
}

const EVENTS = "text/event-stream";
const USE = "use the URL of a Forge server";

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
  error ??= { code: "not_forge", message: `${path} was answered with ${status}`, fix: USE };
  return told({ retry_after_secs: Number(response.headers.get("retry-after")) || undefined, ...error }, status);
}

/** Runs calls by POST. */
export function caller(http: Http): (call: Call) => Promise<Answer> {
  return async ({ kind, name, args, after, key }) => {
    const headers = { ...(after && { "forge-after": after }), ...(key && { "idempotency-key": key, ...traced(key) }) };
    return readAnswer(await http.post(pathOf(kind, name, headers), args, headers));
  };
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

/** Has the changes of a call carry its key as their trace: who sees them knows whose they are. */
function traced(key: string): { traceparent?: string } {
  return /^[0-9a-f]{32}$/.test(key) ? { traceparent: `00-${key}-${key.slice(16)}-00` } : {};
}

const RESULT = ',"result":';

/** The answer to a query or a mutation: `result`, its last field, stays text. */
function readAnswer(text: string): Answer {
  const at = text.indexOf(RESULT);
  if (at < 0) throw told({ code: "not_forge", message: "the answer has no result", fix: USE });
  const { xid = null, hash = null, snapshot = null } = JSON.parse(`${text.slice(0, at)}}`) as Partial<Answer>;
  return { result: text.slice(at + RESULT.length, -1), xid, hash, snapshot };
}
