// Edits of a text as the smallest replaced range, in UTF-16 units.

const isHighSurrogate = (unit) => unit >= 0xd800 && unit <= 0xdbff;
const isLowSurrogate = (unit) => unit >= 0xdc00 && unit <= 0xdfff;

/** The range `start`..`end` of `before` and the `text` to put there to get `after`; never cuts a surrogate pair. */
export function minimalSplice(before, after) {
  const shortest = Math.min(before.length, after.length);
  let start = 0;
  while (start < shortest && before.charCodeAt(start) === after.charCodeAt(start)) start++;
  if (start > 0 && isHighSurrogate(before.charCodeAt(start - 1))) start--;

  let end = before.length;
  let endAfter = after.length;
  while (end > start && endAfter > start && before.charCodeAt(end - 1) === after.charCodeAt(endAfter - 1)) {
    end--;
    endAfter--;
  }
  if (end < before.length && isLowSurrogate(before.charCodeAt(end))) {
    end++;
    endAfter++;
  }
  return { start, end, text: after.slice(start, endAfter) };
}

/** How many leading units two texts share. */
export function commonPrefixLength(a, b) {
  const shortest = Math.min(a.length, b.length);
  let length = 0;
  while (length < shortest && a.charCodeAt(length) === b.charCodeAt(length)) length++;
  return length;
}

/** Half surrogate pairs cannot be sent as UTF-8; the replacement character has the same length. */
export function wellFormed(text) {
  return text.toWellFormed ? text.toWellFormed() : text;
}
