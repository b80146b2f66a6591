/**
 * Text as it may be shown: in comes whatever a column held, out come pieces in which nothing is invisible.
 *
 * Control characters, marks that turn the direction of writing and those without a width become their numbers; halves
 * of surrogate pairs become U+FFFD. Emoji keep their joiners.
 */

export interface Piece {
  text: string;
  /** Whether it stands for a character that would not be seen. */
  control: boolean;
}

const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** The pieces of a text; with `lines`, line feeds and tabs stay what they are. */
export function pieces(text: string, lines = false): Piece[] {
  const found: Piece[] = [];
  let end = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (lines && (match[0] === "\n" || match[0] === "\t")) continue;
    if (match.index > end) found.push({ text: wellFormed(text.slice(end, match.index)), control: false });
    found.push({ text: escaped(match[0]), control: true });
    end = match.index + 1;
  }
  if (end < text.length) found.push({ text: wellFormed(text.slice(end)), control: false });
  return found;
}

/** The same as one text, for titles and labels. */
export function visible(text: string): string {
  return pieces(text)
    .map((piece) => piece.text)
    .join("");
}

/** The first `most` code units, never half of a pair. */
export function cut(text: string, most: number): string {
  if (text.length <= most) return text;
  const last = text.charCodeAt(most - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? most - 1 : most);
}

/** A copy that keeps nothing else alive: a slice of a string holds the whole of it in memory. */
export function copied(text: string): string {
  return decoder.decode(encoder.encode(text));
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

function escaped(character: string): string {
  if (character === "\n") return "↵";
  if (character === "\t") return "→";
  // As languages write them: every font has these.
  const digits = character.charCodeAt(0).toString(16);
  return digits.length > 2 ? `\\u${digits.padStart(4, "0")}` : `\\x${digits.padStart(2, "0")}`;
}

function wellFormed(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}
