/** Where one is: `#/row/public.orders/4711?at=…` is the page `row`, two places and a query. Nothing of it is sent. */

export interface Route {
  page: string;
  places: string[];
  query: URLSearchParams;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  const [page = "", ...places] = path.split("/").map(unescaped);
  return { page, places, query: new URLSearchParams(query) };
}

export function link(page: string, places: readonly string[] = [], query: Record<string, string> = {}): string {
  const asked = new URLSearchParams(query).toString();
  return `#/${[page, ...places].map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

class Router {
  current = $state.raw<Route>(parse(location.hash));

  constructor() {
    addEventListener("hashchange", () => (this.current = parse(location.hash)));
  }

  go(to: string): void {
    location.hash = to;
  }

  /** Another address for the same place: no entry in the history. */
  replace(to: string): void {
    history.replaceState(null, "", to);
    this.current = parse(to);
  }
}

export const router = new Router();

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    if (error instanceof URIError) return text;
    throw error;
  }
}
