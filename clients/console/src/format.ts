/** Numbers, times and sizes as people read them: short, in a width that hardly changes, the exact thing in a title. */

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

export const ABSENT = "–";

/** 12,345; 12.3k beyond a hundred thousand. */
export function count(value: number | bigint | null | undefined): string {
  if (value === null || value === undefined) return ABSENT;
  const number = Number(value);
  if (Math.abs(number) < 100_000) return whole.format(Math.round(number));
  const [unit, by] = number >= 1e9 ? ["G", 1e9] : number >= 1e6 ? ["M", 1e6] : ["k", 1e3];
  return `${significant(number / (by as number))}${unit}`;
}

/** One number for many scales: 0.42, 4.2, 42, 420. */
export function significant(value: number): string {
  const magnitude = Math.abs(value);
  if (magnitude === 0) return "0";
  if (magnitude < 1) return value.toFixed(2);
  return magnitude < 10 ? value.toFixed(1) : whole.format(Math.round(value));
}

export function bytes(value: number | bigint | null | undefined): string {
  if (value === null || value === undefined) return ABSENT;
  let number = Number(value);
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (number < 1000 || unit === "TB") return `${unit === "B" ? number : significant(number)} ${unit}`;
    number /= 1024;
  }
  return ABSENT;
}

/** 340 ms, 2.1 s, 4 min, 3 h, 12 d. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return ABSENT;
  if (seconds < 0) return "0 s";
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${significant(seconds * 1000)} ms`;
  if (seconds < 120) return `${significant(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`;
}

export function milliseconds(value: number | null | undefined): string {
  return value === null || value === undefined ? ABSENT : duration(value / 1000);
}

/** 12:01:07.114, in the reader's own time zone. */
export function time(iso: string | null | undefined): string {
  const at = parsed(iso);
  if (at === null) return iso ?? ABSENT;
  return `${clock.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** 12:01:07 today, with its day otherwise. */
export function moment(iso: string | null | undefined, now = Date.now()): string {
  const at = parsed(iso);
  if (at === null) return iso ?? ABSENT;
  return day.format(at) === day.format(now) ? clock.format(at) : `${day.format(at)} ${clock.format(at)}`;
}

/** "now", "12 s ago". */
export function ago(iso: string | null | undefined, now: number): string {
  const at = parsed(iso);
  if (at === null) return ABSENT;
  const seconds = (now - at.getTime()) / 1000;
  if (seconds < 2) return "now";
  return seconds < 120 ? `${Math.floor(seconds)} s ago` : `${duration(seconds)} ago`;
}

function parsed(iso: string | null | undefined): Date | null {
  const at = iso ? new Date(iso) : null;
  return at === null || Number.isNaN(at.getTime()) ? null : at;
}
