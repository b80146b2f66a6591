/**
 * Where all data come from: Forge's own client for live queries, and the raw feed.
 *
 * What an operator does is sent once, now or never: it goes through no queue, so nothing that was given up is done later.
 *
 * The token lives in this tab's sessionStorage only, and goes out as a bearer: there is no cookie, so no other site can
 * act in its name.
 */

import { createClient, type Live } from "@forge/client";
import { caller, Http } from "../../typescript/src/http";
import { randomId } from "../../typescript/src/leader";
import { changeOf, RawFeed } from "../../typescript/src/rawfeed";
import type { Heard } from "../../typescript/src/session";
import { Tokens } from "../../typescript/src/tokens";
import { decodeResult, encodeArgs } from "../../typescript/src/values";
import type { Change } from "./shapes";
import { kept } from "./storage";

export type Args = Record<string, unknown>;

export interface Source {
  live<T>(name: string, args?: Args): Live<T>;
  ask<T>(name: string, args?: Args): Promise<T>;
  /** Fails at once where the server cannot be reached. */
  mutate<T>(name: string, args: Args): Promise<T>;
  /** Tells each change behind a place, or from now on, and after each piece where it is; ends with the stream. */
  changes(from: string, told: (change: Change) => void, at: (place: string) => void, end: AbortSignal): Promise<void>;
  close(): void;
}

const TIMEOUT = 30_000;

export const token = kept("sessionStorage", "forge:token");

/** A source, once the server has said that this token, or none, may see the console; a ForgeError otherwise. */
export async function connect(url: string, bearer: string | null): Promise<Source> {
  const client = createClient({ url, ...(bearer !== null && { token: bearer }) });
  const http = new Http(url, new Tokens(bearer ?? undefined), TIMEOUT);
  const call = caller(http);
  try {
    await client.query("forge.overview");
  } catch (error) {
    client.close();
    throw error;
  }
  return {
    live: <T>(name: string, args: Args = {}) => client.live<T>(name, args),
    ask: <T>(name: string, args: Args = {}) => client.query<T>(name, args),
    async mutate<T>(name: string, args: Args) {
      const { result } = await call({ kind: "mutation", name, args: encodeArgs(args), key: randomId() });
      return decodeResult(result) as T;
    },
    changes(from, told, at, end) {
      const feed = new RawFeed(http);
      const heard: Heard = (event) => {
        if (event?.name === "change") told(changeOf(event) as Change);
        at(feed.place);
      };
      return feed.follow(from, [], heard, end);
    },
    close() {
      client.close();
      http.close();
    },
  };
}
