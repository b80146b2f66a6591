import { expect, test } from "vitest";
import { base } from "../src/base";

test.each([
  ["/console", "https://db.example"],
  ["/console/", "https://db.example"],
  ["/console/index.html", "https://db.example"],
  ["/live/console/", "https://db.example/live"],
  ["/console/console/", "https://db.example/console"],
  ["/", "https://db.example"],
])("the console at %s asks %s", (pathname, wanted) => {
  expect(base({ origin: "https://db.example", pathname })).toBe(wanted);
});
