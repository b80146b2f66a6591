import { resolve } from "node:path";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  plugins: [svelte()],
  resolve: { alias: { "@forge/client": resolve(import.meta.dirname, "../typescript/src/index.ts") } },
  build: {
    target: "es2022",
    outDir: resolve(import.meta.dirname, "../../src/forge/serve/static/console"),
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
});
