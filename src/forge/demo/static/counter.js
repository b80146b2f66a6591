// The counter: the shelf, live. One click orders, and the stock falls at once, before the server answers.
import { act, client, el, keyed, money, tell } from "./shared.js";

const shelf = client.live("shelf");

const show = keyed(
  document.getElementById("rows"),
  (row) => {
    const item = el("li");
    const order = el("button", "", "order");
    order.setAttribute("aria-label", `order ${row.name}`);
    order.onclick = () =>
      act("order", { product_id: row.id }, shelf, (rows) =>
        rows.map((one) => (one.id === row.id ? { ...one, stock: one.stock - 1 } : one)),
      );
    item.append(el("span", "name", row.name), el("span", "number price"), el("span", "number stock"), order);
    return item;
  },
  (item, row) => {
    item.querySelector(".price").textContent = money(row.price);
    item.querySelector(".stock").textContent = `${row.stock} left`;
    item.querySelector(".stock").classList.toggle("low", row.stock < 10);
    item.querySelector("button").disabled = row.stock <= 0;
  },
);

shelf.subscribe((state) => {
  show(state.data);
  tell(state);
});
