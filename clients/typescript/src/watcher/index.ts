/** A database in the browser whose queries stay true across tabs: `@forge/client/watcher`. */

// from the client itself, so that its bundle stays one file, which this one imports
export { ForgeError } from "../index.js";
export type { Names, RemoteChange } from "./changes.js";
export type { Ran } from "./connection.js";
export type { FeedOptions, FeedState } from "./feed.js";
export type { LocalLive } from "./local.js";
export type { Kind } from "./protocol.js";
export type { Params, Row, SqlValue } from "./values.js";
export { type Following, openWatcher, type Statements, type Watcher, type WatcherOptions } from "./watcher.js";
export { serveWatcher } from "./worker.js";
