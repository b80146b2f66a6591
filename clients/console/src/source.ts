/**
 * Where all data come from: Forge's own client for live queries and mutations, and the raw feed.
 *
 * The token lives in this tab's sessionStorage only, and goes out as a bearer: there is no cookie, so no other site can
 * act in its name.
 */

import { createClient, type Live } from "@forge/client";
import { Parser } from "../../typescript/src/sse";

export type Args = Record<string, unknown>;

/** An event of the raw feed; `event` is empty for a keep-alive, which has an id too. */
export interface Message {
  event: string;
  data: string;
  id: string;
}

export interface Source {
  live<T>(name: string, args?: Args): Live<T>;
  ask<T>(name: string, args?: Args): Promise<T>;
  mutate<T>(name: string, args: Args): Promise<T>;
  /** Events behind a cursor, or from now on; ends with the stream, throws Refused where there is none. */
  changes(from: string, signal: AbortSignal): AsyncGenerator<Message>;
  close(): void;
}

/** Why a server did not do what it was asked. */
export class Refused extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly fix: string,
  ) {
    super(message);
  }
}

const TOKEN = "forge:token";

export const token = {
  get: (): string | null => sessionStorage.getItem(TOKEN),
  set: (value: string): void => sessionStorage.setItem(TOKEN, value),
  forget: (): void => sessionStorage.removeItem(TOKEN),
};

/** A source, once the server has said that this token, or none, may see the console; Refused otherwise. */
export async function connect(url: string, bearer: string | null): Promise<Source> {
  const headers: Record<string, string> = bearer === null ? {} : { authorization: `Bearer ${bearer}` };
  const response = await fetch(`${url}/forge/query/forge.overview`, {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: "{}",
    credentials: "omit",
  });
  if (!response.ok) throw await refusal(response);
  const client = createClient({ url, ...(bearer === null ? {} : { token: bearer }) });
  return {
    live: <T>(name: string, args: Args = {}) => client.live<T>(name, args),
    ask: <T>(name: string, args: Args = {}) => client.query<T>(name, args),
    mutate: async <T>(name: string, args: Args) => (await client.mutate<T>(name, args)).result,
    async *changes(from, signal) {
      const query = new URLSearchParams({ from, backpressure: "pause" });
      const stream = await fetch(`${url}/forge/changes?${query}`, { headers, signal, credentials: "omit" });
      if (!stream.ok || stream.body === null) throw await refusal(stream);
      yield* messages(stream.body);
    },
    close: () => client.close(),
  };
}

async function* messages(body: ReadableStream<Uint8Array>): AsyncGenerator<Message> {
  const parser = new Parser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const { name, lines, id } of parser.feed(decoder.decode(value, { stream: true }))) {
        yield { event: name, data: lines.join("\n"), id: id ?? "" };
      }
      yield { event: "", data: "", id: parser.lastId };
    }
  } finally {
    await reader.cancel();
  }
}

async function refusal(response: Response): Promise<Refused> {
  const text = await response.text();
  const told = text.startsWith("{") ? (JSON.parse(text) as { error?: { message?: string; fix?: string } }).error : null;
  const message = told?.message ?? `the server answered ${response.status}`;
  return new Refused(message, response.status, told?.fix ?? "see that this is a Forge server, and its log");
}
