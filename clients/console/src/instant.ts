/** Instants as texts with microseconds, which no Date can hold: `2026-11-15T23:32:23.293912Z`. */

/** A microsecond earlier. */
export function before(iso: string): string {
  return shifted(iso, -1n);
}

/** What a field for date and time has, in the reader's zone, as an instant; null for nothing. */
export function local(text: string): string | null {
  const at = new Date(text);
  return text === "" || Number.isNaN(at.getTime()) ? null : at.toISOString();
}

/** The other way round, to the second. */
export function forField(iso: string): string {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "";
  const two = (value: number) => String(value).padStart(2, "0");
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function shifted(iso: string, by: bigint): string {
  const match = /^(.*:\d\d)(?:\.(\d{1,6}))?(Z|\+00:00)$/.exec(iso);
  if (!match) return iso;
  const [, head = "", fraction = ""] = match;
  const all = BigInt(Date.parse(`${head}Z`)) * 1000n + BigInt(fraction.padEnd(6, "0")) + by;
  const whole = new Date(Number(all / 1_000_000n) * 1000).toISOString().slice(0, 19);
  return `${whole}.${String(all % 1_000_000n).padStart(6, "0")}Z`;
}
