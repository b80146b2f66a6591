/**
 * SHA-256 of texts, at once: the browser's own works only later, and not at all on pages without TLS.
 *
 * In comes a text, out come hexadecimal digits of the hash of its UTF-8. What a result begins with is mostly what it
 * began with before: a Digest goes on from there.
 */

const ROUNDS = 64;
const K = new Int32Array(ROUNDS);
const START = new Int32Array(8);

/** The first 32 bits of the fractional part. */
const fraction = (x: number): number => ((x - Math.floor(x)) * 0x100000000) | 0;

for (let found = 0, n = 2; found < ROUNDS; n++) {
  let divisor = 2;
  while (n % divisor !== 0) divisor++;
  if (divisor < n) continue;
  if (found < 8) START[found] = fraction(Math.sqrt(n));
  K[found++] = fraction(Math.cbrt(n));
}

const encoder = new TextEncoder();
const W = new Int32Array(ROUNDS);
let words = new Int32Array(1 << 14);
/** Bytes after which the state is kept, for the next text that begins alike. */
const STRIDE = 4096;

/** Hashes texts, one after another, each only from where it differs from the one before. */
export class Digest {
  #seen = new Int32Array(0);
  #length = 0;
  /** The state before each stride of what was seen. */
  readonly #marks = [START];

  /** As many hexadecimal digits of the hash of its UTF-8 as are asked for. */
  of(text: string, digits: number): string {
    const most = text.length * 3 + 72;
    if (words.length * 4 < most) words = new Int32Array(most >> 1);
    const bytes = new Uint8Array(words.buffer);
    const length = encoder.encodeInto(text, bytes).written;
    const end = (length + 72) & ~63;
    bytes.fill(0, length, end);
    bytes[length] = 0x80;
    const view = new DataView(words.buffer);
    view.setUint32(end - 8, length / 0x20000000);
    view.setUint32(end - 4, length << 3);

    const begin = this.#begin(length);
    const state = Int32Array.from(this.#marks[begin / STRIDE] as Int32Array);
    for (let at = begin; at < end; at += 64) {
      if (at % STRIDE === 0 && at <= length) this.#marks[at / STRIDE] = state.slice();
      block(state, view, at);
    }
    return hex(state, 8).slice(0, digits);
  }

  /** The first stride that is not as it was; and the text is the one that is compared with next time. */
  #begin(length: number): number {
    const most = Math.min(length, this.#length) >> 2;
    let same = 0;
    while (same < most && words[same] === this.#seen[same]) same++;
    const size = (length + 3) >> 2;
    if (this.#seen.length < size) this.#seen = words.slice(0, size * 1.5);
    else this.#seen.set(words.subarray(same, size), same);
    this.#length = length;
    return (same * 4) & -STRIDE;
  }
}

/** Numbers as hexadecimal digits, so many each. */
export function hex(numbers: Iterable<number>, digits: number): string {
  return Array.from(numbers, (number) => (number >>> 0).toString(16).padStart(digits, "0")).join("");
}

const turned = (x: number, by: number): number => (x >>> by) | (x << (32 - by));

function block(state: Int32Array, view: DataView, at: number): void {
  for (let i = 0; i < 16; i++) W[i] = view.getInt32(at + i * 4);
  for (let i = 16; i < ROUNDS; i++) {
    const x = W[i - 15] as number;
    const y = W[i - 2] as number;
    const s0 = turned(x, 7) ^ turned(x, 18) ^ (x >>> 3);
    const s1 = turned(y, 17) ^ turned(y, 19) ^ (y >>> 10);
    W[i] = (W[i - 16] as number) + s0 + (W[i - 7] as number) + s1;
  }
  let a = state[0] as number;
  let b = state[1] as number;
  let c = state[2] as number;
  let d = state[3] as number;
  let e = state[4] as number;
  let f = state[5] as number;
  let g = state[6] as number;
  let h = state[7] as number;
  for (let i = 0; i < ROUNDS; i++) {
    const s1 = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + (K[i] as number) + (W[i] as number)) | 0;
    const s0 = turned(a, 2) ^ turned(a, 13) ^ turned(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  state[0] = (state[0] as number) + a;
  state[1] = (state[1] as number) + b;
  state[2] = (state[2] as number) + c;
  state[3] = (state[3] as number) + d;
  state[4] = (state[4] as number) + e;
  state[5] = (state[5] as number) + f;
  state[6] = (state[6] as number) + g;
  state[7] = (state[7] as number) + h;
}
