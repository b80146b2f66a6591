/**
 * Where a client's token comes from: nowhere, a text, or a function that is asked whenever a newer one is needed.
 *
 * Many who ask at once get the same. What the function throws is passed on as an error of the connection: it is tried
 * again. All tokens of a client are one user's: another's is refused.
 */

import { asError, ForgeError } from "./errors.js";
import { callerOf, userOf } from "./group.js";

export type Token = string | (() => string | Promise<string>);

const OTHER_USER = "other_user";

export class Tokens {
  readonly #source: Token | undefined;
  /** Called when a newer one has other claims: what it may see is not what the older one might. */
  changed: () => void = () => {};
  #token: string | undefined;
  #asking: Promise<string> | undefined;

  constructor(source: Token | undefined) {
    this.#source = source;
    if (typeof source === "string") this.#token = source;
  }

  /** Whether there can be a newer one. */
  get renewable(): boolean {
    return typeof this.#source === "function";
  }

  /** The token to use; undefined where none is needed. */
  async current(): Promise<string | undefined> {
    return this.#token ?? this.newer(undefined);
  }

  /** What comes of using the token, or of a newer one when the server refuses it, and there can be another. */
  async use<T>(work: (token: string | undefined) => Promise<T>): Promise<T> {
    const token = await this.current();
    try {
      return await work(token);
    } catch (thrown) {
      const { kind, code } = asError(thrown);
      if (kind !== "unauthorized" || code === OTHER_USER || !this.renewable) throw thrown;
      return work(await this.newer(token));
    }
  }

  /** The server does not take it any more: have another, or throw. */
  async replace(reason: string): Promise<void> {
    if (!this.renewable) throw unauthorized(reason, reason);
    await this.newer(this.#token);
  }

  /** A token that is not this one, as far as there can be one. */
  async newer(than: string | undefined): Promise<string | undefined> {
    const source = this.#source;
    if (typeof source !== "function" || (this.#token !== undefined && this.#token !== than)) return this.#token;
    this.#asking ??= this.#ask(source).finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  async #ask(source: () => string | Promise<string>): Promise<string> {
    const before = this.#token;
    try {
      this.#token = await source();
    } catch (error) {
      const message = `no token can be had: ${String(error)}`;
      throw new ForgeError("unreachable", message, "see the token function", { code: "no_token" });
    }
    if (before === undefined || callerOf(before) === callerOf(this.#token)) return this.#token;
    if (userOf(before) === userOf(this.#token)) {
      this.changed();
      return this.#token;
    }
    // what others share with this client, and what waits to be sent, is not this caller's
    this.#token = before;
    throw unauthorized("another user's", OTHER_USER);
  }
}

function unauthorized(what: string, code: string): ForgeError {
  return new ForgeError("unauthorized", `the token is ${what}`, "make a new client", { code });
}
