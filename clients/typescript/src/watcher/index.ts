/** A database in the browser whose queries stay true across tabs: `@forge/client/watcher`. */

// from the client itself, so that its bundle stays one file, which this one imports
export { ForgeError } from "../index";
export type { Names, RemoteChange } from "./changes";
export type { Ran } from "./connection";
export type { FeedOptions, FeedState } from "./feed";
export type { LocalLive } from "./local";
export type { Kind } from "./protocol";
export type { Params, Row, SqlValue } from "./values";
export { type Following, openWatcher, type Statements, type Watcher, type WatcherOptions } from "./watcher";
export { serveWatcher } from "./worker";
