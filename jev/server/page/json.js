// JSON with the order of its keys and the digits of its numbers: objects become maps. The browser's own parser
// moves keys that look like numbers to the front, but options are asked in their order; and it rounds numbers.

/** A number as it was written. */
export class Numeral {
  constructor(source) {
    this.source = source;
  }
}

export class JsonError extends Error {}

const SPACE = /[ \t\r\n]*/y;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const STRING_END = /["\\\u0000-\u001f]/g;
const MAX_DEPTH = 200;
const MAX_LINE = 72; // characters of an array on one line

export function parse(text) {
  const reader = new Reader(text);
  const value = reader.value(0);
  reader.space();
  if (reader.at < text.length) reader.fail("expected the end");
  return value;
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  fail(message, at = this.at) {
    const before = this.text.slice(0, at).split("\n");
    throw new JsonError(
      `Not valid JSON: line ${before.length}, column ${before.at(-1).length + 1}: ${message}`,
    );
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found && found[0];
  }

  space() {
    this.match(SPACE);
  }

  take(character) {
    this.space();
    if (this.text[this.at] !== character) return false;
    this.at += 1;
    return true;
  }

  value(depth) {
    if (depth > MAX_DEPTH) this.fail("nested too deeply");
    this.space();
    for (const [word, value] of [
      ["true", true],
      ["false", false],
      ["null", null],
    ]) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return value;
      }
    }
    if (this.text[this.at] === '"') return this.string();
    if (this.take("{")) return this.object(depth);
    if (this.take("[")) return this.array(depth);
    const number = this.match(NUMBER);
    if (!number) this.fail("expected a value");
    return new Numeral(number);
  }

  string() {
    const start = this.at;
    STRING_END.lastIndex = start + 1;
    for (let found; (found = STRING_END.exec(this.text));) {
      if (found[0] === "\\") STRING_END.lastIndex += 1;
      else if (found[0] === '"') {
        this.at = STRING_END.lastIndex;
        try {
          return JSON.parse(this.text.slice(start, this.at));
        } catch {
          this.fail("a string with an unknown escape", start);
        }
      } else this.fail("a line break or control character in a string", found.index);
    }
    return this.fail("a string without an end", start);
  }

  object(depth) {
    const made = new Map();
    if (this.take("}")) return made;
    do {
      this.space();
      if (this.text[this.at] !== '"') this.fail("expected a name in double quotes");
      const start = this.at;
      const name = this.string();
      if (made.has(name)) this.fail(`the name ${JSON.stringify(name)} is there twice`, start);
      if (!this.take(":")) this.fail("expected :");
      made.set(name, this.value(depth + 1));
    } while (this.take(","));
    if (!this.take("}")) this.fail("expected , or }");
    return made;
  }

  array(depth) {
    const made = [];
    if (this.take("]")) return made;
    do made.push(this.value(depth + 1));
    while (this.take(","));
    if (!this.take("]")) this.fail("expected , or ]");
    return made;
  }
}

// Characters that do not show, or turn the direction of what follows, are written as escapes.
const HIDDEN = /[\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** A string in double quotes: one of JSON, of JavaScript and of Python. */
export function quote(text) {
  return JSON.stringify(text).replace(
    HIDDEN,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

const JSON_WORDS = { null: "null", true: "true", false: "false" };

/**
 * Write maps, arrays, strings, numbers and words.
 *
 * @param indent the spaces before the line, or null for one line without spaces.
 * @param words what null, true and false are called.
 * @param step how much deeper lines inside are.
 */
export function write(value, indent = null, words = JSON_WORDS, step = "  ") {
  if (typeof value === "string") return quote(value);
  if (value instanceof Numeral) return value.source;
  if (typeof value === "number") return String(value);
  if (value === null || typeof value === "boolean") return words[value];
  const isMap = value instanceof Map;
  const [open, close] = isMap ? "{}" : "[]";
  const deeper = indent === null ? null : indent + step;
  const colon = indent === null ? ":" : ": ";
  const parts = isMap
    ? [...value].map(([name, one]) => `${quote(name)}${colon}${write(one, deeper, words, step)}`)
    : value.map((one) => write(one, deeper, words, step));
  if (!parts.length) return open + close;
  if (indent === null) return open + parts.join(",") + close;
  const line = parts.join(", ");
  const isFlat = !isMap && !value.some((one) => one instanceof Map || Array.isArray(one));
  if (isFlat && line.length < MAX_LINE) return open + line + close;
  return `${open}\n${deeper}${parts.join(`,\n${deeper}`)}\n${indent}${close}`;
}
