/**
 * Which rows a query reads: its tables as SQLite's authorizer names them, and of a table that is read by primary key
 * alone that key.
 *
 * In come the program that SQLite compiled (the rows of EXPLAIN), the query's parameters and the schema. A table counts
 * as read by key when every cursor on it, or on an index of it, is only ever placed by an equality on the whole primary
 * key, with a value that a parameter or a literal gives. What always holds: in doubt, and with an instruction that is
 * not known here, all rows of the table are read.
 */

import { type Keys, keyOf, type Rows } from "./writes.js";
import type { SqlValue } from "./values.js";

/** An instruction of SQLite's virtual machine, as EXPLAIN shows it. */
export interface Instruction {
  readonly opcode: string;
  readonly p1: number;
  readonly p2: number;
  readonly p3: number;
  readonly p4: string | null;
}

export type Program = readonly Instruction[];

/** A b-tree of the database: a table's rows, or an index. */
export interface Tree {
  readonly table: string;
  /** How its entries are found by the table's primary key: not at all, by rowid, or by so many leading columns. */
  readonly key: "none" | "rowid" | number;
}

/** By root page. */
export type Trees = ReadonlyMap<number, Tree>;

/** From a register to a register: those that an instruction writes. */
type Written = (op: Instruction) => readonly [number, number];

const none: Written = () => [0, -1];
const p1: Written = (op) => [op.p1, op.p1];
const p2: Written = (op) => [op.p2, op.p2];
const p3: Written = (op) => [op.p3, op.p3];

/** The instructions that are known, without and with a cursor as their p1. */
const PLAIN = new Map<string, Written>([
  ...all(none, "Init Goto Halt Transaction ResultRow Noop IsNull NotNull If IfNot Eq Ne Lt Le Gt Ge ElseEq Jump"),
  ...all(none, "Compare Once CollSeq Return Affinity Explain Filter"),
  ...all(p1, "Cast MustBeInt RealAffinity AddImm AggFinal DecrJumpZero IfPos IfNotZero Gosub Yield InitCoroutine"),
  ...all(p1, "EndCoroutine SoftNull FilterAdd"),
  ...all(p2, "Integer Int64 Real String8 String Variable Blob OffsetLimit BeginSubrtn Not BitNot SCopy IntCopy IsTrue"),
  ...all(p2, "ZeroOrNull"),
  ...all(p3, "MakeRecord Add Subtract Multiply Divide Remainder Concat BitAnd BitOr ShiftLeft ShiftRight And Or"),
  ...all(p3, "Function PureFunc AggStep AggStep1 AggInverse AggValue"),
  ["Null", (op) => [op.p2, Math.max(op.p2, op.p3)]],
  ["Copy", (op) => [op.p2, op.p2 + op.p3]],
  ["Move", (op) => [Math.min(op.p1, op.p2), Math.max(op.p1, op.p2) + op.p3]],
]);
const OF_CURSOR = new Map<string, Written>([
  ...all(none, "OpenRead ReopenIdx OpenEphemeral OpenAutoindex OpenPseudo OpenDup Close SeekRowid NotExists SeekGE"),
  ...all(none, "SeekGT SeekLE SeekLT IdxGT IdxGE IdxLT IdxLE DeferredSeek FinishSeek NullRow IfNoHope Rewind Last"),
  ...all(none, "Next Prev Sort SorterOpen SorterSort SorterNext SorterInsert ResetSorter IdxInsert Insert Delete"),
  ...all(none, "Found NotFound SeekHit SequenceTest"),
  ...all(p2, "Rowid IdxRowid Sequence Count SorterData RowData NewRowid"),
  ...all(p3, "Column IfNullRow"),
]);
/** What places a cursor at a key. */
const SEEKS = new Set(["SeekRowid", "NotExists", "SeekGE"]);
/** What else may be done with a cursor that is read by key. */
const HARMLESS = new Set("OpenRead Column Rowid IdxRowid DeferredSeek FinishSeek NullRow IfNullRow Close".split(" "));

function all(written: Written, list: string): [string, Written][] {
  return list.split(" ").map((opcode) => [opcode, written]);
}

/** The rows that a query reads of these tables. */
export function rowsRead(
  tables: ReadonlySet<string>,
  program: Program,
  trees: Trees,
  params: readonly SqlValue[],
): Rows {
  const rows = new Map<string, Keys>([...tables].map((table) => [table, "all"]));
  if (!program.every(({ opcode }) => PLAIN.has(opcode) || OF_CURSOR.has(opcode))) return rows;
  const keys = new Map<string, Set<string> | "all">();
  for (const [cursor, opened] of cursors(program)) {
    const found = opened.map((root) => trees.get(root));
    for (const tree of found) {
      if (tree === undefined) return rows;
      const key = found.length === 1 ? keyRead(cursor, tree, program, params) : undefined;
      const known = keys.get(tree.table);
      if (key === "nothing") continue;
      if (key === undefined || known === "all") keys.set(tree.table, "all");
      else keys.set(tree.table, (known ?? new Set()).add(key.text));
    }
  }
  for (const [table, some] of keys) if (rows.has(table)) rows.set(table, some);
  return rows;
}

