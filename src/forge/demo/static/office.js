// The office: open orders, live. Paying and shipping show at once, and are taken back if somebody else was faster.
import { act, client, el, keyed, tell } from "./shared.js";

const orders = client.live("open_orders");
const NEXT = { placed: "pay", paid: "ship" };

function step(id, status) {
  const expected =
    status === "placed"
      ? (rows) => rows.map((one) => (one.id === id ? { ...one, status: "paid" } : one))
      : (rows) => rows.filter((one) => one.id !== id);
  return act(NEXT[status], { order_id: id }, orders, expected);
}

const show = keyed(
  document.getElementById("rows"),
  (row) => {
    const item = el("li");
    item.append(
      el("span", "number id", `#${row.id}`),
      el("span", "name", row.customer),
      el("span", "number price"),
      el("span", "status"),
      el("button"),
    );
    return item;
  },
  (item, row) => {
    const [price, status, button] = [".price", ".status", "button"].map((one) => item.querySelector(one));
    price.textContent = String(row.total);
    status.textContent = row.status;
    status.dataset.status = row.status;
    button.textContent = NEXT[row.status];
    button.setAttribute("aria-label", `${NEXT[row.status]} order ${row.id}`);
    button.onclick = () => step(row.id, row.status);
  },
);

orders.subscribe((state) => {
  show(state.data);
  tell(state);
});
