import { expect, test } from "vitest";
import { asked, keyOf, written } from "../src/key";
import type { Row } from "../src/shapes";

test.each<[Row, string, string | Row]>([
  [{ id: 4711 }, "4711", "4711"],
  [{ id: 9007199254740993n }, "9007199254740993", "9007199254740993"],
  [{ order_id: 1n, line: 2 }, '{"order_id":"1","line":"2"}', { order_id: "1", line: "2" }],
  [{ email: "a b@c" }, '{"email":"a b@c"}', { email: "a b@c" }],
  [{ text: '{"a": 1}' }, '{"text":"{\\"a\\": 1}"}', { text: '{"a": 1}' }],
  [{ hash: new Uint8Array([0, 255]) }, '{"hash":"\\\\x00ff"}', { hash: "\\x00ff" }],
])("the key %o is written and asked for", (key, text, wanted) => {
  expect(written(key)).toBe(text);
  expect(asked(text)).toEqual(wanted);
});

test.each(["a=1,b=2", "eu · 7", '["eu", "7"]', "{", "{}x", '{"id": 9007199254740993}'])(
  "what somebody wrote is the server's to read: %s",
  (key) => {
    expect(asked(key)).toBe(key);
  },
);

test("a change without a key has the log's word for its row", () => {
  expect(keyOf({ id: '["eu", "7"]', key: null })).toBe('["eu", "7"]');
  expect(keyOf({ id: null })).toBeNull();
});
