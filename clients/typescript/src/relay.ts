/**
 * The results of all tabs of a group over one connection: that of the tab that leads.
 *
 * The leader has a topic for every question that any tab has, subscribes to it once, and hands each message on as it
 * came; every tab applies and proves it itself. A tab that holds nothing yet, or something else, is sent the leader's
 * result whole. When the lead changes, each tab says again what it wants and which result it holds.
 */

import type { Message } from "./channel.js";
import { closed, ForgeError, misfit } from "./errors.js";
import { Keeper } from "./held.js";
import type { Member, Seat } from "./leader.js";
import type { Asked, Holder, Holding, Push, Sink, Upstream, Whole } from "./upstream.js";
import { keyOf } from "./upstream.js";

const MOST_MISMATCHES = 3;

export class Relay implements Upstream, Member {
  readonly #seat: Seat;
  readonly #session: Upstream;
  /** Who in this tab wants the result of a key. */
  readonly #sinks = new Map<string, Set<Holder>>();
  /** While this tab leads. */
  readonly #topics = new Map<string, Topic>();
  /** The tabs that are watched while this one leads: when they go, so do their wishes. */
  readonly #watched = new Set<string>();
  #watching = new AbortController();
  readonly #mismatches = new Map<Sink, number>();
  #closed = false;

  constructor(seat: Seat, session: Upstream) {
    this.#seat = seat;
    this.#session = session;
    seat.join(this);
  }

