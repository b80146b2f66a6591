// The office: the newest orders, live. Paying and shipping show at once, and are reverted if another user was faster.
import { act, client, el, keyed, money, tell } from "./shared.js";

const orders = client.live("newest_orders");
const NEXT = { placed: "pay", paid: "ship" };

const THEN = { placed: "paid", paid: "shipped" };

function step({ id, status }) {
  return act(NEXT[status], { order_id: id }, orders, (rows) =>
    rows.map((one) => (one.id === id && one.status === status ? { ...one, status: THEN[status] } : one)),
  );
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
    price.textContent = money(row.total);
    status.textContent = row.status;
    status.dataset.status = row.status;
    button.hidden = !(row.status in NEXT);
    button.textContent = NEXT[row.status] ?? "";
    button.setAttribute("aria-label", `${NEXT[row.status]} order ${row.id}`);
    button.onclick = () => step(row);
  },
);

orders.subscribe((state) => {
  show(state.data);
  tell(state);
});
