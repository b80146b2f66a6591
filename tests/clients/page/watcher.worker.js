// The worker of watcher.html; ?memory: a browser without the private file system, ?mute: one that announces no write.
import sqlite3InitModule from "/clients/node_modules/@sqlite.org/sqlite-wasm/dist/index.mjs";
import { serveWatcher } from "/clients/typescript/dist/watcher.js";

if (location.search === "?memory") delete FileSystemFileHandle.prototype.createSyncAccessHandle;
if (location.search === "?mute") {
  const post = BroadcastChannel.prototype.postMessage;
  BroadcastChannel.prototype.postMessage = function (message) {
    if (message.kind !== "written") post.call(this, message);
  };
}
serveWatcher(sqlite3InitModule);
