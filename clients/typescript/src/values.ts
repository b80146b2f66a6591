/**
 * Values as they travel, and as a page has them: exact both ways.
 *
 * What JSON would round is tagged by the server with a key in `$`, and becomes a bigint, a Decimal, a Uint8Array or a
 * float that JSON has no form for. Times are the text that was sent. Arguments go as the server's annotations take
 * them: a bigint as a number, a Decimal and a Date as text, bytes in base64.
 */

import { malformed } from "./errors.js";

/** A column that is not in the log: excluded, generated or dropped. Only the raw feed has such. */
export const UNAVAILABLE: unique symbol = Symbol("unavailable");

const DECIMAL = /^(-?)(?:(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?|NaN|Infinity)$/;

/** An exact decimal: its text, as the database writes it. For sums, use a library of your choice, or the database. */
export class Decimal {
  readonly text: string;

  constructor(value: string | number | bigint) {
    this.text = String(value);
    if (!DECIMAL.test(this.text)) throw new TypeError(`no decimal: ${this.text}`);
  }

  toString(): string {
    return this.text;
  }

  /** The nearest float. */
  toNumber(): number {
    return Number(this.text);
  }

  /** Whether it is the same number: 1.0 equals 1.00. */
  equals(other: Decimal | string | number | bigint): boolean {
    return normal(this.text) === normal(String(other));
  }

  toJSON(): { $numeric: string } {
    return { $numeric: this.text };
  }
}

/** Digits without leading and trailing zeros, and the exponent of the last one. */
function normal(text: string): string {
  const [, sign = "", whole = "", fraction = "", exponent = "0"] = DECIMAL.exec(text) ?? [];
  if (!whole) return text;
  const digits = (whole + fraction).replace(/^0+/, "");
  const short = digits.replace(/0+$/, "");
  return short && `${sign}${short}e${Number(exponent) - fraction.length + digits.length - short.length}`;
}

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

const TAGS: Record<string, (value: never) => unknown> = {
  $int: (value: string) => BigInt(value),
  $numeric: (value: string) => new Decimal(value),
  $float: (value: string) => Number(value),
  $bytes: fromBase64,
  $object: (value: { [name: string]: Json }) => decodeColumns(value),
  $json: (value: null) => value,
  $unavailable: () => UNAVAILABLE,
};

export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

/** A value from parsed JSON; what it is given is used up. */
export function decodeValue(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(decodeValue);
  const tag = Object.keys(value).find((name) => name.startsWith("$"));
  if (tag === undefined) return decodeColumns(value as Record<string, unknown>);
  const read = tagOf(value);
  if (read === undefined) throw malformed(`unknown tag ${tag}`);
  try {
    return read((value as Record<string, never>)[tag] as never);
  } catch {
    throw malformed(`a malformed value under ${tag}`);
  }
}

/** A row from parsed JSON: its columns' names are no tags, whatever they are; but it may be one tagged value. */
export function decodeRow(row: unknown): unknown {
  if (typeof row !== "object" || row === null || Array.isArray(row) || tagOf(row)) return decodeValue(row);
  return decodeColumns(row as Record<string, unknown>);
}

/** A result from its JSON text: a list of rows, or one value. */
export function decodeResult(text: string): unknown {
  const value: unknown = parse(text);
  if (!text.includes('"$')) return value;
  return Array.isArray(value) ? value.map(decodeRow) : decodeRow(value);
}

/** JSON, or an error that says whose it is. */
export function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw malformed(String(error));
  }
}

function decodeColumns(row: Record<string, unknown>): Record<string, unknown> {
  for (const name of Object.keys(row)) row[name] = decodeValue(row[name]);
  return row;
}

function tagOf(value: object): ((value: never) => unknown) | undefined {
  const names = Object.keys(value);
  return names.length === 1 && Object.hasOwn(TAGS, names[0] as string) ? TAGS[names[0] as string] : undefined;
}

/** Arguments as JSON; the same arguments are the same text, in whatever order they are given. */
export function encodeArgs(args: object = {}): string {
  return encode(Object.fromEntries(sorted(args))) ?? "{}";
}

/** Names and values in the order of the names. */
export function sorted(values: object): [string, unknown][] {
  return Object.entries(values).sort(([a], [b]) => (a < b ? -1 : 1));
}

function encode(value: unknown): string | undefined {
  if (typeof value === "bigint") return String(value);
  if (value instanceof Decimal) return encode(String(value));
  if (value instanceof Uint8Array) {
    return encode(btoa(value.reduce((text, byte) => text + String.fromCharCode(byte), "")));
  }
  if (Array.isArray(value)) return `[${value.map((inner) => encode(inner) ?? "null").join()}]`;
  if (typeof value !== "object" || value === null || "toJSON" in value) return JSON.stringify(value);
  const parts: string[] = [];
  for (const [name, inner] of Object.entries(value)) {
    const text = encode(inner);
    if (text !== undefined) parts.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${parts.join()}}`;
}
