/**
 * Values of SQLite in JavaScript, and what they are made of.
 *
 * Whole numbers beyond ±(2⁵³ − 1) are bigints both ways, a blob is a Uint8Array. What comes of a Forge server goes into
 * a column as exactly as SQLite has it: a Decimal and a whole number beyond 64 bits as text, a boolean as 0 or 1, an
 * array or an object as JSON. NaN, which SQLite does not have, is NULL.
 */

export type SqlValue = string | number | bigint | null | Uint8Array;
export type Row = Readonly<Record<string, SqlValue>>;
/** Of a statement: by place, or by name with its prefix (":id"). */
export type Params = readonly (SqlValue | boolean)[] | Readonly<Record<string, SqlValue | boolean>>;

/** A value of a server's row as SQLite keeps it; undefined where the server does not tell it. */
export function asSql(value: unknown): SqlValue | undefined {
  // by their form, not by their class: the client may be another copy of it, the one that the server serves
  if (value === undefined || typeof value === "symbol") return undefined;
  if (value === null || value instanceof Uint8Array) return value;
  if (typeof value === "string" || typeof value === "number") return value;
  if (typeof value === "boolean") return Number(value);
  if (typeof value === "bigint") return BigInt.asIntN(64, value) === value ? value : String(value);
  return isDecimal(value) ? String(value) : JSON.stringify(plain(value));
}

function isDecimal(value: unknown): boolean {
  return typeof value === "object" && value !== null && "toNumber" in value && typeof value.toNumber === "function";
}

/** What JSON has a form for: big and decimal numbers are texts. */
function plain(value: unknown): unknown {
  if (typeof value === "bigint" || isDecimal(value)) return String(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, plain(part)]));
}

/** The same text for the same row, and only for it. */
export function lineOf(row: Row): string {
  return JSON.stringify(row, (_, value: unknown) => {
    if (typeof value === "bigint") return { n: String(value) };
    if (typeof value === "number" && !Number.isFinite(value)) return { f: String(value) };
    return value instanceof Uint8Array ? { x: [...value] } : value;
  });
}
