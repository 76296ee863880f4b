// Numbers as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(Math.round(value)));

export const fixed = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

/** 1234567 → "1.23 M". */
export function short(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  const unit = [[1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([limit]) => size >= limit * 0.9995);
  const scaled = unit ? value / unit[0] : value;
  const text = Number.isInteger(scaled) && Math.abs(scaled) < 1000 ? String(scaled) : String(Number(scaled.toPrecision(digits)));
  return unit ? `${text} ${unit[1]}` : text;
}

/** Parameters and the like: 1.55 B, as the field says it. */
export const billions = (value) => short(value).replace(" G", " B");

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  for (const unit of ["bytes", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(value) < 1000) return unit === "bytes" ? `${Math.round(value)} bytes` : `${value.toFixed(value < 10 ? 2 : 1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} PB`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 100) return `${short(seconds, 2)} s`;
  if (seconds < 6000) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${short(seconds / 86400)} days`;
}

export function ago(seconds) {
  if (seconds < 5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
