// The frame around the windows: the day's numbers.
import { client, flash, money } from "./shared.js";

const status = document.getElementById("status");

client.live("today").subscribe((state) => {
  status.textContent = state.status;
  status.dataset.status = state.status;
  for (const place of document.querySelectorAll("[data-of]")) {
    const value = state.data?.[place.dataset.of];
    if (value === undefined) continue;
    const text = place.dataset.of === "takings" ? money(value) : String(value);
    if (place.textContent === text) continue;
    if (place.textContent !== "–") flash(place);
    place.textContent = text;
  }
});
