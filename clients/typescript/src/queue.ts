/**
 * Mutations on their way to the server: in the order in which they were made, each until it is answered.
 *
 * In any tab of a group they come in; the tab that leads sends them, one after the other. What the server cannot take
 * now waits, and those behind it too: it is sent again after a while, or when the network is back. Each has a key, by
 * which the server knows it again, so however often it is sent, by whichever tab, it runs once. They are kept where
 * they outlive the page, until they are answered.
 */

import { Backoff } from "./backoff.js";
import type { Message, Waiting } from "./channel.js";
import { asError, closed, type ErrorFields, ForgeError } from "./errors.js";
import { type Member, randomId, type Seat } from "./leader.js";
import { Expected } from "./patches.js";
import { Cell } from "./readable.js";
import type { Entry, Store } from "./store.js";
import type { Answer, Call, Caller, Mutations, Optimistic, Pending } from "./upstream.js";

/** The server remembers keys for a week: what is older than this might run twice. */
const OLDEST = 6 * 86_400_000;

/** How long to wait for what was kept, in milliseconds. */
const READING = 2_000;
const LOOKS = 60_000;

/** What a tab's own mutation is waited for with. */
interface Own {
  readonly entry: Entry;
  readonly answer: Promise<Answer>;
  readonly done: (answer: Answer | Promise<never>) => void;
}

/** What the leader has to send. */
interface Job {
  readonly entry: Entry;
  tries: number;
  error: ForgeError | undefined;
}

type Done = Extract<Message, { type: "done" }>;

export class Queue implements Member, Mutations {
  /** Of all tabs, as far as they are known here. */
  readonly pending = new Cell<readonly Pending[]>([]);
  readonly #seat: Seat;
  readonly #call: Caller;
  readonly #store: Store;
  readonly #own = new Map<string, Own>();
  readonly #backoff = new Backoff();
  #jobs: Job[] = [];
  #told: readonly Waiting[] = [];
  /** Whether what was kept is known. */
  #ready = false;
  #sending = false;
  #looking: ReturnType<typeof setInterval> | undefined;
  #last = 0;
  #closed = false;

  constructor(seat: Seat, call: Caller, store: Store) {
    this.#seat = seat;
    this.#call = call;
    this.#store = store;
    seat.join(this);
  }

