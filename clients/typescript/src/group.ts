/**
 * Who may share a connection, and what waits to be sent: tabs of one origin, of one server and one user.
 *
 * In come a server's URL and a token, out comes a name that is the same for tokens which the server takes for the same
 * caller. Claims that differ from token to token of one caller do not count; any other difference is another name, so a
 * row never reaches somebody who may not see it.
 */

import { Digest } from "./sha256.js";
import { fromBase64, sorted } from "./values.js";

const PASSING = /^(iat|exp|nbf|jti)$/;
/** Others may change: some issuers put something new into each token. */
const USER = /(^(iss|sub|[otu]id|upn|email|client_id)|(^|[^a-z])(tenant|org|user)(name|_?id)?)$/i;

export function groupOf(base: string, token: string | undefined): string {
  const url = new URL(base, globalThis.location?.href ?? "http://localhost").href;
  return `forge:${new Digest().of(`${url}\n${token && callerOf(token)}`, 32)}`;
}

/** Whose token it is: what cannot change when it is renewed; undefined where it is no JWT. */
export function userOf(token: string): string | undefined {
  return claimsOf(token, (name) => USER.test(name));
}

/** The claims by which the server tells callers apart; all of it where it is no JWT. */
export function callerOf(token: string): string {
  return claimsOf(token, (name) => !PASSING.test(name)) ?? token;
}

function claimsOf(token: string, wanted: (name: string) => boolean): string | undefined {
  try {
    const bytes = fromBase64((token.split(".")[1] as string).replace(/-/g, "+").replace(/_/g, "/"));
    const claims = sorted(JSON.parse(new TextDecoder().decode(bytes)) as object);
    return JSON.stringify(claims.filter(([name]) => wanted(name)));
  } catch {
    return undefined;
  }
}
