// A request as code that can be run as it stands. The key is never in it: it is read from JEV_API_KEY.

import { Numeral, quote, write } from "./json.js";

/** A word of a shell. */
const shellQuote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/**
 * A curl command.
 *
 * @param request a map, without its files.
 * @param names the files that it has, which the command reads from the current folder.
 */
export function curlOf(request, names, base, withKey) {
  const lines = [`curl -sS ${shellQuote(`${base}v1/systemone`)}`, `-H 'Content-Type: application/json'`];
  if (withKey) lines.push(`-H "Authorization: Bearer $JEV_API_KEY"`);
  // A line of JSON is never this word alone, so nothing in the request can end it.
  if (!names.length)
    return `${[...lines, "--data-binary @- <<'JSON'"].join(" \\\n  ")}\n${write(request, "")}\nJSON\n`;
  // The shell puts the files in, so everything else that it would act on is quoted.
  const marks = names.map((name, index) => `@file-${index}@`);
  const files = names.map(
    (name, index) =>
      new Map([
        ["name", name],
        ["data", marks[index]],
      ]),
  );
  const body = write(new Map([...request, ["files", files]]), "").replace(/[\\$`]/g, "\\$&");
  const filled = names.reduce((text, name, index) => {
    const place = text.lastIndexOf(`"data": "${marks[index]}"`);
    const read = `"data": "$(base64 < ${shellQuote(name)} | tr -d '\\n')"`;
    return text.slice(0, place) + read + text.slice(place + `"data": "${marks[index]}"`.length);
  }, body);
  return `${[...lines, "--data-binary @- <<JSON"].join(" \\\n  ")}\n${filled}\nJSON\n`;
}

const PYTHON_WORDS = { null: "None", true: "True", false: "False" };
const OPTIONS = ["instructions", "layout", "samples", "seed", "permutations", "calibration", "diagnostics"];

const python = (value, indent) => write(value, indent, PYTHON_WORDS, "    ");

/** A program for the Python SDK; arguments as for `curlOf`. */
export function pythonOf(request, names, base, withKey) {
  const used = new Set(["Jev"]);
  const deep = "        ";
  const questions = [...request.get("questions")].map(
    ([name, question]) => `${deep}    ${quote(name)}: ${questionOf(question, `${deep}    `, used)},\n`,
  );
  const lines = [
    `${deep}${python(request.get("state"), deep)},\n`,
    `${deep}{\n${questions.join("")}${deep}},\n`,
  ];
  if (names.length)
    lines.push(`${deep}attachments=[${names.map((name) => `Path(${quote(name)})`).join(", ")}],\n`);
  const options = [...request].filter(([name]) => name !== "state" && name !== "questions");
  for (const [name, value] of options.filter(([name]) => name === "model" || OPTIONS.includes(name)))
    lines.push(`${deep}${name}=${python(value, deep)},\n`);
  const imports = names.length ? "from pathlib import Path\n\n" : "";
  const key = withKey ? "# The key comes from the variable JEV_API_KEY.\n" : "";
  return (
    `${imports}from jev import ${[...used].sort().join(", ")}\n\n${key}with Jev(${quote(base.replace(/\/$/, ""))}) as client:\n` +
    `    decision = client.decide(\n${lines.join("")}    )\n\nfor name, answer in decision.answers.items():\n    print(name, answer)\n`
  );
}

function questionOf(question, indent, used) {
  const call = question instanceof Map ? callOf(question, indent) : null;
  if (call === null) return python(question, indent);
  used.add(call.name);
  return `${call.name}(${call.values.join(", ")})`;
}

/** The constructor of a question and its arguments, or null for one that only a dictionary can say. */
function callOf(question, indent) {
  if ([...question.keys()].some((key) => !["type", "instructions", "criteria"].includes(key))) return null;
  const name = { noul: "Noul", choice: "Choice", score: "Score" }[question.get("type")];
  const instructions = question.get("instructions") ?? null;
  const criteria = question.get("criteria") ?? null;
  if (!name || (instructions !== null && typeof instructions !== "string")) return null;
  const values = instructions === null ? [] : [quote(instructions)];
  if (name === "Score")
    return Array.isArray(criteria) ? { name, values: [...values, python(criteria, indent)] } : null;
  if (name === "Noul" && criteria === null) return { name, values };
  if (!(criteria instanceof Map)) return null;
  if (name === "Choice") {
    const plain = criteria.size > 0 && [...criteria.values()].every((text) => text === null);
    return { name, values: [...values, python(plain ? [...criteria.keys()] : criteria, indent)] };
  }
  if ([...criteria.keys()].some((key) => key !== "true" && key !== "false")) return null;
  for (const side of ["true", "false"]) {
    if (criteria.get(side) ?? null) values.push(`${side}=${python(criteria.get(side), indent)}`);
  }
  return { name, values };
}

/** A number that was typed, as it was typed; other text stays text, and the server says what is wrong with it. */
export const numberOf = (text) =>
  /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text.trim()) ? new Numeral(text.trim()) : text;