  add(sink: Holder): void {
    if (this.#closed) return sink.fault(closed(), true);
    const key = keyOf(sink.asked);
    const sinks = this.#sinks.get(key) ?? new Set();
    if (sinks.has(sink)) return;
    this.#sinks.set(key, sinks.add(sink));
    this.#seat.start();
    if (this.#seat.leading) this.#topic(sink.asked).enter(sink);
    else this.#want(sink);
  }

  remove(sink: Holder): void {
    const key = keyOf(sink.asked);
    const sinks = this.#sinks.get(key);
    this.#mismatches.delete(sink);
    if (!sinks?.delete(sink)) return;
    if (sinks.size === 0) this.#sinks.delete(key);
    if (!this.#seat.leading) {
      if (sinks.size === 0) this.#seat.tell({ type: "unwant", key });
      return;
    }
    this.#topics.get(key)?.leave(sink);
    this.#tidy(key);
  }

  wake(): void {
    this.#session.wake();
  }

  close(): void {
    this.#closed = true;
    this.#session.close();
    for (const key of [...this.#sinks.keys()]) this.#fault(key, closed(), true);
    this.lost();
  }

  // Of a member

  led(): void {
    for (const sinks of [...this.#sinks.values()]) for (const sink of [...sinks]) this.#topic(sink.asked).enter(sink);
  }

  lost(): void {
    this.#watching.abort();
    this.#watching = new AbortController();
    this.#watched.clear();
    for (const topic of this.#topics.values()) this.#session.remove(topic);
    this.#topics.clear();
  }

  found(): void {
    for (const sinks of this.#sinks.values()) for (const sink of sinks) this.#want(sink);
  }

  heard(message: Message, from: string): void {
    if (this.#seat.leading) {
      if (message.type === "want") this.#wanted(message.asked, message.hash, from);
      else if (message.type === "unwant") this.#unwanted(message.key, from);
    } else if (from === this.#seat.leader) {
      if (message.type === "push") this.#push(message.key, message.push);
      else if (message.type === "fault") this.#fault(message.key, ForgeError.of(message.error), message.final);
    }
  }

  // Of a tab that follows

  #want(sink: Sink): void {
    this.#seat.tell({ type: "want", asked: sink.asked, hash: sink.hash });
  }

  #push(key: string, push: Push): void {
    for (const sink of [...(this.#sinks.get(key) ?? [])]) {
      // what leads on from a result that is not there is for others
      if ((push.event === "delta" || push.unchanged) && sink.hash === undefined) {
        this.#want(sink);
        continue;
      }
      try {
        sink.push(push);
        this.#mismatches.delete(sink);
      } catch (thrown) {
        const error = misfit(thrown);
        const times = (this.#mismatches.get(sink) ?? 0) + 1;
        this.#mismatches.set(sink, times);
        if (times > MOST_MISMATCHES) return this.#fault(key, error, true);
        this.#want(sink);
      }
    }
  }

  /** Tells this tab's sinks. */
  #fault(key: string, error: ForgeError, final: boolean): void {
    const sinks = [...(this.#sinks.get(key) ?? [])];
    if (final) this.#sinks.delete(key);
    for (const sink of sinks) sink.fault(error, final);
  }

  // Of the tab that leads

  #topic(asked: Asked): Topic {
    const key = keyOf(asked);
    const known = this.#topics.get(key);
    if (known) return known;
    const topic = new Topic(asked, {
      push: (push) => this.#seat.say({ type: "push", key, push }),
      fault: (error, final) => this.#failed(topic, error, final),
    });
    this.#topics.set(key, topic);
    for (const sink of this.#sinks.get(key) ?? []) topic.enter(sink);
    this.#session.add(topic);
    return topic;
  }

  #failed(topic: Topic, error: ForgeError, final: boolean): void {
    const key = keyOf(topic.asked);
    if (final && this.#topics.get(key) === topic) this.#topics.delete(key);
    this.#fault(key, error, final);
    const { kind, code } = error;
    if (kind === "closed") return;
    const others = topic.tabs.size > 0;
    // whose token is not taken, or who has none, may not lead others: they have theirs
    const refused = kind === "unauthorized";
    if (others && !refused) this.#seat.say({ type: "fault", key, error: error.toJSON(), final });
    if ((refused || code === "no_token") && (final || others)) this.#seat.resign();
  }

  #wanted(asked: Asked, hash: string | undefined, tab: string): void {
    this.#watch(tab);
    const topic = this.#topic(asked);
    topic.tabs.add(tab);
    const key = keyOf(asked);
    const push = topic.whole(hash);
    if (push) this.#seat.say({ type: "push", key, push }, tab);
    if (topic.error) this.#seat.say({ type: "fault", key, error: topic.error.toJSON(), final: false }, tab);
  }

  #unwanted(key: string, tab: string): void {
    this.#topics.get(key)?.tabs.delete(tab);
    this.#tidy(key);
  }

  #watch(tab: string): void {
    if (this.#watched.has(tab)) return;
    this.#watched.add(tab);
    const { signal } = this.#watching;
    this.#seat.watch(tab, signal, () => {
      if (signal.aborted) return;
      this.#watched.delete(tab);
      for (const key of [...this.#topics.keys()]) this.#unwanted(key, tab);
    });
  }

  /** End what nobody wants any more. */
  #tidy(key: string): void {
    const topic = this.#topics.get(key);
    if (!topic || topic.tabs.size > 0 || this.#sinks.has(key)) return;
    this.#topics.delete(key);
    this.#session.remove(topic);
  }
}

/** Hands on to all who want it. */
interface Others {
  push(push: Push): void;
  fault(error: ForgeError, final: boolean): void;
}

/** A question of any tab's, which this tab asks; the first of its own sinks, or else a keeper, holds the result. */
class Topic implements Sink {
  readonly asked: Asked;
  readonly tabs = new Set<string>();
  error: ForgeError | undefined;
  readonly #sinks = new Set<Holder>();
  readonly #others: Others;
  /** Whether something came since it is asked: what is held may have been true long ago. */
  #fresh = false;
  #keeper: Holding = new Keeper();

  constructor(asked: Asked, others: Others) {
    this.asked = asked;
    this.#others = others;
  }

  get hash(): string | undefined {
    return this.#holder.hash;
  }

  get #holder(): Holding {
    return this.#sinks.values().next().value ?? this.#keeper;
  }

  /** The message for somebody who holds the result with that hash, or none. */
  whole(hash: string | undefined): Whole | undefined {
    const whole = this.#fresh ? this.#holder.whole() : undefined;
    if (!whole || hash !== whole.hash) return whole;
    const { rows: _rows, value: _value, ...rest } = whole;
    return { ...rest, unchanged: true };
  }

  enter(sink: Holder): void {
    if (this.#sinks.has(sink)) return;
    const whole = this.whole(sink.hash);
    this.#sinks.add(sink);
    if (whole) sink.push(whole);
    this.#keeper = new Keeper();
    if (this.error) sink.fault(this.error, false);
  }

  leave(sink: Holder): void {
    this.#sinks.delete(sink);
    const whole = this.#sinks.size === 0 && this.tabs.size > 0 && sink.whole();
    if (whole) this.#keeper.push(whole);
  }

  push(push: Push): void {
    const holder = this.#holder;
    holder.push(push);
    this.#fresh = true;
    this.error = undefined;
    for (const sink of [...this.#sinks]) if (sink !== holder) sink.push(holder.whole() as Whole);
    if (this.tabs.size > 0) this.#others.push(push);
  }

  fault(error: ForgeError, final: boolean): void {
    this.error = error;
    this.#others.fault(error, final);
  }
}
