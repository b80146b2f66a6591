/**
 * A word that a browser keeps for this page: until the tab ends (`sessionStorage`) or for the next time (`localStorage`).
 * Where it keeps nothing, because storage is blocked or full, the word lasts as long as the page.
 */

export interface Kept {
  get(): string | null;
  set(value: string): void;
  forget(): void;
}

export function kept(where: "localStorage" | "sessionStorage", key: string): Kept {
  let here: string | null = null;
  return {
    get: () => trying(() => globalThis[where].getItem(key)) ?? here,
    set(value) {
      here = value;
      trying(() => globalThis[where].setItem(key, value));
    },
    forget() {
      here = null;
      trying(() => globalThis[where].removeItem(key));
    },
  };
}

/** To name the storage is an error already where it is blocked. */
function trying<T>(use: () => T): T | null {
  try {
    return use();
  } catch (error) {
    if (error instanceof DOMException) return null;
    throw error;
  }
}
