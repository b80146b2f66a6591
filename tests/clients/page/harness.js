// What the pages of the tests share: the options of a test, and a page that shows one live query.
//
// A live query is shown as one <li> a row, with its status in <body data-status>; every state that the store told is in
// `window.states`, so that a test can ask what was ever shown. With `record()`, `window.events` has the names of all
// events that this tab's streams brought.
import { createClient } from "/forge/client.js";

/** What the test gave to `tabs.open`. */
export function options() {
  return JSON.parse(new URLSearchParams(location.search).get("options") ?? "{}");
}

/** A client of the page's own server; the test may have exposed `token()` to the page. */
export function client(given = {}) {
  const asking = "token" in window ? { token: () => window.token() } : {};
  return createClient({ url: location.origin, ...asking, ...given });
}

/** Values as a test reads them: exact numbers as text. */
export function plain(value) {
  return JSON.parse(JSON.stringify(value ?? null, (_, one) => (typeof one === "bigint" ? `${one}n` : one)));
}

/** Show a live query, and remember what it told; returns how to end that. */
export function show(live) {
  const list = document.body.appendChild(document.createElement("ul"));
  window.states = [];
  window.live = live;
  return live.subscribe((state) => {
    window.states.push({ status: state.status, data: plain(state.data), error: state.error?.code ?? null });
    document.body.dataset.status = state.status;
    const rows = Array.isArray(state.data) ? state.data : state.data === undefined ? [] : [state.data];
    list.replaceChildren(
      ...rows.map((row) => {
        const item = document.createElement("li");
        item.textContent = row.id === undefined ? JSON.stringify(row) : `${row.id} ${row.status} ${row.total}`;
        return item;
      }),
    );
  });
}

/** Write down the names of the events that streams bring, from now on. */
export function record() {
  window.events = [];
  const fetching = window.fetch.bind(window);
  window.fetch = async (...call) => {
    const answer = await fetching(...call);
    if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) return answer;
    let rest = "";
    const decoder = new TextDecoder();
    const listening = new TransformStream({
      transform(chunk, onward) {
        const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
        rest = lines.pop();
        for (const line of lines) if (line.startsWith("event: ")) window.events.push(line.slice(7));
        onward.enqueue(chunk);
      },
    });
    return new Response(answer.body.pipeThrough(listening), answer);
  };
}
