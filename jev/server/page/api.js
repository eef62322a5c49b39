// Calls of the server that the page came from.

import { apiKey } from "./store.js";

/** The address that the API's paths follow, with a slash at its end. */
export const BASE = new URL(".", document.baseURI).href;

/** What the server refused: a status, a sentence, and for a bad request the places in it, or the field of a chat. */
export class ApiError extends Error {
  constructor(status, message, { issues = [], retryAfter = null, field = null } = {}) {
    super(message);
    this.status = status;
    this.issues = issues;
    this.retryAfter = retryAfter;
    this.field = field;
  }

  get wantsKey() {
    return this.status === 401 || this.status === 403;
  }
}

/** Send a request and return its response; an ApiError for one that is refused. */
export async function call(path, { method = "GET", body = null, signal = null } = {}) {
  const headers = {};
  if (typeof body === "string") headers["Content-Type"] = "application/json";
  const key = apiKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, BASE), { method, headers, body, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const retryAfter = response.headers.get("Retry-After");
  let body = null;
  try {
    body = await response.json();
  } catch {
    // A proxy's own page, say.
  }
  const detail = body?.detail ?? body?.error;
  if (Array.isArray(detail)) {
    const told = detail.map(({ loc, msg }) => `${loc.slice(1).join(".")}: ${msg}`).join("; ");
    return new ApiError(response.status, told, { issues: detail, retryAfter });
  }
  const said = detail?.message ?? (typeof detail === "string" ? detail : null);
  const message = said ?? `The server answered ${response.status} ${response.statusText}`.trim();
  return new ApiError(response.status, message, { retryAfter, field: detail?.param ?? null });
}

/** One sentence about an error. */
export function sentence(error) {
  const text = error.message || String(error);
  return error.retryAfter ? `${text} (try again in ${error.retryAfter} s)` : text;
}

/** The data of each server-sent event of a response, as it comes. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const lines = buffer.split(/\r\n|\n/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
