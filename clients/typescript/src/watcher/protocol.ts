/**
 * What a page and its worker say to each other, and workers to the workers of other tabs: plain data, to be posted.
 */

import type { ErrorFields } from "../errors.js";
import type { Change, Cursor } from "./changes.js";
import type { Ran } from "./connection.js";
import type { Params, Row } from "./values.js";
import type { Rows } from "./writes.js";

/** Where the data is: in a file that all tabs share and that stays, or in this tab's memory alone. */
export type Kind = "opfs" | "memory";

/** What a page asks, by name: what it gives, and what it is answered. */
export interface Requests {
  open: [{ name: string; schema: readonly string[] }, Kind];
  exec: [{ sql: string; transaction?: number | undefined }, void];
  run: [{ sql: string; params: Params; transaction?: number | undefined }, Ran];
  select: [{ sql: string; params: Params; transaction?: number | undefined }, Row[]];
  /** Answered with the transaction's number when it is its turn. */
  begin: [Record<string, never>, number];
  end: [{ transaction: number; commit: boolean }, void];
  /** `cursor`: where the source of the changes stands behind them, stored with them. */
  apply: [{ changes: readonly Change[]; cursor?: Cursor | undefined }, void];
  /** Where a source stands, as it was stored. */
  cursor: [{ source: string }, string | null];
  /** The table gets these rows, and loses those that are gone; all others when that is not said. */
  mirror: [{ table: string; rows: readonly Row[]; gone?: readonly Row[] | undefined }, void];
  watch: [{ live: number; sql: string; params: Params }, void];
  unwatch: [{ live: number }, void];
  /** Look whether something was missed: the page is seen again. */
  check: [Record<string, never>, void];
  close: [Record<string, never>, void];
}

export type Request = { [Name in keyof Requests]: { id: number; ask: Name } & Requests[Name][0] }[keyof Requests];

export type Reply =
  | { readonly id: number; readonly answer: unknown }
  | { readonly id: number; readonly error: ErrorFields }
  /** A live result: rows, or places of rows in the one before. */
  | { readonly live: number; readonly rows: readonly (Row | number)[] }
  | { readonly live: number; readonly error: ErrorFields };

export type Message =
  /** A transaction led from one version of the file to another, and wrote these rows. */
  | { readonly kind: "written"; readonly from: number; readonly to: number; readonly rows: Rows }
  /** Another tab waits for its turn. */
  | { readonly kind: "want" };
