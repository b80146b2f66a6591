// The frame around the windows: the day's numbers.
import { client, flash } from "./shared.js";

const status = document.getElementById("status");

client.live("today").subscribe((state) => {
  status.textContent = state.status;
  status.dataset.status = state.status;
  for (const place of document.querySelectorAll("[data-of]")) {
    const value = state.data?.[place.dataset.of];
    if (value === undefined || place.textContent === String(value)) continue;
    if (place.textContent !== "–") flash(place);
    place.textContent = String(value);
  }
});
