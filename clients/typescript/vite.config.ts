import { copyFileSync, mkdirSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { defineConfig } from "vite";

/** Served by every Forge server as /forge/client.js, for pages without a build of their own. */
const SERVED = resolve(import.meta.dirname, "../../src/forge/serve/static/client.js");

export default defineConfig({
  build: {
    target: "es2022",
    sourcemap: "hidden", // the served copy has no map beside it
    minify: "terser", // and what it leaves is made smaller below: each finds what the other does not
    terserOptions: { module: true, ecma: 2020, compress: { passes: 3 } },
    lib: {
      entry: {
        index: "src/index.ts",
        react: "src/react.ts",
        tanstack: "src/tanstack.ts",
        channels: "src/channels.ts",
        watcher: "src/watcher/index.ts",
      },
      formats: ["es"],
    },
    // the client is one file, also for the channels and the watcher, which import it
    rollupOptions: {
      preserveEntrySignatures: "allow-extension",
      output: { minify: true, comments: false }, // white space too, which Vite leaves in libraries
      external: ["react", "@tanstack/query-core", "@sqlite.org/sqlite-wasm"],
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
