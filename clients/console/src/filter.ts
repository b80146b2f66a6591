/**
 * What a person types to see fewer changes: words in, a test of changes out.
 *
 *     orders paid                 every word is somewhere in it, whatever the case
 *     table:orders op:update      what has a name is looked for there: table, op, user, function, trace, key, column,
 *     user:ada -op:insert         transaction, app; with a minus before it, it must not be there
 *
 * An empty text lets everything pass. A name that is none is a word like any other.
 */

import type { Change } from "./shapes";
import { shown } from "./value";

export type Test = (change: Change) => boolean;

const FIELDS: Record<string, (change: Change) => string | null | undefined> = {
  table: (change) => `${change.schema}.${change.table}`,
  op: (change) => change.operation,
  user: (change) => change.context?.user_id ?? change.context?.session_user,
  function: (change) => change.context?.function_name,
  trace: (change) => change.context?.trace_id,
  key: (change) => change.id,
  column: (change) => change.changed_columns?.join(" "),
  transaction: (change) => change.source?.transaction,
  app: (change) => change.context?.application_name,
};
const EXACT = new Set(["key", "transaction"]);

export function filter(text: string): Test {
  const tests = text.split(/\s+/).filter(Boolean).map(word);
  return (change) => tests.every((test) => test(change));
}

/** The text with one more condition, or without it if it was there. */
export function toggled(text: string, condition: string): string {
  const words = text.split(/\s+/).filter(Boolean);
  const others = words.filter((each) => each !== condition);
  return (others.length < words.length ? others : [...words, condition]).join(" ");
}

function word(given: string): Test {
  const negated = given.length > 1 && given.startsWith("-");
  const text = negated ? given.slice(1) : given;
  const colon = text.indexOf(":");
  const name = text.slice(0, Math.max(colon, 0)).toLowerCase();
  const field = Object.hasOwn(FIELDS, name) ? FIELDS[name] : undefined;
  const wanted = text.slice(field ? colon + 1 : 0).toLowerCase();
  const test: Test = field
    ? (change) => {
        const value = (field(change) ?? "").toLowerCase();
        return EXACT.has(name) ? value === wanted : value.includes(wanted);
      }
    : (change) => anywhere(change, wanted);
  return negated ? (change) => !test(change) : test;
}

function anywhere(change: Change, wanted: string): boolean {
  for (const field of Object.values(FIELDS)) if ((field(change) ?? "").toLowerCase().includes(wanted)) return true;
  for (const row of [change.before, change.after, change.context?.more]) {
    for (const [name, value] of Object.entries(row ?? {})) {
      if (name.toLowerCase().includes(wanted) || shown(value).text.toLowerCase().includes(wanted)) return true;
    }
  }
  return false;
}
