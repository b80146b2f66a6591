/**
 * A column's value as text: in comes what the client reads from tagged JSON (docs/reference/values.md), out come a kind,
 * by which it is coloured, and a text, which is exact.
 *
 * `brief` bounds a change before it is kept, so that what is held stays small whatever was written.
 */

import { hex as digits } from "../../typescript/src/sha256";
import { Decimal, UNAVAILABLE } from "../../typescript/src/values";
import { copied, cut } from "./text";

export type Kind = "null" | "text" | "number" | "boolean" | "bytes" | "json" | "hidden" | "absent";

export interface Shown {
  kind: Kind;
  text: string;
  /** How many characters there were, where `brief` has kept fewer. */
  of?: number;
}

/** A text of which only the beginning was kept. */
export class Beginning {
  constructor(
    readonly text: string,
    readonly of: number,
  ) {}
}

const KEPT = 4096;

export function shown(value: unknown): Shown {
  if (value === undefined) return { kind: "absent", text: "" };
  if (value === null) return { kind: "null", text: "null" };
  if (value instanceof Beginning) return { kind: "text", text: value.text, of: value.of };
  if (typeof value === "string") return { kind: value === "***" ? "hidden" : "text", text: value };
  if (value === UNAVAILABLE) return { kind: "hidden", text: "not in the log" };
  if (typeof value === "boolean") return { kind: "boolean", text: String(value) };
  if (isNumber(value)) return { kind: "number", text: numeral(value) };
  if (!(value instanceof Uint8Array)) return { kind: "json", text: json(value) };
  const bytes = { kind: "bytes", text: hex(value) } as const;
  return value.length > KEPT ? { ...bytes, of: 2 + 2 * value.length } : bytes;
}

/** The same, with long texts replaced by their beginnings: a copy that holds nothing of the original. */
export function brief(value: unknown, most = KEPT): unknown {
  if (typeof value !== "string" && (typeof value !== "object" || value === null)) return value;
  const { text, of = text.length } = shown(value);
  return of <= most ? value : new Beginning(copied(cut(text, most)), of);
}

/** JSON with exact numbers. */
function json(value: unknown): string {
  if (isNumber(value)) return numeral(value);
  if (value instanceof Beginning) return JSON.stringify(value.text);
  if (typeof value !== "object" || value === null) return JSON.stringify(value) ?? "null";
  if (Array.isArray(value)) return `[${value.map(json).join(", ")}]`;
  if (value instanceof Uint8Array) return JSON.stringify(hex(value));
  const parts = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${json(item)}`);
  return `{${parts.join(", ")}}`;
}

function isNumber(value: unknown): value is number | bigint | Decimal {
  return typeof value === "number" || typeof value === "bigint" || value instanceof Decimal;
}

function numeral(value: number | bigint | Decimal): string {
  return Object.is(value, -0) ? "-0" : String(value);
}

/** As PostgreSQL writes bytes; no more of them than are kept. */
function hex(value: Uint8Array): string {
  return `\\x${digits(value.subarray(0, KEPT), 2)}`;
}
