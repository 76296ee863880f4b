// Tokens as a person can see them: bytes to text, with what is invisible or not a whole character made visible.

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const LONGEST = 4;  // bytes of a character, and so of tokens that share one
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e01ef}]/gu;

export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");

/** The text of bytes, with ‹E2 82› where they are a part of a character only; `raw` says that there is such a part.
 *  With `signs`, what the eye does not see gets a sign. */
export function readable(bytes, signs = false) {
  const dress = signs ? withSigns : (text) => text;
  try {
    return { text: dress(decoder.decode(bytes)), raw: false };
  } catch { /* a part of a character: find the whole ones around it */ }
  let text = "", broken = [];
  const flush = () => { if (broken.length) text += `‹${hex(broken)}›`; broken = []; };
  for (let i = 0; i < bytes.length;) {
    const byte = bytes[i];
    const length = byte < 0x80 ? 1 : byte >= 0xc2 && byte < 0xe0 ? 2 : byte >= 0xe0 && byte < 0xf0 ? 3 : byte >= 0xf0 && byte < 0xf5 ? 4 : 0;
    let character = null;
    if (length && i + length <= bytes.length) {
      try { character = decoder.decode(bytes.subarray(i, i + length)); } catch { /* not one either */ }
    }
    if (character === null) { broken.push(byte); i += 1; } else { flush(); text += dress(character); i += length; }
  }
  flush();
  return { text, raw: true };
}

/** How tokens look one after the other: a character that several of them share appears with the last. */
export function looks(pieces) {
  const found = pieces.map((bytes) => readable(bytes));
  for (let from = 0; from < found.length; from++) {
    for (let end = from + 2; found[from].raw && end <= Math.min(from + LONGEST, found.length); end++) {
      const { text, raw } = readable(new Uint8Array(pieces.slice(from, end).flatMap((bytes) => [...bytes])));
      if (raw) continue;
      for (let i = from; i < end; i++) found[i] = { text: i === end - 1 ? text : "\u200b", raw: false };
    }
  }
  return found;
}

/** The same text with signs for what the eye does not see; a line's end stays one, so that lines stay lines. */
export function withSigns(text) {
  return text
    .replace(/ /g, "·")
    .replace(HIDDEN, (c) => {
      if (c === "\t") return "⇥\t";
      if (c === "\r") return "␍";
      if (c === "\u00a0") return "⍽";
      const code = c.codePointAt(0);
      return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
    })
    .replace(/\n/g, "↵\n");
}

/** What a token looks like in one line: for labels, tips and lists. */
export const inline = (bytes) => readable(bytes, true).text.replace(/\n/g, "").replace(/\t/g, "");

/** A text cut into tokens, as the server told it: ids, where each begins among the bytes, and how each looks. */
export class Tokenized {
  constructor(answer) {
    this.ids = answer.ids;
    this.pieces = new Map(Object.entries(answer.pieces).map(([id, text]) => [Number(id), fromBase64(text)]));
    this.looks = [new Map(), new Map()];
    this.starts = new Uint32Array(this.ids.length + 1);
    for (let i = 0; i < this.ids.length; i++) this.starts[i + 1] = this.starts[i] + this.pieces.get(this.ids[i]).length;
  }

  get length() { return this.ids.length; }

  bytes(place) { return this.pieces.get(this.ids[place]); }

  look(place, signs) {
    const id = this.ids[place], looks = this.looks[signs ? 1 : 0];
    let look = looks.get(id);
    if (!look) {
      look = readable(this.pieces.get(id), signs);
      looks.set(id, look);
    }
    return look;
  }
}
