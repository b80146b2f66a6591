import fc from "fast-check";
import { expect, test } from "vitest";
import type { Event } from "../src/messages";
import { Parser } from "../src/sse";

const STREAM =
  "event: update\r\nid: 7\r\ndata: {\r\ndata: }\r\n\r\n: a comment\n\nevent: none\n\ndata:x\rdata\r\r" +
  "id: 8\n\nid: a\0b\ndata: \u2028é🦊\n\ndata: cut off";
const EVENTS: Event[] = [
  { name: "update", lines: ["{", "}"], id: "7" },
  { name: "message", lines: ["x", ""], id: "7" },
  { name: "message", lines: ["\u2028é🦊"], id: "8" },
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
