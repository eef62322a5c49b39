// What a reload must not lose, kept by this tab of the browser alone.

const STATE = "jev.page";
const KEY = "jev.key";
const WAIT_MS = 200;

let saved = read();
let timer = null;

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(STATE)) ?? {};
  } catch {
    return {};
  }
}

/** What was kept under a name, or undefined. */
export const kept = (name) => saved[name];

/** Keep a value under a name. */
export function keep(name, value) {
  saved[name] = value;
  timer ??= setTimeout(flush, WAIT_MS);
}

function flush() {
  clearTimeout(timer);
  timer = null;
  try {
    sessionStorage.setItem(STATE, JSON.stringify(saved));
  } catch {
    // Full: better to lose the files than the words.
    const { files, ...rest } = saved;
    try {
      sessionStorage.setItem(
        STATE,
        JSON.stringify({ ...rest, lost: (files ?? []).map((file) => file.name) }),
      );
    } catch {
      // Then a reload starts anew.
    }
  }
}

addEventListener("pagehide", () => timer && flush());

export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function setApiKey(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // A browser without storage asks again after a reload.
  }
}
