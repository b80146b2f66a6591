/**
 * Mutations that wait to be sent, kept where they outlive the page: in IndexedDB, by group and in the order they were
 * made. Where there is no IndexedDB, or it fails, nothing is kept, and nothing else fails for it.
 */

/** A mutation to be sent. */
export interface Entry {
  readonly key: string;
  readonly name: string;
  readonly args: string;
  /** When it was made, in milliseconds; two of one tab differ. */
  readonly at: number;
}

export interface Store {
  add(group: string, entry: Entry): Promise<void>;
  remove(group: string, entry: Entry): Promise<void>;
  /** Forget what was made earlier, whosever it is: who left it may never come back to this browser. */
  expire(before: number): Promise<void>;
  /** Those of a group, the oldest first. */
  all(group: string): Promise<Entry[]>;
}

const DATABASE = "forge";
const MUTATIONS = "mutations";

export class Kept implements Store {
  #database: Promise<IDBDatabase> | undefined;

  async add(group: string, entry: Entry): Promise<void> {
    await this.#done((store) => store.put({ ...entry, group }));
  }

  async remove(group: string, { at, key }: Entry): Promise<void> {
    await this.#done((store) => store.delete([group, at, key]));
  }

  async expire(before: number): Promise<void> {
    for (const key of (await this.#done((store) => store.getAllKeys())) ?? []) {
      const [, at] = key as [string, number];
      if (at < before) await this.#done((store) => store.delete(key));
    }
  }

  async all(group: string): Promise<Entry[]> {
    return (await this.#done((store) => store.getAll(IDBKeyRange.bound([group], [group, []])))) ?? [];
  }

  async #done<T>(work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> {
    try {
      this.#database ??= open();
      const transaction = (await this.#database).transaction(MUTATIONS, "readwrite");
      return await settled(work(transaction.objectStore(MUTATIONS)));
    } catch (error) {
      if (this.#database) console.warn("forge: mutations cannot be kept:", error);
      return undefined;
    }
  }
}

function open(): Promise<IDBDatabase> {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(MUTATIONS, { keyPath: ["group", "at", "key"] });
  return settled(request);
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
