/** A client of a Forge server for pages: live queries, mutations, exact values. */

export { type Client, type ClientOptions, createClient } from "./client.js";
export type { LiveOptions, Mutated, MutateOptions } from "./client.js";
export { type ErrorFields, ForgeError, type Kind } from "./errors.js";
export type { Live, State, Status } from "./live.js";
export type { Readable } from "./readable.js";
export type { Token } from "./tokens.js";
export type { App, Untyped } from "./types.js";
export type { Cause, Mode, Optimistic, Pending, Transaction } from "./upstream.js";
export { Decimal, decodeRow, UNAVAILABLE } from "./values.js";