  async run({ name, args, key: given }: Call, optimistic?: Optimistic): Promise<Answer> {
    if (this.#closed) throw closed();
    const key = given || randomId();
    const known = this.#own.get(key);
    if (known) return known.answer; // whoever asked first shows it
    const expected = optimistic && new Expected(optimistic, key, this.#call);
    const at = (this.#last = Math.max(Date.now(), this.#last + 0.001));
    const entry = { key, name, args, at };
    this.#seat.start();
    void this.#kept((group) => this.#store.add(group, entry));
    let done!: Own["done"];
    const answer = new Promise<Answer>((resolve) => {
      done = resolve;
    });
    this.#own.set(key, { entry, answer, done });
    if (this.#seat.leading) this.#take(entry);
    else this.#seat.tell({ type: "run", entry });
    this.#show();
    answer.then(
      (it) => expected?.done(it),
      () => expected?.undo(),
    );
    return answer;
  }

  wake(): void {
    if (this.#ready) this.#backoff.wake(); // what is kept is read first
  }

  close(): void {
    this.#closed = true;
    const own = [...this.#own.values()];
    this.#own.clear();
    this.lost();
    for (const { done } of own) done(Promise.reject(closed()));
  }

  // Of a member

  led(): void {
    this.#tell();
    for (const { entry } of this.#own.values()) this.#take(entry);
    this.#looking = setInterval(() => void this.#look(), LOOKS); // a tab may have gone before it could tell
    // what is kept was made before what comes now
    void Promise.race([this.#look(), this.#backoff.pause(READING)]).then(() => {
      this.#ready = this.#seat.leading;
      void this.#work();
    });
  }

  lost(): void {
    clearInterval(this.#looking);
    this.#jobs = [];
    this.#told = [];
    this.#ready = false;
    this.#backoff.wake();
    this.#show();
  }

  found(): void {
    for (const { entry } of this.#own.values()) this.#seat.tell({ type: "run", entry });
  }

  heard(message: Message, from: string): void {
    if (message.type === "done") {
      this.#finish(message);
    } else if (this.#seat.leading) {
      if (message.type === "run") this.#take(message.entry);
      else if (message.type === "who") this.#tell();
    } else if (message.type === "pending" && from === this.#seat.leader) {
      this.#told = message.list;
      this.#show();
    }
  }

  // Of the tab that leads

  /** Take what is kept; and keep what could not be kept when it was made. */
  #look(): Promise<void> {
    return this.#kept(async (group) => {
      for (const { entry } of this.#own.values()) void this.#store.add(group, entry);
      await this.#store.expire(Date.now() - OLDEST);
      for (const entry of await this.#store.all(group)) if (this.#seat.leading) this.#take(entry);
    });
  }

  #take(entry: Entry): void {
    if (this.#closed || this.#jobs.some((job) => job.entry.key === entry.key)) return;
    this.#jobs.push({ entry, tries: 0, error: undefined });
    this.#jobs.sort((a, b) => a.entry.at - b.entry.at);
    this.#tell();
    void this.#work();
  }

  async #work(): Promise<void> {
    if (this.#sending || !this.#ready) return;
    this.#sending = true;
    for (let job = this.#jobs[0]; job; job = this.#jobs[0]) await this.#try(job);
    this.#sending = false;
  }

  async #try(job: Job): Promise<void> {
    const { key } = job.entry;
    let end: { answer: Answer } | { error: ErrorFields };
    try {
      end = { answer: await this.#call({ kind: "mutation", ...job.entry }) };
    } catch (thrown) {
      const error = asError(thrown);
      if (this.#leaves(error, key)) return;
      if (isTemporary(error)) return this.#wait(job, error);
      end = { error: error.toJSON() };
    }
    this.#backoff.reset();
    const done: Done = { type: "done", key, ...end };
    this.#seat.say(done);
    this.#finish(done);
  }

  async #wait(job: Job, error: ForgeError): Promise<void> {
    if (!this.#jobs.includes(job)) return; // another tab has answered it, or leads
    job.tries++;
    job.error = error;
    this.#tell();
    await this.#backoff.wait(0, error);
  }

  /** Whether it is not for this tab to say: a token that is not taken, or not to be had, is not all tabs'. */
  #leaves(error: ForgeError, key: string): boolean {
    if (error.kind === "closed") return true;
    const own = this.#jobs.filter((job) => this.#own.has(job.entry.key));
    if (error.code === "no_token") return own.length < this.#jobs.length && this.#seat.resign();
    if (error.kind !== "unauthorized" || this.#own.has(key)) return false;
    this.#jobs = own[0] ? [...new Set([...own, ...this.#jobs])] : []; // whoever waits here is told first
    if (!own[0]) this.#seat.resign();
    return true;
  }

  /** It was answered, here or in another tab. */
  #finish({ key, answer, error }: Done): void {
    const own = this.#own.get(key);
    const entry = own?.entry ?? this.#jobs.find((job) => job.entry.key === key)?.entry;
    this.#own.delete(key);
    this.#jobs = this.#jobs.filter((job) => job.entry.key !== key);
    if (entry) void this.#kept((group) => this.#store.remove(group, entry));
    this.#tell();
    own?.done(answer ?? Promise.reject(ForgeError.of(error as ErrorFields)));
  }

  // What is known of what waits

  #tell(): void {
    if (this.#seat.leading) {
      const list = (this.#told = this.#jobs.map(waiting));
      this.#seat.say({ type: "pending", list });
    }
    this.#show();
  }

  #show(): void {
    const list = this.#told;
    const known = new Set(list.map(({ key }) => key));
    const own = [...this.#own.values()].filter(({ entry }) => !known.has(entry.key));
    const all = [...list, ...own.map(waiting)].map((one) => ({ ...one, error: one.error && ForgeError.of(one.error) }));
    if (all.length > 0 || this.pending.getSnapshot().length > 0) this.pending.set(all);
  }

  async #kept(work: (group: string) => Promise<void>): Promise<void> {
    const group = await this.#seat.group();
    if (group !== undefined) await work(group);
  }
}

/** How others are told of it; it was not sent yet where nothing else is known. */
function waiting({ entry: { key, name }, tries = 0, error }: Pick<Job, "entry"> & Partial<Job>): Waiting {
  return { key, name, tries, error: error?.toJSON() };
}

/** Whether it may be taken later. What a proxy says while the server is away is no word of the server's. */
function isTemporary({ kind, code, status = 0 }: ForgeError): boolean {
  return kind === "unreachable" || kind === "too_many" || code === "not_forge" || status > 501;
}
