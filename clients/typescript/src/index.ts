/** A client of a Forge server for pages: live queries, mutations, exact values. */

export { type Client, type ClientOptions, createClient } from "./client";
export type { LiveOptions, Mutated, MutateOptions } from "./client";
export { type ErrorFields, ForgeError, type Kind } from "./errors";
export type { Live, State, Status } from "./live";
export type { Readable } from "./readable";
export type { Token } from "./tokens";
export type { App, Untyped } from "./types";
export type { Cause, Mode, Optimistic, Pending, Transaction } from "./upstream";
export { Decimal, decodeRow, UNAVAILABLE } from "./values";
