/**
 * What can go wrong for a client of a Forge server: one class, whose `kind` says what to make of it.
 *
 * An error that the server told has the server's `code` (one word, stable) and `fix`, and the HTTP `status` where there
 * was one. An error goes to another tab as `toJSON` gives it, and comes out of `ForgeError.of` as it was.
 */

export type Kind =
  /** No connection, or no answer in time. */
  | "unreachable"
  /** The server does not do it, and would not do it later either. */
  | "refused"
  /** The token is missing, expired, revoked or not valid here. */
  | "unauthorized"
  /** A limit is reached; `retryAfter` says when to try again. */
  | "too_many"
  /** The server could not do it this time. */
  | "failed"
  /** What answers is no Forge server, or stands before it. */
  | "not_forge"
  /** A result does not have the hash that the server says it has. */
  | "mismatch"
  /** What came cannot be read. */
  | "protocol"
  /** The client was closed. */
  | "closed";

export interface ErrorFields {
  readonly kind: Kind;
  readonly message: string;
  readonly fix: string;
  readonly code: string;
  readonly status?: number | undefined;
  /** Seconds. */
  readonly retryAfter?: number | undefined;
}

export class ForgeError extends Error implements ErrorFields {
  override readonly name = "ForgeError";
  declare readonly code: string;
  declare readonly status: number | undefined;
  declare readonly retryAfter: number | undefined;

  constructor(
    readonly kind: Kind,
    message: string,
    readonly fix: string,
    { code = kind, status, retryAfter }: Partial<ErrorFields> = {},
  ) {
    super(message);
    Object.assign(this, { code, status, retryAfter });
  }

  static of(fields: ErrorFields): ForgeError {
    return new ForgeError(fields.kind, fields.message, fields.fix, fields);
  }

  toJSON(): ErrorFields {
    return { ...this, message: this.message };
  }
}

/** What the server tells of an error, in an event or as the body of an answer. */
export interface Told {
  readonly code?: string;
  readonly message?: string;
  readonly fix?: string;
  readonly retry_after_secs?: number | undefined;
}

/** The error that the server told, by its status, or by its code where it has none. */
export function told(error: Told, status?: number): ForgeError {
  const { code = "failed", message = code, fix = "see the server's log" } = error;
  return new ForgeError(kindOf(code, status), message, fix, { code, status, retryAfter: error.retry_after_secs });
}

const FAILED = /^(server_error|failed|unexpected)$/;

function kindOf(code: string, status = 0): Kind {
  if (status === 401 || code === "auth_failed") return "unauthorized";
  if (status === 429 || code === "too_many") return "too_many";
  if (status >= 500 || FAILED.test(code)) return "failed";
  return code === "not_forge" ? "not_forge" : "refused";
}

const PASSING = /^(failed|too_many|unreachable)$/;

/** Whether it may go well another time. */
export function passes({ kind }: ForgeError): boolean {
  return PASSING.test(kind);
}

/** A result that does not fit, which can be asked for again; whatever else was thrown is thrown again. */
export function misfit(thrown: unknown): ForgeError {
  if (thrown instanceof ForgeError && thrown.kind === "mismatch") return thrown;
  throw thrown;
}

/** Any thrown value as a ForgeError; what fetch throws means that nobody answered. */
export function asError(thrown: unknown): ForgeError {
  if (thrown instanceof ForgeError) return thrown;
  return unreachable(thrown instanceof Error ? thrown.message : String(thrown));
}

export function unreachable(reason: string): ForgeError {
  const message = `the server cannot be reached: ${reason}`;
  return new ForgeError("unreachable", message, "see that it runs");
}

export function mismatch(message: string): ForgeError {
  return new ForgeError("mismatch", message, "see what changes it on the way");
}

export function malformed(reason: string): ForgeError {
  const message = `the server sent what cannot be read: ${reason.slice(0, 200)}`;
  return new ForgeError("protocol", message, "use client and server of one version");
}

export function closed(): ForgeError {
  return new ForgeError("closed", "the client was closed", "make a new client");
}