/** The root pages that each cursor is opened on. */
function cursors(program: Program): Map<number, number[]> {
  const found = new Map<number, number[]>();
  for (const op of program) {
    if (op.opcode === "OpenRead" || op.opcode === "ReopenIdx") found.set(op.p1, [...(found.get(op.p1) ?? []), op.p2]);
  }
  return found;
}

/**
 * The one key that the cursor is placed at; "nothing" for a cursor on a table that follows another one, on an index of
 * it, which is looked at itself; undefined when it is placed otherwise.
 */
function keyRead(
  cursor: number,
  tree: Tree,
  program: Program,
  params: readonly SqlValue[],
): { text: string } | "nothing" | undefined {
  let key: string | undefined;
  let seek: Instruction | undefined;
  let end: Instruction | undefined;
  for (const op of program) {
    if (op.p1 !== cursor || PLAIN.has(op.opcode) || HARMLESS.has(op.opcode)) continue;
    if (seek === undefined && SEEKS.has(op.opcode)) seek = op;
    else if (seek !== undefined && end === undefined && op.opcode === "IdxGT") end = op;
    else return undefined;
  }
  if (seek === undefined) return followed(cursor, program) ? "nothing" : undefined;
  if (seek.opcode === "SeekGE") {
    const columns = Number(seek.p4);
    const same = end?.p3 === seek.p3 && end.p4 === seek.p4 && columns === tree.key;
    if (same && binary(cursor, columns, program)) key = valuesOf(seek.p3, columns, program, params);
  } else if (tree.key === "rowid" && end === undefined) {
    key = valuesOf(seek.p3, 1, program, params, "D");
  }
  return key === undefined ? undefined : { text: key };
}

function followed(cursor: number, program: Program): boolean {
  return program.some((op) => op.opcode === "DeferredSeek" && op.p3 === cursor);
}

/** Whether the index compares its first columns byte by byte: with another collation, two keys may be the same. */
function binary(cursor: number, columns: number, program: Program): boolean {
  const opened = program.find((op) => op.opcode === "OpenRead" && op.p1 === cursor);
  const collations = /^k\(\d+,(.*)\)$/.exec(opened?.p4 ?? "")?.[1]?.split(",").slice(0, columns);
  return collations?.every((name) => name === "" || name === "B") ?? false;
}

/** The key in these registers, where each is written once, with a constant that needs no conversion. */
function valuesOf(
  first: number,
  count: number,
  program: Program,
  params: readonly SqlValue[],
  affinity = affinities(first, count, program),
): string | undefined {
  const values: SqlValue[] = [];
  for (let i = 0; i < count; i++) {
    const value = constant(first + i, program, params);
    if (value === undefined || !kept(value, affinity?.[i] ?? "A")) return undefined;
    values.push(value);
  }
  return affinity === undefined ? undefined : keyOf(values);
}

/** The affinities that are applied to the registers, a letter each; undefined when it is not that simple. */
function affinities(first: number, count: number, program: Program): string | undefined {
  const applied = program.filter((op) => op.opcode === "Affinity" && op.p1 < first + count && op.p1 + op.p2 > first);
  if (applied.length > 1) return undefined;
  const letters = Array.from({ length: count }, (_, i) => applied[0]?.p4?.[first + i - applied[0].p1] ?? "A");
  return letters.join("");
}

/** Whether the affinity leaves the value as it is, and as a column of that affinity has it. */
function kept(value: SqlValue, affinity: string): boolean {
  if (typeof value === "string") return affinity === "A" || affinity === "B";
  return (typeof value === "number" || typeof value === "bigint") && affinity !== "B";
}

function constant(register: number, program: Program, params: readonly SqlValue[]): SqlValue | undefined {
  const writers = program.filter((op) => {
    const written = PLAIN.get(op.opcode) ?? OF_CURSOR.get(op.opcode);
    const [from, to] = written?.(op) ?? [0, Infinity];
    return from <= register && register <= to;
  });
  const [only] = writers;
  if (only === undefined || writers.length > 1) return undefined;
  switch (only.opcode) {
    case "Variable":
      return params[only.p1 - 1];
    case "Integer":
      return only.p1;
    case "String8":
      return only.p4 ?? undefined;
    default:
      return undefined;
  }
}
