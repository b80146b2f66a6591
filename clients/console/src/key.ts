/** A row's key as it is written in addresses: `4711`, or JSON where it has several columns; and as it is asked for. */

import type { Change, Row } from "./shapes";
import { shown } from "./value";

const PLAIN = /^[\w.:-]+$/;
const UNQUOTED = /^[a-z_][a-z0-9_$]*$/;

/** A table's name as it is asked for: quoted where it must be. */
export function tableOf({ schema, table }: { schema: string; table: string }): string {
  return [schema, table].map((name) => (UNQUOTED.test(name) ? name : `"${name.replaceAll('"', '""')}"`)).join(".");
}

/** Null for what is of no single row; where its columns are not known, the word under which the log has the row. */
export function keyOf(change: Pick<Change, "id" | "key">): string | null {
  if (change.key && Object.keys(change.key).length > 0) return written(change.key);
  return change.id;
}

export function written(key: Row): string {
  const texts = Object.entries(key).map(([name, value]) => [name, shown(value).text] as const);
  const only = texts.length === 1 ? texts[0]?.[1] : undefined;
  return only !== undefined && PLAIN.test(only) ? only : JSON.stringify(Object.fromEntries(texts));
}

/**
 * The key of an address as the server is asked for it: its columns where `written` has named them. What people write is
 * theirs to say and the server's to read, which takes numbers of any size.
 */
export function asked(key: string): string | Row {
  if (!key.startsWith("{")) return key;
  let found: unknown;
  try {
    found = JSON.parse(key);
  } catch (error) {
    if (error instanceof SyntaxError) return key;
    throw error;
  }
  return Object.values(found as Row).every((value) => typeof value === "string") ? (found as Row) : key;
}

/** For people: `7`, `eu · 7`. */
export function readable(key: Row | null | undefined, id: string | null): string {
  const texts = Object.values(key ?? {}).map((value) => shown(value).text);
  return texts.length > 0 ? texts.join(" · ") : (id ?? "");
}
