// Shared by the shop's windows: the client, a keyed list that keeps rows in place, and the latency of a push.
import { createClient } from "/forge/client.js";

export const client = createClient({ url: location.origin });

const price = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** An exact decimal, as prices are written. */
export function money(decimal) {
  return price.format(String(decimal));
}

/** Milliseconds from the newest write that led to this state to now; both clocks are this machine's. */
function late({ cause }) {
  return cause.length > 0 ? Math.max(0, Date.now() - Math.max(...cause.map((one) => Date.parse(one.at)))) : undefined;
}

/** Show in the window's corner the state of the connection, and the latency of the last change. */
export function tell(state) {
  if (state.data !== undefined) document.getElementById("rows").dataset.empty = "Nothing yet.";
  const when = document.getElementById("when");
  const ms = state.status === "live" ? late(state) : undefined;
  when.dataset.status = state.status;
  if (state.status !== "live" || ms === undefined) when.textContent = state.status;
  else if (state.snapshot !== told) when.textContent = `${ms.toFixed(0)} ms after the write`;
  told = state.snapshot;
}

let told = null;

/** Call a mutation, show its expected result at once, and show the reason when it is refused. */
export async function act(name, args, live, expected) {
  const refused = document.getElementById("refused");
  try {
    await client.mutate(name, args, { optimistic: (tx) => tx.update(live, expected) });
    refused.hidden = true;
  } catch (error) {
    refused.textContent = `Taken back: ${error.message}`;
    refused.hidden = false;
  }
}

/**
 * A list with one element per row, by `id`: `make` builds it, `fill` puts a row's values in.
 * Elements of rows that stay are kept, so nothing flickers and the focus stays where it is.
 */
export function keyed(list, make, fill) {
  const shown = new Map();
  return (rows = []) => {
    const first = shown.size === 0;
    const wanted = new Set(rows.map((row) => row.id));
    for (const [id, item] of shown) {
      if (!wanted.has(id)) {
        item.element.remove();
        shown.delete(id);
      }
    }
    rows.forEach((row, place) => {
      const item = shown.get(row.id) ?? { element: make(row), row: undefined };
      if (item.row !== row) {
        fill(item.element, row, item.row);
        if (!first) flash(item.element);
        item.row = row;
      }
      shown.set(row.id, item);
      if (list.children[place] !== item.element) list.insertBefore(item.element, list.children[place] ?? null);
    });
  };
}

/** Mark for a moment what has just changed. */
export function flash(element) {
  element.classList.remove("changed");
  void element.offsetWidth; // else the animation would not begin anew
  element.classList.add("changed");
}

/** An element with a class and a text. */
export function el(tag, name = "", text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}
