/**
 * SHA-256 of texts, at once: the browser's own works only later, and not at all on pages without TLS.
 *
 * In comes a text, out come hexadecimal digits of the hash of its UTF-8.
 */

const ROUNDS = 64;
const K = new Int32Array(ROUNDS);
const START = new Int32Array(8);

/** The first 32 bits of the fractional part. */
const fraction = (x: number): number => ((x - Math.floor(x)) * 0x100000000) | 0;

for (let found = 0, n = 2; found < ROUNDS; n++) {
  let prime = true;
  for (let d = 2; d * d <= n; d++) prime &&= n % d !== 0;
  if (!prime) continue;
  if (found < 8) START[found] = fraction(Math.sqrt(n));
  K[found++] = fraction(Math.cbrt(n));
}

const encoder = new TextEncoder();
const W = new Int32Array(ROUNDS);
let bytes = new Uint8Array(1 << 16);

/** The hash of a text's UTF-8: as many hexadecimal digits of it as are asked for. */
export function sha256(text: string, digits = 64): string {
  const most = text.length * 3 + 72;
  if (bytes.length < most) bytes = new Uint8Array(most * 2);
  const length = encoder.encodeInto(text, bytes).written;
  const end = (length + 72) & ~63;
  bytes.fill(0, length, end);
  bytes[length] = 0x80;
  const view = new DataView(bytes.buffer);
  view.setUint32(end - 8, Math.floor(length / 0x20000000));
  view.setUint32(end - 4, length << 3);
  const state = START.slice();
  for (let at = 0; at < end; at += 64) block(state, view, at);
  let hex = "";
  for (const word of state) hex += (word >>> 0).toString(16).padStart(8, "0");
  return hex.slice(0, digits);
}

function block(state: Int32Array, view: DataView, at: number): void {
  let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
  for (let i = 0; i < ROUNDS; i++) {
    let w: number;
    if (i < 16) {
      w = view.getInt32(at + i * 4);
    } else {
      const x = W[i - 15] as number;
      const y = W[i - 2] as number;
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w = ((W[i - 16] as number) + s0 + (W[i - 7] as number) + s1) | 0;
    }
    W[i] = w;
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + (K[i] as number) + w) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
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
  const next = [a, b, c, d, e, f, g, h];
  for (let i = 0; i < 8; i++) state[i] = (state[i] as number) + (next[i] as number);
}
