"""In Chromium: what a delta costs the page, from a commit to what is painted, and what the console keeps in memory.

A result of 1,000 rows, of which 100 a second change. What a delta costs is all the processor time that the page's main
thread took meanwhile, as the browser itself counts it: once for the client and somebody who is told of each result,
once with a list that shows the rows (so with style, layout and paint). A change is painted when the frame after its
notification was: by the machine's clock, from just before the statement that writes it is sent.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most, figure
from benchmarks.served import Serving, prepare, serving
from benchmarks.writer import UPDATE, writing
from forge.postgres.connection import Connection, connect
from tests.servers.chromium import ARGUMENTS, PATH

ROWS, RATE = 1_000, 100
EVENTS, BURST = 100_000, 200
MAIN_THREAD, HEAP = 2.0, 100.0
QUIET, LONGEST = 0.001, 0.005
"""Seconds: a debounce that does not make one delta of two that are 10 ms apart."""
CLIENT = Path(__file__).parent.parent / "src/forge/serve/static/client.js"
PAGE = """<!doctype html><meta charset="utf-8"><title>bench</title><link rel="icon" href="data:,">
<style>ul { height: 600px; overflow: auto; padding: 0 } li { contain: strict; height: 20px; display: block }</style>
<ul id="rows"></ul>
<script type="module">
  import { createClient } from "/forge/client.js";
  const live = createClient({ url: location.origin }).live("grid");
  const list = document.getElementById("rows");
  const showing = location.search === "?show";
  const shown = new Map();
  window.pushes = 0;
  window.painted = [];
  live.subscribe(({ data = [], status }) => {
    if (status !== "live") return;
    window.pushes += 1;
    window.rows = data.length;
    if (!showing) return;
    const news = [];
    for (const row of data) {
      const line = shown.get(row.id) ?? { row: undefined, element: list.appendChild(document.createElement("li")) };
      if (line.row === row) continue;
      line.element.textContent = `${row.id} ${row.tenant} ${row.sent}`;
      if (row.sent > 1e15) news.push(row.sent); // by the clock on the wall: not what the other figure writes
      line.row = row;
      shown.set(row.id, line);
    }
    const after = new MessageChannel();
    after.port1.onmessage = () => {
      const now = (performance.timeOrigin + performance.now()) * 1000;
      for (const sent of news) window.painted.push((now - sent) / 1000);
      after.port1.close();
    };
    if (news.length > 0) requestAnimationFrame(() => after.port2.postMessage(null));
  });
</script>"""


def run(bench: Bench) -> list[Figure]:
    """What is there of the browser's side is measured; without Chromium or its build, nothing."""
    if not Path(PATH).exists() or not CLIENT.exists():
        bench.say("no figures of the browser: Chromium is not installed, or its client is not built (make setup)")
        return []
    rounds, seconds = (1, 3) if bench.quick else (5, 10)
    events = EVENTS // 10 if bench.quick else EVENTS
    with bench.database() as url, serving(Serving(url, QUIET, LONGEST)) as served:
        prepare(url, ROWS)
        address = f"http://127.0.0.1:{served.port}"
        bench.say(f"a page of {ROWS} rows, {RATE} deltas a second")
        with page(f"{address}/bench.html") as (alone, devtools):
            alone_costs = [_cost(alone, devtools, url, seconds) for _ in range(rounds)]
        with page(f"{address}/bench.html?show") as (shown, devtools):
            costs = [_cost(shown, devtools, url, seconds) for _ in range(rounds)]
            bench.say("commit to paint")
            painted = [_painted(shown, url, seconds) for _ in range(rounds)]
        bench.say(f"the console after {events:,} events")
        with page(f"{address}/console#/feed") as (console, devtools), connect(url) as connection:
            heap = _heap(console, devtools, connection, events)
    return [
        at_most(_figure(f"main thread a delta of {ROWS:,} rows", [ms for ms, _ in alone_costs], "ms"), MAIN_THREAD),
        _figure("deltas a second that came", [rate for _, rate in alone_costs], "rate"),
        _figure("main thread a delta, with all rows in a list", [ms for ms, _ in costs], "ms"),
        _figure(f"commit to paint, {ROWS:,} rows (p50)", [p50 for p50, _ in painted], "ms"),
        _figure(f"commit to paint, {ROWS:,} rows (p95)", [p95 for _, p95 in painted], "ms"),
        at_most(_figure(f"heap of the console after {events:,} events", [heap], "MB"), HEAP),
    ]


def _figure(name: str, rounds: list[float], form: Any) -> Figure:
    return figure("browser", name, rounds, form)


@contextmanager
def page(address: str) -> Iterator[tuple[Page, CDPSession]]:
    """A page of a new browser, and the browser's own tools for it; `bench.html` is the page above."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PATH, args=ARGUMENTS)
        try:
            shown = browser.new_page()
            shown.route("**/bench.html*", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
            shown.goto(address)
            devtools = shown.context.new_cdp_session(shown)
            devtools.send("Performance.enable")
            yield shown, devtools
        finally:
            browser.close()


def _metric(devtools: CDPSession, name: str) -> float:
    found = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
    return float(found[name])


def _cost(shown: Page, devtools: CDPSession, url: str, seconds: int) -> tuple[float, float]:
    """Milliseconds of the main thread for a delta, and how many came a second."""
    shown.wait_for_function(f"window.rows === {ROWS}")
    with writing(url, UPDATE, ROWS) as writer:
        writer.begin(RATE, RATE * (seconds + 2))
        time.sleep(1)
        pushes, busy, began = shown.evaluate("window.pushes"), _metric(devtools, "ThreadTime"), time.perf_counter()
        time.sleep(seconds)
        came = shown.evaluate("window.pushes") - pushes
        busy, took = _metric(devtools, "ThreadTime") - busy, time.perf_counter() - began
        writer.end()
    return busy * 1000 / came, came / took


def _painted(shown: Page, url: str, seconds: int) -> tuple[float, float]:
    """Half of the changes are painted within, and 95 of 100; 20 changes per second."""
    changes = 20 * seconds
    shown.evaluate("window.painted = []")
    with connect(url) as connection:
        for number in range(changes):
            sent = time.time_ns() // 1000
            connection.execute("UPDATE probe SET sent = %s WHERE customer_id = %s", (sent, number % ROWS + 1))
            time.sleep(1 / 20)
    shown.wait_for_function(f"window.painted.length === {changes}")
    cuts = quantiles(shown.evaluate("window.painted"), n=20, method="inclusive")
    return cuts[9], cuts[18]


def _heap(console: Page, devtools: CDPSession, connection: Connection, events: int) -> float:
    """Megabytes that are alive when so many changes were shown."""
    newest = "Number(document.querySelector('[role=option]')?.id.slice('change-'.length) ?? 0)"
    console.wait_for_selector("[role=listbox]")
    shown = 0
    while shown < events:
        connection.execute(
            "INSERT INTO probe (tenant, sent) SELECT 'events', g FROM generate_series(1, %s) g", (BURST,)
        )
        time.sleep(0.05)
        shown = console.evaluate(newest)
    devtools.send("HeapProfiler.collectGarbage")
    return _metric(devtools, "JSHeapUsedSize") / 1e6
