import { copyFileSync, mkdirSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { defineConfig } from "vite";

/** Served by every Forge server as /forge/client.js, for pages without a build of their own. */
const SERVED = resolve(import.meta.dirname, "../../src/forge/serve/static/client.js");

export default defineConfig({
  build: {
    target: "es2022",
    sourcemap: true,
    lib: {
      entry: { index: "src/index.ts", react: "src/react.ts", tanstack: "src/tanstack.ts", watcher: "src/watcher/index.ts" },
      formats: ["es"],
    },
    // the client is one file, also for the watcher, which imports it
    rollupOptions: {
      preserveEntrySignatures: "allow-extension",
      external: ["react", "@tanstack/query-core", "@sqlite.org/sqlite-wasm"],
      output: { minify: true, comments: false }, // white space too, which Vite leaves in libraries
    },
  },
  plugins: [
    {
      name: "served",
      closeBundle() {
        mkdirSync(dirname(SERVED), { recursive: true });
        copyFileSync(resolve(import.meta.dirname, "dist/index.js"), SERVED);
      },
    },
  ],
});
