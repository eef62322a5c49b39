// What came of a request: its answers, or what is wrong with it and where.

import { answerOf, evidenceOf, summaryOf, warningsOf } from "./answers.js";
import { byId, duration, element, newId } from "./dom.js";

const SPOKEN = 10; // answers that the status line names
const MIN_VIEW = 160; // pixels of the answers that have to be seen, or the page goes there

/** Show a response; questions stand in the order of the request. */
export function showAnswers(body, request, milliseconds) {
  const answers = body.get("answers");
  const names = [...request.get("questions").keys()].filter((name) => answers.has(name));
  const diagnostics = body.get("x_diagnostics") ?? null;
  const usage = body.get("usage");
  byId("answers").replaceChildren(
    ...names.map((name) =>
      answerOf(name, answers.get(name), diagnostics?.get("questions")?.get(name) ?? null),
    ),
  );
  byId("notes").replaceChildren(
    ...warningsOf(body.get("x_warnings")),
    ...evidenceOf(diagnostics?.get("evidence")),
  );
  const rest = names.length > SPOKEN ? ` and ${names.length - SPOKEN} more` : "";
  byId("status").textContent =
    `${names.length} ${names.length === 1 ? "answer" : "answers"} in ${duration(milliseconds)}`;
  byId("about").textContent =
    `· ${body.get("model")} · ${usage.get("input_tokens").source} + ${usage.get("output_tokens").source} tokens`;
  byId("spoken").textContent =
    names
      .slice(0, SPOKEN)
      .map((name) => summaryOf(name, answers.get(name)))
      .join("; ") + rest;
  if (byId("answers").getBoundingClientRect().top > innerHeight - MIN_VIEW) byId("results").scrollIntoView();
}

/** Say what is wrong at the fields that it is wrong in, and go to the first. */
export function refuse(problems) {
  const placed = problems.filter(({ field }) => field);
  for (const { field, message, loc } of placed)
    mark(field, field.id === "questions-json" && loc ? `${loc.slice(2).join(".")}: ${message}` : message);
  const others = problems
    .filter(({ field }) => !field)
    .map(({ loc, message }) => `${(loc ?? []).slice(1).join(".")}: ${message}`);
  const count = new Set(placed.map(({ field }) => field)).size + others.length;
  complain(others, `${count} ${count === 1 ? "thing is" : "things are"} to be corrected.`);
  const first = placed[0]?.field;
  (first?.matches("input, select, textarea, button")
    ? first
    : first?.querySelector("input, select, textarea, button")
  )?.focus();
}

/** Say what cannot be said at a field. */
export function complain(sentences, status) {
  byId("status").textContent = status;
  byId("notes").replaceChildren(...sentences.map((text) => element("p", { class: "error wrap", text })));
}

/** Say at a field what is wrong with it. */
export function mark(field, message) {
  field.closest("details")?.setAttribute("open", "");
  const place = field.closest(".row") ?? field;
  const note = element(place.tagName === "LI" ? "li" : "p", {
    class: "error wrap",
    id: newId(),
    text: message,
  });
  place.after(note);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute(
    "aria-describedby",
    [field.getAttribute("aria-describedby"), note.id].filter(Boolean).join(" "),
  );
}

/** Forget the last outcome. */
export function clear() {
  for (const note of byId("ask").querySelectorAll(".error")) note.remove();
  for (const field of byId("ask").querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
  for (const id of ["answers", "notes"]) byId(id).replaceChildren();
  for (const id of ["status", "about", "spoken"]) byId(id).textContent = "";
}
