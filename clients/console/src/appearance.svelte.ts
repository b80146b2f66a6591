/** Light, dark, or as the system has it: kept for the next time, set on the root element, which theme.css follows. */

import { kept } from "./storage";

export type Appearance = "auto" | "light" | "dark";

const chosen = kept("localStorage", "forge:appearance");
const NEXT: Record<Appearance, Appearance> = { auto: "light", light: "dark", dark: "auto" };

class Chosen {
  current = $state<Appearance>(read());

  constructor() {
    this.#apply();
  }

  next(): void {
    this.current = NEXT[this.current];
    chosen.set(this.current);
    this.#apply();
  }

  #apply(): void {
    if (this.current === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = this.current;
  }
}

export const appearance = new Chosen();

function read(): Appearance {
  const stored = chosen.get();
  return stored === "light" || stored === "dark" ? stored : "auto";
}
