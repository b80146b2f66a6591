/**
 * A column's value as text: in comes tagged JSON (docs/reference/values.md) or what the client made of it, out come a
 * kind, by which it is coloured, and a text, which is exact.
 *
 * `brief` bounds a change before it is kept, so that what is held stays small whatever was written.
 */

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
  if (typeof value === "number") return { kind: "number", text: Object.is(value, -0) ? "-0" : String(value) };
  if (typeof value === "bigint") return { kind: "number", text: String(value) };
  if (typeof value === "symbol") return { kind: "hidden", text: "not in the log" };
  if (typeof value === "boolean") return { kind: "boolean", text: String(value) };
  if (value instanceof Uint8Array) return { kind: "bytes", text: `\\x${hex(value)}` };
  const tag = tagged(value);
  if (tag !== null) return tag;
  if (isNumber(value)) return { kind: "number", text: String(value) };
  return { kind: "json", text: json(value) };
}

/** The same, with long texts replaced by their beginnings: a copy that holds nothing of the original. */
export function brief(value: unknown, most = KEPT): unknown {
  if (typeof value === "string") {
    return value.length <= most ? value : new Beginning(copied(cut(value, most)), value.length);
  }
  if (typeof value !== "object" || value === null) return value;
  const tag = tagged(value);
  if (tag !== null && tag.text.length <= most) return value;
  const text = tag?.text ?? json(value);
  return text.length <= most ? value : new Beginning(copied(cut(text, most)), text.length);
}

function tagged(value: object): Shown | null {
  const entries = Object.entries(value);
  if (entries.length !== 1) return null;
  const [tag, inner] = entries[0] as [string, unknown];
  switch (tag) {
    case "$int":
    case "$numeric":
    case "$float":
      return { kind: "number", text: String(inner) };
    case "$bytes":
      return { kind: "bytes", text: `base64 ${String(inner)}` };
    case "$unavailable":
      return { kind: "hidden", text: "not in the log" };
    case "$json":
      return { kind: "json", text: json(inner) };
    case "$object":
      return { kind: "json", text: json(inner, true) };
    default:
      return null;
  }
}

/** JSON with exact numbers; objects inside `$object` have keys in `$` of their own, which are no tags. */
function json(value: unknown, literal = false): string {
  if (typeof value === "bigint") return String(value);
  if (value instanceof Beginning) return JSON.stringify(value.text);
  if (typeof value !== "object" || value === null) return JSON.stringify(value) ?? "null";
  if (Array.isArray(value)) return `[${value.map((item) => json(item)).join(", ")}]`;
  if (value instanceof Uint8Array) return `"\\\\x${hex(value)}"`;
  if (!literal) {
    const tag = tagged(value);
    if (tag !== null) return tag.text;
    if (isNumber(value)) return String(value);
  }
  const parts = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${json(item)}`);
  return `{${parts.join(", ")}}`;
}

/** The client's Decimal, or anything else that is a number of its own. */
function isNumber(value: object): boolean {
  return "toNumber" in value && typeof value.toNumber === "function";
}

function hex(value: Uint8Array): string {
  return Array.from(value.subarray(0, KEPT), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
