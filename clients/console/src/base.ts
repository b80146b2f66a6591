/** The address that Forge is served at: what stands before `/console`, which may be mounted anywhere. */
export function base({ origin, pathname }: { origin: string; pathname: string }): string {
  return origin + pathname.replace(/\/console(\/[^/]*)?$/, "").replace(/\/$/, "");
}
