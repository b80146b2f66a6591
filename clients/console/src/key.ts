/** A row's key as it is written in addresses and asked for: `4711`, or JSON where it has several columns. */

import type { Change, Row } from "./shapes";
import { shown } from "./value";

const PLAIN = /^[\w.:-]+$/;
const UNQUOTED = /^[a-z_][a-z0-9_$]*$/;

/** A table's name as it is asked for: quoted where it must be. */
export function tableOf({ schema, table }: { schema: string; table: string }): string {
  return [schema, table].map((name) => (UNQUOTED.test(name) ? name : `"${name.replaceAll('"', '""')}"`)).join(".");
}

/** Null for what is of no single row, or has a key whose columns are not known. */
export function keyOf(change: Pick<Change, "id" | "key">): string | null {
  if (change.key && Object.keys(change.key).length > 0) return written(change.key);
  return change.id?.startsWith("[") ? null : change.id;
}

export function written(key: Row): string {
  const texts = Object.entries(key).map(([name, value]) => [name, shown(value).text] as const);
  const only = texts.length === 1 ? texts[0]?.[1] : undefined;
  return only !== undefined && PLAIN.test(only) ? only : JSON.stringify(Object.fromEntries(texts));
}

/** For people: `7`, `eu · 7`. */
export function readable(key: Row | null | undefined, id: string | null): string {
  const texts = Object.values(key ?? {}).map((value) => shown(value).text);
  return texts.length > 0 ? texts.join(" · ") : (id ?? "");
}
