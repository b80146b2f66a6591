/** What every page has at hand: where data come from, the feed, and whether one may change things. */

import { createContext } from "svelte";
import type { Feed } from "./feed.svelte";
import type { Watched } from "./live.svelte";
import type { Overview } from "./shapes";
import type { Source } from "./source";

export interface Session {
  source: Source;
  feed: Feed;
  overview: Watched<Overview>;
  /** Says something in the corner, and to those who listen. */
  tell(message: string, tone?: "good" | "bad"): void;
}

export const [session, setSession] = createContext<Session>();
