/**
 * What the server sends, read: an event in, a message out. Rows stay the lines that were sent.
 *
 * Arrays of rows begin with `[` at the end of a line, have a row in each line, and end with `]` at the beginning of
 * one: so the first line, and those that begin with `]`, are the object without its rows.
 */

import { malformed } from "./errors.js";
import type { Cause, Delta, Push, Whole } from "./upstream.js";
import { parse } from "./values.js";

export interface Event {
  readonly name: string;
  /** Its data. */
  readonly lines: readonly string[];
  /** The last id that the stream had; empty when it had none. */
  readonly id: string;
}

/** A message, and the name of the subscription that it is of. */
export interface Named {
  readonly subscription: string;
  readonly push: Push;
}

/** The fields of an event that has no rows. */
export interface Fields {
  readonly subscription?: string;
  readonly session?: string;
  readonly renew?: boolean;
  readonly reason?: string;
  readonly retry_after_ms?: number;
  readonly id?: string;
  readonly code?: string;
}

interface Head {
  readonly subscription?: string;
  readonly hash: string;
  readonly snapshot?: string;
  readonly cause?: readonly Cause[];
  readonly key?: readonly string[];
  readonly unchanged?: boolean;
  readonly from: string;
  readonly removed: readonly unknown[];
  readonly at: readonly number[];
  readonly order?: readonly unknown[];
}

const VALUE = ',"value":';

/** A `snapshot`, `update` or `delta`. */
export function readPush({ name, lines }: Event): Named {
  const groups: string[][] = [];
  let frame = "";
  for (const line of lines) {
    if (frame === "" || line.startsWith("]")) {
      frame += line;
      if (line.endsWith("[")) groups.push([]);
    } else {
      groups.at(-1)?.push(line.endsWith(",") ? line.slice(0, -1) : line);
    }
  }
  const { subscription = "", ...head } = parse(frame) as Head;
  const [first, second] = groups;
  let body: Partial<Omit<Delta, "event"> & Omit<Whole, "event">> = {};
  if (name === "delta") {
    if (!first || !second) throw malformed("a delta without rows");
    body = { removed: head.removed.map(text), changed: first, added: second, order: head.order?.map(text) };
  } else if (first) {
    body = { rows: first };
  } else if (!head.unchanged) {
    // Inside of strings quotes are escaped, so this is the name of a field, and the object's own is the first.
    body = { value: frame.slice(frame.indexOf(VALUE) + VALUE.length, -1) };
  }
  const push = { snapshot: null, cause: [], key: [], ...head, event: name, ...body } as Push;
  return { subscription, push };
}

/** Any other event. */
export function readFields({ lines }: Event): Fields {
  return parse(lines.join("\n")) as Fields;
}

/** Keys are compared by their JSON, as this side writes it. */
function text(key: unknown): string {
  return JSON.stringify(key);
}
