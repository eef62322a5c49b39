// Answers as bars of probability.

import { element } from "./dom.js";
import { write } from "./json.js";

const SHOWN = 12; // options of a choice that are shown at once

const percent = (p) => `${(100 * p).toFixed(1)} %`;
const number = (value) => (value === null || value === undefined ? null : Number(value.source ?? value));

/** The element of one answer; `facts` is what the diagnostics say of its question, or null. */
export function answerOf(name, answer, facts) {
  const { title, bars, confidence } = { noul: ofNoul, choice: ofChoice, score: ofScore }[answer.get("type")](
    answer,
  );
  const about = [];
  if (confidence !== null) about.push(`confidence ${confidence.toFixed(2)}`);
  about.push(...reads(facts));
  return element(
    "article",
    { class: "card answer" },
    element(
      "h3",
      {},
      element("span", { class: "wrap", text: name }),
      element("strong", { class: "wrap", text: title }),
    ),
    barsOf(bars),
    element("p", { class: "dim", text: about.join(" · ") }),
  );
}

/** An answer in a few words. */
export function summaryOf(name, answer) {
  const type = answer.get("type");
  if (type === "noul") return `${name}: yes ${percent(number(answer.get("noul")))}`;
  if (type === "choice")
    return `${name}: ${answer.get("choice")} ${percent(number(answer.get("probabilities").get(answer.get("choice"))))}`;
  return `${name}: ${number(answer.get("score")).toFixed(2)}`;
}

function ofNoul(answer) {
  const yes = number(answer.get("noul"));
  const bars = [
    { label: "yes", p: yes, best: yes >= 0.5 },
    { label: "no", p: 1 - yes, best: yes < 0.5 },
  ];
  return { title: yes >= 0.5 ? "yes" : "no", bars, confidence: null };
}

function ofChoice(answer) {
  const best = answer.get("choice");
  const bars = [...answer.get("probabilities")].map(([label, p]) => ({
    label,
    p: number(p),
    best: label === best,
  }));
  bars.sort((a, b) => b.best - a.best || b.p - a.p);
  return { title: best, bars, confidence: number(answer.get("confidence")) };
}

function ofScore(answer) {
  const probabilities = [...answer.get("probabilities")].map(([, p]) => number(p));
  const most = Math.max(...probabilities);
  const bars = [...answer.get("legend")].map(([level, text], index) => ({
    label: `${level}: ${typeof text === "string" ? text : write(text)}`,
    p: probabilities[index],
    best: probabilities[index] === most,
  }));
  const title = `${number(answer.get("score")).toFixed(2)} of ${bars.length - 1}`;
  return { title, bars, confidence: number(answer.get("confidence")) };
}

function barsOf(bars) {
  const list = element("ul", { class: "bars" }, ...bars.slice(0, SHOWN).map(bar));
  if (bars.length <= SHOWN) return list;
  const more = element("button", {
    type: "button",
    class: "quiet",
    text: `${bars.length - SHOWN} more`,
    click: () => {
      list.append(...bars.slice(SHOWN).map(bar));
      list.tabIndex = -1;
      list.focus();
      more.remove();
    },
  });
  return element("div", {}, list, more);
}

function bar({ label, p, best }) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${100 * p}%`;
  return element(
    "li",
    { class: best ? "best" : null },
    element("span", { class: "label wrap", text: label }),
    element("span", { class: "share", text: percent(p) }),
    element("span", { class: "bar", "aria-hidden": "true" }, fill),
  );
}

function reads(facts) {
  const count = number(facts?.get("reads"));
  if (!count) return [];
  const deviation = number(facts.get("stderr"));
  const told = [`${count} ${count === 1 ? "read" : "reads"}`];
  if (deviation !== null) told.push(`± ${(100 * deviation).toFixed(1)} points`);
  return told;
}

/** A list of what the server ignored, as elements. */
export function warningsOf(warnings) {
  return (warnings ?? []).map((one) =>
    element("p", {
      class: "warning wrap",
      text: `${one
        .get("loc")
        .map((part) => part.source ?? part)
        .join(".")}: ${one.get("msg")}`,
    }),
  );
}

/** What was read of each attachment, as elements. */
export function evidenceOf(evidence) {
  return (evidence ?? []).map((one) => {
    const told = [one.get("kind"), `${number(one.get("text_characters"))} characters`];
    const pictures = number(one.get("pictures"));
    if (pictures) told.push(`${pictures} ${pictures === 1 ? "picture" : "pictures"}`);
    return element(
      "p",
      { class: "note wrap" },
      element("strong", { text: one.get("name") }),
      ` ${[...told, ...one.get("notes")].join(" · ")}`,
    );
  });
}
