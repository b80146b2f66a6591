/**
 * Keys that do something: a page says which, while it is shown, and the help lists them.
 *
 * They are silent while one types, in a dialog, and with a modifier; Escape leaves a field, and empties one to search in.
 * Those that are characters can be switched off, for people whose speech or hands type some unmeant.
 */

import { untrack } from "svelte";
import { kept } from "./storage";

const OFF = "off";
const setting = kept("localStorage", "forge:keys");

export interface Shortcut {
  key: string;
  does: string;
  run: () => void;
}

class Shortcuts {
  #sets = $state.raw<readonly (readonly Shortcut[])[]>([]);
  #characters = $state(setting.get() !== OFF);

  /** Whether keys that are characters do something; kept for the next time. */
  get characters(): boolean {
    return this.#characters;
  }

  set characters(on: boolean) {
    this.#characters = on;
    if (on) setting.forget();
    else setting.set(OFF);
  }

  get all(): readonly Shortcut[] {
    return this.#sets.flat();
  }

  /** Returns how to take them back, as an effect does. */
  add(set: readonly Shortcut[]): () => void {
    this.#sets = [...untrack(() => this.#sets), set];
    return () => {
      this.#sets = this.#sets.filter((each) => each !== set);
    };
  }

  press(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target as HTMLElement | null;
    if (target?.closest("dialog") || (event.key === "Enter" && target?.closest("a, button"))) return;
    if (target?.closest("input:not([type=range]):not([type=checkbox]), textarea, select")) {
      if (event.key === "Escape") leave(target);
      return;
    }
    if (event.key.length === 1 && !this.characters) return;
    const found = this.all.findLast((each) => each.key === event.key);
    if (found) {
      event.preventDefault();
      found.run();
    }
  }
}

/** A browser may empty it too, but tells nobody once it is left. */
function leave(field: HTMLElement): void {
  if (field instanceof HTMLInputElement && field.type === "search" && field.value !== "") {
    field.value = "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  field.blur();
}

export const shortcuts = new Shortcuts();
