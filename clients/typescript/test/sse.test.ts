import fc from "fast-check";
import { expect, test } from "vitest";
import type { Event } from "../src/messages";
import { Parser } from "../src/sse";

const STREAM =
  "event: update\nid: 7\ndata: {\ndata:  a: b\ndata: }\n\n: a comment\n\nevent: none\n\nevent: x\ndata:x\ndata\n\n" +
  "id: 8\n\nevent: y\ndata: \u2028\ré🦊\n\ndata: cut off";
const EVENTS: Event[] = [
  { name: "update", lines: ["{", " a: b", "}"], id: "7" },
  { name: "x", lines: ["x", ""], id: "7" },
  { name: "y", lines: ["\u2028\ré🦊"], id: "8" },
];

test("the same events, wherever the stream is cut", () => {
  const cuts = fc.array(fc.integer({ min: 0, max: STREAM.length }), { maxLength: 20 });
  fc.assert(
    fc.property(cuts, (cuts) => {
      const parser = new Parser();
      const places = [0, ...cuts.sort((a, b) => a - b), STREAM.length];
      const found = places.flatMap((at, i) => parser.feed(STREAM.slice(at, places[i + 1] ?? STREAM.length)));
      expect(found).toEqual(EVENTS);
      expect(parser.lastId).toBe("8");
    }),
  );
});
