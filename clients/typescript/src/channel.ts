/**
 * What tabs tell each other: plain data, to all of a group or to one of its tabs, in the order in which it was said.
 */

import type { ErrorFields } from "./errors.js";
import type { Entry } from "./store.js";
import type { Answer, Asked, Push } from "./upstream.js";

/** A mutation that was not answered yet, as it goes to other tabs. */
export interface Waiting {
  readonly key: string;
  readonly name: string;
  readonly tries: number;
  readonly error: ErrorFields | undefined;
}

export type Message =
  /** From the tab that leads: tell me what you want. */
  | { readonly type: "lead" }
  /** Who leads? */
  | { readonly type: "who" }
  /** To the tab that leads: are you there? It says `lead` to nobody else. */
  | { readonly type: "ping" }
  | { readonly type: "pong" }
  /** To the tab that leads: a page is seen again, or the network is back. */
  | { readonly type: "wake" }
  /** To the tab that leads: this tab shows a result, and holds the one with the hash. */
  | { readonly type: "want"; readonly asked: Asked; readonly hash: string | undefined }
  | { readonly type: "unwant"; readonly key: string }
  | { readonly type: "push"; readonly key: string; readonly push: Push }
  | { readonly type: "fault"; readonly key: string; readonly error: ErrorFields; readonly final: boolean }
  /** To the tab that leads: have it run. */
  | { readonly type: "run"; readonly entry: Entry }
  | { readonly type: "done"; readonly key: string; readonly answer?: Answer; readonly error?: ErrorFields }
  | { readonly type: "pending"; readonly list: readonly Waiting[] };

interface Envelope {
  readonly from: string;
  readonly to: string | undefined;
  readonly message: Message;
}

/** As a BroadcastChannel. */
export interface Wire {
  postMessage(data: unknown): void;
  close(): void;
  onmessage: ((event: MessageEvent) => void) | null;
}

export class Channel {
  readonly #wire: Wire;
  readonly #id: string;

  /** `heard` gets what others said to all, or to this tab. */
  constructor(wire: Wire, id: string, heard: (message: Message, from: string) => void) {
    this.#wire = wire;
    this.#id = id;
    wire.onmessage = ({ data }) => {
      const { from, to, message } = data as Envelope;
      if (to === undefined || to === id) heard(message, from);
    };
  }

  say(message: Message, to?: string): void {
    this.#wire.postMessage({ from: this.#id, to, message } satisfies Envelope);
  }

  close(): void {
    this.#wire.onmessage = null;
    this.#wire.close();
  }
}
