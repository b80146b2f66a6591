/** The types of the built package, as whoever installed it sees them: with a bundler, and as Node.js resolves. */

import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import ts from "typescript";
import { afterAll, expect, test } from "vitest";

const MODULES = resolve(import.meta.dirname, "../../node_modules");
const SOURCE = `
import { type Client, createClient, Decimal, ForgeError } from "@forge/client";
import { openChannels } from "@forge/client/channels";
import { useLive } from "@forge/client/react";
import { liveQuery } from "@forge/client/tanstack";
import { openWatcher, type Watcher } from "@forge/client/watcher";

interface Shop {
  queries: { open_orders: { args: { customer_id: number }; result: { total: Decimal }[] } };
  mutations: Record<never, never>;
}
const client: Client<Shop> = createClient<Shop>();
const orders = client.live("open_orders", { customer_id: 7 });
export const total: Decimal | undefined = useLive(orders).data?.[0]?.total;
export const first: Promise<{ total: Decimal }[]> = liveQuery(orders).queryFn({} as never);
export const watcher: (made: Watcher) => Promise<void> = (made) => made.exec("SELECT 1");
export const error: (fix: string) => ForgeError = (fix) => new ForgeError("failed", "", fix);
// @ts-expect-error an argument is of another type
client.live("open_orders", { customer_id: "7" });
// @ts-expect-error there is no such option
openChannels({ adress: "" });
// @ts-expect-error a name is missing
void openWatcher({ schema: [] });
// @ts-expect-error it is no live result
useLive(7);
`;

const folder = mkdtempSync(join(tmpdir(), "forge-consumer-"));
afterAll(() => rmSync(folder, { recursive: true }));
symlinkSync(MODULES, join(folder, "node_modules"));
writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
writeFileSync(join(folder, "shop.ts"), SOURCE);

const { ModuleKind, ModuleResolutionKind } = ts;
test.each([
  ["nodenext", ModuleKind.NodeNext, ModuleResolutionKind.NodeNext],
  ["bundler", ModuleKind.ESNext, ModuleResolutionKind.Bundler],
])("with %s everything has its type, and a wrong argument is an error", (_, module, moduleResolution) => {
  const program = ts.createProgram([join(folder, "shop.ts")], {
    module,
    moduleResolution,
    strict: true,
    noEmit: true,
    types: [],
    target: ts.ScriptTarget.ES2022,
    lib: ["lib.es2023.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts", "lib.dom.asynciterable.d.ts"],
  });
  const ours = ts.getPreEmitDiagnostics(program).filter(({ file }) => isOurs(file?.fileName));
  const said = ours.map(({ file, messageText }) => [file?.fileName, ts.flattenDiagnosticMessageText(messageText, "")]);
  expect(said).toEqual([]);
});

/** The declarations of the package and who uses them; what they import in turn is others'. */
function isOurs(name: string | undefined): boolean {
  return name === undefined || name.endsWith("/shop.ts") || name.includes("/typescript/dist/");
}
