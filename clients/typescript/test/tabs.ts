/**
 * A browser's tabs in tests: locks that are handed on in order, can be stolen and end with their tab, and channels that
 * carry copies in order, later. A tab can be closed, or suspended: then it does nothing, and holds what it has.
 */

import type { Wire } from "../src/channel";
import type { Browser } from "../src/leader";

interface Request {
  readonly tab: FakeTab;
  readonly name: string;
  readonly grant: () => void;
  readonly abort: (error: Error) => void;
}

export class Profile {
  readonly tabs = new Set<FakeTab>();
  readonly #held = new Map<string, Request>();
  readonly #queued: Request[] = [];
  /** Messages for which it is true are lost. */
  loses: (data: unknown) => boolean = () => false;

  open(): FakeTab {
    const tab = new FakeTab(this);
    this.tabs.add(tab);
    return tab;
  }

  holder(name: string): FakeTab | undefined {
    return this.#held.get(name)?.tab;
  }

  ask(request: Request, steal: boolean): void {
    if (!this.tabs.has(request.tab)) return;
    const holder = this.#held.get(request.name);
    if (steal && holder) {
      this.#held.delete(request.name);
      holder.tab.does(() => holder.abort(new DOMException("stolen", "AbortError")));
    }
    if (steal) this.#queued.unshift(request);
    else this.#queued.push(request);
    this.#grant(request.name);
  }

  end(request: Request): void {
    const at = this.#queued.indexOf(request);
    if (at >= 0) this.#queued.splice(at, 1);
    if (this.#held.get(request.name) !== request) return;
    this.#held.delete(request.name);
    this.#grant(request.name);
  }

  gone(tab: FakeTab): void {
    this.tabs.delete(tab);
    for (const request of [...this.#queued, ...this.#held.values()]) if (request.tab === tab) this.end(request);
  }

  post(from: FakeWire, name: string, data: unknown): void {
    if (this.loses(data) || !this.tabs.has(from.tab)) return;
    for (const tab of this.tabs) {
      for (const wire of tab.wires) {
        if (wire === from || wire.name !== name) continue;
        tab.does(() => wire.onmessage?.({ data: structuredClone(data) } as MessageEvent));
      }
    }
  }

  #grant(name: string): void {
    const next = this.#queued.find((request) => request.name === name);
    if (!next || this.#held.has(name)) return;
    this.#queued.splice(this.#queued.indexOf(next), 1);
    this.#held.set(name, next);
    next.tab.does(() => {
      if (this.#held.get(name) === next) next.grant();
    });
  }
}

class FakeWire implements Wire {
  onmessage: ((event: MessageEvent) => void) | null = null;
  constructor(
    readonly tab: FakeTab,
    readonly name: string,
  ) {}

  postMessage(data: unknown): void {
    this.tab.profile.post(this, this.name, data);
  }

  close(): void {
    this.tab.wires.delete(this);
  }
}

export class FakeTab {
  readonly wires = new Set<FakeWire>();
  readonly browser: Browser;
  visible = true;
  #suspended = false;
  #open = true;
  #later: (() => void)[] = [];
  #turn: Promise<void> = Promise.resolve();

  constructor(readonly profile: Profile) {
    this.browser = {
      locks: { request: (...asked: unknown[]) => this.#request(asked) } as LockManager,
      wire: (name) => {
        const wire = new FakeWire(this, name);
        this.wires.add(wire);
        return wire;
      },
      seen: () => this.visible && !this.#suspended,
    };
  }

  /** Later, in order, while it is open. */
  does(work: () => void): void {
    this.#later.push(work);
    this.#turn = this.#turn.then(() => {
      if (!this.#suspended && this.#open) this.#later.shift()?.();
    });
  }

  close(): void {
    this.#open = false;
    this.profile.gone(this);
  }

  suspend(): void {
    this.#suspended = true;
  }

  resume(): void {
    this.#suspended = false;
    for (const work of this.#later.splice(0)) this.does(work);
  }

  #request([name, options, work]: unknown[]): Promise<unknown> {
    const { signal, steal = false } = options as LockOptions;
    return new Promise((resolve, reject) => {
      const request: Request = {
        tab: this,
        name: name as string,
        grant: () => {
          signal?.removeEventListener("abort", abort);
          const end = (then: () => void): void => {
            this.profile.end(request);
            then();
          };
          Promise.resolve((work as () => unknown)()).then(
            (value) => end(() => resolve(value)),
            (error: unknown) => end(() => reject(error)),
          );
        },
        abort: reject,
      };
      const abort = (): void => {
        this.profile.end(request);
        reject(signal?.reason as Error);
      };
      if (signal?.aborted) return abort();
      signal?.addEventListener("abort", abort);
      this.profile.ask(request, steal);
    });
  }
}
