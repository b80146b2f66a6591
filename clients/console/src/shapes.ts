/**
 * What the server's own live queries answer, named `forge.*`: one interface for a row of each.
 *
 * Times are ISO 8601 texts in UTC; durations have their unit in the name. What a server does not know is null. Values
 * of columns are what the client reads from tagged JSON (docs/reference/values.md): bigint, Decimal, Uint8Array too.
 */

export type Op = "INSERT" | "UPDATE" | "DELETE" | "TRUNCATE" | "SCHEMA" | "INVALIDATE" | "READ" | "REDACT" | "KEY";
export type Row = Record<string, unknown>;

/** Who did it, and why. */
export interface Context {
  user_id: string | null;
  function_name: string | null;
  trace_id: string | null;
  session_user: string | null;
  application_name: string | null;
  more: Row;
}

/** A change of `/forge/changes`, as docs/reference/wire-form.md has it. */
export interface Change {
  table: string;
  schema: string;
  operation: Op;
  id: string | null;
  timestamp: string;
  change_id: string;
  changed_columns?: string[];
  key?: Row | null;
  before?: Row | null;
  after?: Row | null;
  source?: { kind: string; name: string; position: string; transaction: string | null };
  context?: Context;
  hidden?: string[];
}

/** `forge.overview`: what this is, and how its log stands. */
export interface Overview {
  title: string;
  version: string;
  database: string;
  server_version: string;
  node: string;
  started_at: string;
  tables_tracked: number;
  log_bytes: number | null;
  dead_letters: number;
  groups: number;
  following: boolean;
  user: string | null;
  /** Whether who asks may change things. */
  operate: boolean;
}

/** `forge.tables`, a row for each table, tracked or not. */
export interface TableInfo {
  schema: string;
  table: string;
  /** Both, quoted where they must be: what others take as `table`. */
  name: string;
  tracked: boolean;
  key: string[];
  columns: string[];
  excluded: string[];
  masked: string[];
  changes_per_minute: number;
  last_change: string | null;
  size_bytes: number | null;
  lag_seconds: number | null;
}

/** `forge.queries`: a group, which is a query with its arguments for those who see the same rows. */
export interface Group {
  id: string;
  query: string;
  arguments: Row;
  scope: { kind: string; user: string | null; tenant: string | null; role: string | null };
  subscribers: number;
  runs: number;
  pushed: number;
  wasted: number;
  failed: number;
  last_ms: number | null;
  last_run: string | null;
  rows: number | null;
  reads: string[];
  error: string | null;
  /** Whether it is the console's. */
  own: boolean;
}

/** `forge.metrics`: this node since its start, and its last 120 seconds. */
export interface Metrics {
  changes: number;
  touched: number;
  pruned: number;
  runs: number;
  pushed: number;
  wasted: number;
  missed: number;
  failed: number;
  sessions: number;
  groups: number;
  subscribers: number;
  commit_to_push_p50_ms: number | null;
  commit_to_push_p95_ms: number | null;
  ring: Second[];
}

/** What happened within one second; the latencies are null where nothing was pushed. */
export interface Second {
  at: string;
  changes: number;
  pushed: number;
  p50_ms: number | null;
  p95_ms: number | null;
}

/** `forge.consumers`: a shard of a consumer. */
export interface Consumer {
  name: string;
  shard: number;
  shards: number;
  tables: string[];
  state: string;
  working: boolean;
  owner: string | null;
  saved_at: string;
  lag_events: number | null;
  lag_seconds: number | null;
  delivered: number;
  retried: number;
  parked: number;
  dead_letters: number;
  tries: number;
  last_error: string | null;
  error_at: string | null;
  source: string | null;
}

/** `forge.dead_letters`: a change that a consumer could not handle, or a message that could not be sent. */
export interface Letter {
  id: string;
  kind: "consumer" | "outbox";
  consumer: string;
  table: string | null;
  key: string | null;
  error: string;
  tries: number;
  behind: boolean;
  replay: boolean;
  parked_at: string;
}

/** `forge.outbox`: how a topic fares. */
export interface Topic {
  topic: string;
  waiting: number;
  seconds: number;
  retrying: number;
  scheduled: number;
  dead: number;
}

/** `forge.webhooks`: an endpoint, without its secrets. */
export interface Webhook {
  name: string;
  url: string;
  tables: string[];
  state: string;
  delivered: number;
  lag_events: number | null;
  dead_letters: number;
  last_error: string | null;
}

/** `forge.pipeline`: the lake beside; null where no lake is named. */
export interface Pipeline {
  lake: string;
  state: "ok" | "empty" | "unreadable";
  batches: number;
  changes: number;
  last_batch: string | null;
  last_at: string | null;
  lag_seconds: number | null;
  lag_events: number | null;
  equal: boolean | null;
  compared_at: string | null;
  problems: string[];
  tables: LakeTable[];
  recent: LakeBatch[];
}

export interface LakeTable {
  name: string;
  current_rows: number;
  history_rows: number;
  bytes: number;
  files: number;
  quarantined: number;
}

export interface LakeBatch {
  batch: string;
  at: string;
  changes: number;
  tables: number;
  seconds: number;
  lag_seconds: number | null;
  equal: boolean | null;
}

/** `forge.doctor`. */
export interface Finding {
  id: string;
  check: string;
  level: "ok" | "info" | "warning" | "problem";
  what: string;
  fix?: string | null;
}

/** `forge.history(table, key, before, limit)`. */
export interface Timeline {
  table: string;
  key: Row;
  entries: Entry[];
  next: string | null;
}

export interface Entry {
  op: Op;
  at: string;
  key: Row | null;
  change_id: string;
  transaction: string | null;
  diff: Difference[];
  context: Context;
  was?: Row;
  became?: Row;
  redefined?: string[];
}

/** A column before and after; one of them is absent where there was no row, both where it is hidden. */
export interface Difference {
  column: string;
  before?: unknown;
  after?: unknown;
  hidden?: boolean;
}

/** `forge.as_of(table, key, at)`. */
export interface PastRow {
  table: string;
  asked: string;
  /** The instant that is answered, and how long before the one asked for it is. */
  at: string;
  gap_seconds: number;
  /** Changes of the table written by the instant asked for that are not in the answer. */
  changes_between: number | null;
  /** Changes in the answer that may have been committed after the instant asked for. */
  changes_unsure: number | null;
  /** There are more of either. */
  changes_capped: boolean;
  row: Row | null;
}

/** `forge.audit(…)`: who changed what, newest first, never the values. */
export interface Audit {
  entries: Audited[];
  next: string | null;
}

export interface Audited {
  at: string;
  table: string;
  op: Op;
  key: string | null;
  changed_columns: string[];
  user_id: string | null;
  function_name: string | null;
  trace_id: string | null;
  session_user: string | null;
  application_name: string | null;
  transaction: string;
}

/** `forge.revert_plan(trace | transaction)`: what a revert would do; with a conflict it would do nothing. */
export interface RevertPlan {
  choice: string;
  changes: number;
  /** How many steps there are; the first 200 are here. */
  rows: number;
  steps: RevertStep[];
  conflicts: string[];
}

export interface RevertStep {
  op: string;
  table: string;
  key: string;
  now: Row;
  then: Row;
  changes: number;
}
