// Elements, made without markup: what people and models write is put in as text and nothing else.

export const byId = (id) => document.getElementById(id);

/**
 * Make an element. Options are attributes, except `text` (its text) and functions (listeners by event name);
 * null and false leave an attribute out, true makes it an empty one.
 */
export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") made.textContent = value;
    else if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== false && value !== undefined)
      made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Copy text; where the browser does not let us, select it instead. Returns whether it was copied. */
export async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return false;
  }
}

/** What is chosen in a group of radio buttons. */
export const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

export function choose(name, value) {
  for (const input of document.querySelectorAll(`input[name="${name}"]`))
    input.checked = input.value === value;
}

export function onChoice(name, listener) {
  for (const input of document.querySelectorAll(`input[name="${name}"]`))
    input.addEventListener("change", listener);
}

/** Grow a text field with its text, up to what the style sheet allows; a hidden one has no height to measure. */
export function fit(area) {
  if (!area.offsetParent) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

const unique = { last: 0 };

/** An id that no other element has. */
export function newId() {
  unique.last += 1;
  return `made-${unique.last}`;
}

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  return count < 1024 * 1024 ? `${(count / 1024).toFixed(0)} KiB` : `${(count / 1024 / 1024).toFixed(1)} MiB`;
}

export function duration(milliseconds) {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}
