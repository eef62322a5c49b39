// Questions as the editor holds them, and as the API takes them.
//
// A draft is {name, type, instructions, yes, no, options: [{name, text}], levels: [text]}. It keeps what other types
// would use, so that nothing typed is lost when the type changes.

export const TYPES = [
  ["noul", "yes or no"],
  ["choice", "one of several"],
  ["score", "a scale"],
];

export const MAX_OPTIONS = 255;
export const MAX_LEVELS = 10;

export function draft(type, name) {
  const empty = () => ({ name: "", text: "" });
  return { name, type, instructions: "", yes: "", no: "", options: [empty(), empty()], levels: ["", ""] };
}

/** The first name of the form q1, q2, ... that is free. */
export function freeName(drafts) {
  const names = new Set(drafts.map((one) => one.name));
  let number = drafts.length + 1;
  while (names.has(`q${number}`)) number += 1;
  return `q${number}`;
}

/** The `questions` of a request; problems that the server could not see are added to `problems`. */
export function toWire(drafts, problems) {
  const questions = new Map();
  drafts.forEach((one, index) => {
    const at = (...rest) => ({ draft: index, rest });
    if (!one.name) problems.push({ ...at("name"), message: "A question needs a name" });
    else if (questions.has(one.name))
      problems.push({ ...at("name"), message: "Another question has this name" });
    questions.set(one.name, questionOf(one, at, problems));
  });
  return questions;
}

function questionOf(one, at, problems) {
  const question = new Map([["type", one.type]]);
  if (one.instructions.trim()) question.set("instructions", one.instructions);
  const criteria = { noul: sidesOf, choice: optionsOf, score: levelsOf }[one.type](one, at, problems);
  if (criteria !== null) question.set("criteria", criteria);
  return question;
}

function sidesOf(one) {
  const sides = new Map();
  if (one.yes.trim()) sides.set("true", one.yes);
  if (one.no.trim()) sides.set("false", one.no);
  return sides.size ? sides : null;
}

function optionsOf(one, at, problems) {
  const options = new Map();
  one.options.forEach(({ name, text }, index) => {
    if (!name && !text.trim()) return;
    if (!name) problems.push({ ...at("option", index), message: "An option needs a name" });
    else if (options.has(name))
      problems.push({ ...at("option", index), message: "Another option has this name" });
    options.set(name, text.trim() ? text : null);
  });
  return options;
}

const levelsOf = (one) => one.levels.filter((level) => level.trim());

/** Drafts of `questions`; an Error with the reason for those that only JSON can say. */
export function fromWire(questions) {
  if (!(questions instanceof Map)) throw new Error("Questions are an object of names and questions");
  return [...questions].map(([name, question]) => {
    try {
      return draftOf(name, question);
    } catch (error) {
      throw new Error(`${name}: ${error.message}, which the form cannot show`);
    }
  });
}

function draftOf(name, question) {
  if (!(question instanceof Map)) throw new Error("it is not an object");
  const made = draft(question.get("type"), name);
  if (!TYPES.some(([type]) => type === made.type)) throw new Error("its type is not noul, choice or score");
  for (const key of question.keys()) {
    if (!["type", "instructions", "criteria"].includes(key)) throw new Error(`it has a field ${key}`);
  }
  made.instructions = textOf(question.get("instructions"));
  const criteria = question.get("criteria") ?? null;
  if (criteria === null) return made;
  if (made.type === "score") {
    if (!Array.isArray(criteria)) throw new Error("its levels are not a list");
    made.levels = criteria.map(textOf);
    return made;
  }
  if (!(criteria instanceof Map)) throw new Error("its criteria are not an object");
  if (made.type === "choice") {
    made.options = [...criteria].map(([option, text]) => ({ name: option, text: textOf(text) }));
    return made;
  }
  if ([...criteria.keys()].some((key) => key !== "true" && key !== "false"))
    throw new Error("it has other sides than true and false");
  made.yes = textOf(criteria.get("true"));
  made.no = textOf(criteria.get("false"));
  return made;
}

function textOf(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") throw new Error("it has text that is structured");
  if (!value.trim()) throw new Error("it has text that is blank");
  return value;
}
