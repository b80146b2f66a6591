/**
 * A page's mutations: each is sent once it can be, runs once, and may be shown before it is done.
 */

import { uuid } from "./leader";
import { Expected } from "./patches";
import type { Queue } from "./queue";
import type { Readable } from "./readable";
import type { Answer, Call, Caller, Mutations, Optimistic, Pending } from "./upstream";

export class Queued implements Mutations {
  readonly #queue: Queue;
  readonly #call: Caller;

  constructor(queue: Queue, call: Caller) {
    this.#queue = queue;
    this.#call = call;
  }

  get pending(): Readable<readonly Pending[]> {
    return this.#queue.pending;
  }

  async run({ name, args, key = uuid() }: Call, optimistic?: Optimistic): Promise<Answer> {
    const expected = optimistic && new Expected(optimistic, key, this.#call);
    try {
      const answer = await this.#queue.send(key, name, args);
      expected?.done(answer);
      return answer;
    } catch (error) {
      expected?.undo();
      throw error;
    }
  }

  wake(): void {
    this.#queue.wake();
  }

  close(): void {
    this.#queue.close();
  }
}
