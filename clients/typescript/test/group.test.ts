/** Which tabs may share: those of one server and one caller. */

import { expect, test } from "vitest";
import { groupOf } from "../src/group";
import { Tokens } from "../src/tokens";

const jwt = (claims: object): string => `h.${Buffer.from(JSON.stringify(claims)).toString("base64url")}.signature`;
const tokensOf =
  (...given: string[]) =>
  (): string =>
    given.shift() as string;
const of = (claims: object): string => groupOf("http://shop.example", jwt(claims));

test("tokens of one caller are one group, whatever is new in them", () => {
  const older = of({ sub: "ådå", tenant: "a", iat: 1, exp: 2, jti: "x" });
  expect(of({ tenant: "a", sub: "ådå", iat: 3, nbf: 4 })).toBe(older);
});

test("any other difference is another group", () => {
  const groups = [
    of({ sub: "ada", tenant: "a" }),
    of({ sub: "bob", tenant: "a" }),
    of({ sub: "ada", tenant: "b" }),
    of({ sub: "ada", tenant: "a", role: "admin" }),
    groupOf("http://other.example", jwt({ sub: "ada", tenant: "a" })),
    groupOf("http://shop.example", undefined),
    groupOf("http://shop.example", "opaque"),
    groupOf("http://shop.example", "opaque2"),
    groupOf("http://shop.example", "a.!!!.c"),
  ];
  expect(new Set(groups).size).toBe(groups.length);
  for (const group of groups) expect(group).toMatch(/^forge:[0-9a-f]{32}$/);
});

test("a user may be known by another name; of what cannot be read, nothing is known", async () => {
  const moved = new Tokens(tokensOf(jwt({ email: "ada@a.test" }), jwt({ email: "bob@a.test" })));
  await expect(moved.newer(await moved.current())).rejects.toMatchObject({ code: "other_user" });
  const opaque = new Tokens(tokensOf("one", "two"));
  let changed = 0;
  opaque.changed = () => changed++;
  await opaque.newer(await opaque.current());
  expect(changed).toBe(1);
});

test("a client takes newer tokens of its user, and no other's", async () => {
  const given = [
    jwt({ sub: "ada", exp: 1, uti: "a" }),
    jwt({ sub: "ada", exp: 2, uti: "b" }),
    jwt({ sub: "bob", exp: 3, uti: "a" }),
  ];
  const tokens = new Tokens(() => given.shift() as string);
  const first = await tokens.current();
  let changed = 0;
  tokens.changed = () => changed++;
  const second = await tokens.newer(first);
  expect(changed).toBe(1); // what it may see may differ
  expect(second).toBe(jwt({ sub: "ada", exp: 2, uti: "b" }));
  await expect(tokens.newer(second)).rejects.toMatchObject({ kind: "unauthorized", code: "other_user" });
  expect(await tokens.current()).toBe(second);
});

test("another user's token is no reason to try again", async () => {
  const given = [jwt({ sub: "ada" }), jwt({ sub: "bob" }), jwt({ sub: "ada", exp: 1 })];
  const tokens = new Tokens(() => given.shift() as string);
  const used: (string | undefined)[] = [];
  const work = async (token: string | undefined): Promise<void> => {
    used.push(token);
    await tokens.replace("expired");
  };
  await expect(tokens.use(work)).rejects.toMatchObject({ code: "other_user" });
  expect([used, given.length]).toEqual([[jwt({ sub: "ada" })], 1]);
});

test("what is said of a user may change; who it is, and of which tenant, may not", async () => {
  const same = { sub: "ada", tenant: "a" };
  const said = ["user_metadata", "email_verified", "org_permissions", "tenant_roles", "is_superuser", "subject"];
  for (const claim of said) {
    const given = [jwt({ ...same, [claim]: { plan: 1 } }), jwt({ ...same, [claim]: { plan: 2 } })];
    const tokens = new Tokens(tokensOf(...given));
    await expect(tokens.newer(await tokens.current()), claim).resolves.toBe(given[1]);
  }
  const naming = ["iss", "oid", "tid", "uid", "upn", "client_id", "tenant_id", "tenantId", "org", "org_id", "user"];
  for (const claim of [...naming, "user_id", "userid", "preferred_username", "https://shop.example/tenant"]) {
    const tokens = new Tokens(tokensOf(jwt({ [claim]: "a" }), jwt({ [claim]: "b" })));
    await expect(tokens.newer(await tokens.current()), claim).rejects.toMatchObject({ code: "other_user" });
  }
});
