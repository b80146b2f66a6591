/** How numbers by the second become lines: where one ends, how high it can get, and what its axis says. */

/** Seconds without a number that a line goes on across. */
const ACROSS = 3;

/** The numbers with their places, in runs; where more than a few in a row are missing a new one begins. */
export function runs(values: readonly (number | null)[], across = ACROSS): [number, number][][] {
  const found: [number, number][][] = [];
  values.forEach((value, index) => {
    if (value === null) return;
    const last = found.at(-1);
    const before = last?.at(-1)?.[0];
    if (last && before !== undefined && index - before <= across + 1) last.push([index, value]);
    else found.push([[index, value]]);
  });
  return found;
}

/** The next of 1, 2, 5, 10, … that is not below. */
export function nice(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= value) ?? 10);
}

/** Milliseconds on an axis that ends at `highest`: all in the unit of that. */
export function late(value: number, highest: number): string {
  const [by, unit] = highest < 1000 ? [1, "ms"] : [1000, "s"];
  return `${Number((value / by).toPrecision(3))} ${unit}`;
}
