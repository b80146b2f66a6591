/**
 * The last changes that were seen, newest first: at most `most` of them, and at most so many characters together, so
 * that memory stays the same however long the console is open and however large the rows are.
 */

import type { Change, Row } from "./shapes";
import { copied, cut } from "./text";
import { Beginning, brief, shown } from "./value";

export interface Seen {
  /** The order in which they came: counts up from 1, and down from 0 for what was there before. */
  number: number;
  change: Change;
  /** About how many characters it holds. */
  weight: number;
}

export const MOST = 2000;
const CHARACTERS = 12_000_000;
const COLUMNS = 400;
/** Characters of who, what and why; any writer may set them to as much as it likes. */
const WORD = 512;

export class Ring {
  total = 0;
  #held: Seen[] = [];
  #weight = 0;

  constructor(
    readonly most = MOST,
    readonly characters = CHARACTERS,
  ) {}

  /** Newest first; another array after every `add`. */
  get held(): readonly Seen[] {
    return this.#held;
  }

  add(changes: readonly Change[]): void {
    const news = changes.map((change): Seen => {
      const small = bounded(change);
      return { number: ++this.total, change: small, weight: weight(small) };
    });
    const held = [...news.reverse(), ...this.#held];
    this.#weight += news.reduce((sum, seen) => sum + seen.weight, 0);
    while (held.length > this.most || (this.#weight > this.characters && held.length > 1)) {
      this.#weight -= held.pop()?.weight ?? 0;
    }
    this.#held = held;
  }

  /** Older ones behind those that are held, newest first; they count down from 0. */
  addOlder(changes: readonly Change[]): void {
    const room = Math.max(0, this.most - this.#held.length);
    const first = Math.min(1, this.#held.at(-1)?.number ?? 1);
    const older = changes.slice(0, room).map((change, index): Seen => {
      const small = bounded(change);
      return { number: first - 1 - index, change: small, weight: weight(small) };
    });
    this.#weight += older.reduce((sum, seen) => sum + seen.weight, 0);
    this.#held = [...this.#held, ...older];
  }

  clear(): void {
    this.#held = [];
    this.#weight = 0;
  }
}

function bounded(change: Change): Change {
  const { id, context } = change;
  return {
    ...change,
    id: word(id),
    ...(change.key ? { key: row(change.key) } : {}),
    ...(change.before ? { before: row(change.before) } : {}),
    ...(change.after ? { after: row(change.after) } : {}),
    ...(context && {
      context: {
        ...context,
        user_id: word(context.user_id),
        function_name: word(context.function_name),
        trace_id: word(context.trace_id),
        session_user: word(context.session_user),
        application_name: word(context.application_name),
        more: row(context.more ?? {}),
      },
    }),
  };
}

function word<T extends string | null | undefined>(text: T): T | string {
  return typeof text !== "string" || text.length <= WORD ? text : `${copied(cut(text, WORD))}…`;
}

function row(given: Row): Row {
  const columns = Object.entries(given).slice(0, COLUMNS);
  return Object.fromEntries(columns.map(([name, value]) => [word(name), brief(value)]));
}

function weight({ id, key, before, after, context }: Change): number {
  const words = [id, context?.user_id, context?.function_name, context?.trace_id];
  let sum = words.reduce((total, each) => total + (each?.length ?? 0), 600);
  for (const image of [key, before, after, context?.more]) {
    for (const [name, value] of Object.entries(image ?? {})) {
      sum += name.length + (value instanceof Beginning ? value.text.length : shown(value).text.length) + 32;
    }
  }
  return sum;
}
