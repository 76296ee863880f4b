// Pictures of numbers: bytes as shades on a canvas, in the page's own colours.

import { fromBase64 } from "./pieces.js";

/** The page's colours as numbers, of paper and of ink; the same until the colours change. */
function shades() {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const styles = getComputedStyle(document.documentElement);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  return ["--sunken", "--accent"].map((name) => {
    const value = styles.getPropertyValue(name), both = value.match(/light-dark\((#\w+),\s*(#\w+)\)/);
    probe.fillStyle = both ? both[theme === "dark" ? 2 : 1] : value;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  });
}

/** Draw a picture of the server's, or one made here, into a canvas of its own size. */
export function paint(canvas, { rows, columns, data }) {
  const bytes = typeof data === "string" ? fromBase64(data) : data;
  const [from, to] = shades();
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const share = bytes[i] / 255;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = from[c] + (to[c] - from[c]) * share;
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return bytes;
}

/** A line of shares, one a token, as a picture. */
export const asPicture = (lines) => ({ rows: lines.length, columns: lines[0].length,
  data: Uint8Array.from(lines.flat(), (value) => Math.round(255 * Math.sqrt(Math.max(0, Math.min(1, value ?? 0))))) });
