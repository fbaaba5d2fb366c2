// Numbers for people.
// In: numbers. Out: words.

/** A whole number. */
export const whole = (n) => n.toLocaleString("en");

/** A number with its word. */
export const counted = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

/** A number of bytes. */
export function sizeText(n) {
  if (n < 1000) return `${n} B`;
  if (n < 999_500) return `${Math.round(n / 1000)} kB`;
  if (n < 99_950_000) return `${(n / 1e6).toFixed(1)} MB`;
  return n < 999_500_000 ? `${Math.round(n / 1e6)} MB` : `${(n / 1e9).toFixed(2)} GB`;
}

/** Something a second. */
export const rate = (value) => (value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : whole(Math.round(value)));

/** A time. */
export const secondsText = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`);
