// The form of the questions: a card for each.

import { element, fit } from "./dom.js";
import { MAX_LEVELS, MAX_OPTIONS, TYPES, draft, freeName } from "./questions.js";

export class Editor {
  /**
   * @param holder the element that the cards are put into.
   * @param changed called after every change.
   */
  constructor(holder, changed) {
    this.holder = holder;
    this.changed = changed;
    this.drafts = [];
  }

  show(drafts) {
    this.drafts = drafts;
    this.render();
  }

  add(type) {
    this.drafts.push(draft(type, freeName(this.drafts)));
    this.render();
    const name = this.fieldOf(this.drafts.length - 1, ["name"]);
    name.focus();
    name.select();
    this.changed();
  }

  /** The field of a draft; `rest` is what of it: ["name"], ["option", 0], or a path below a question of a request. */
  fieldOf(index, rest) {
    const card = this.holder.children[index];
    const find = (name) =>
      [...card.querySelectorAll("[data-field]")].find((one) => one.dataset.field === name) ?? null;
    const [part, detail] = rest;
    if (part === "option") return find(`option ${detail}`);
    if (part !== "criteria") return find(part ?? "name") ?? find("name");
    return find(this.criterion(this.drafts[index], detail)) ?? card.querySelector(".criteria");
  }

  /** As `fieldOf`, for a question by its name; null if there is none. */
  find(name, rest) {
    const index = this.drafts.findIndex((one) => one.name === String(name));
    return index < 0 ? null : this.fieldOf(index, rest);
  }

  criterion(one, detail) {
    if (one.type === "noul") return { true: "yes", false: "no" }[detail];
    if (one.type === "choice")
      return `option ${one.options.findIndex((option) => option.name === String(detail))}`;
    const filled = one.levels.flatMap((level, index) => (level.trim() ? [index] : []));
    return `level ${filled[detail]}`;
  }

  render() {
    this.holder.replaceChildren(...this.drafts.map((one, index) => this.card(one, index)));
    this.holder.querySelectorAll("textarea").forEach(fit);
  }

  /** Change a list and go on typing at `focus`, the name of a field. */
  restructure(index, change, focus) {
    change();
    this.render();
    const card = this.holder.children[index];
    const field = [...(card?.querySelectorAll("[data-field]") ?? [])].find(
      (one) => one.dataset.field === focus,
    );
    (field ?? card?.querySelector("[data-field]"))?.focus();
    this.changed();
  }

  card(one, index) {
    const number = index + 1;
    const select = element(
      "select",
      {
        "aria-label": `Type of question ${number}`,
        "data-field": "type",
        change: (event) => this.restructure(index, () => (one.type = event.target.value), "type"),
      },
      ...TYPES.map(([type, text]) => element("option", { value: type, text, selected: one.type === type })),
    );
    const remove = element("button", {
      type: "button",
      class: "quiet",
      "aria-label": `Remove question ${number}`,
      title: "Remove",
      text: "✕",
      click: () => this.remove(index),
    });
    const head = element(
      "div",
      { class: "row" },
      this.input(one, "name", {
        label: `Name of question ${number}`,
        field: "name",
        hint: "name",
        class: "name",
      }),
      select,
      remove,
    );
    const body = { noul: this.sides, choice: this.options, score: this.levels }[one.type].call(
      this,
      one,
      index,
    );
    const instructions = this.input(one, "instructions", {
      label: `Instructions of question ${number}`,
      field: "instructions",
      hint: "What do you want to know?",
      area: true,
    });
    return element(
      "li",
      { class: "card question", role: "group", "aria-label": `Question ${number}` },
      head,
      instructions,
      body,
    );
  }

  remove(index) {
    this.drafts.splice(index, 1);
    this.render();
    const next = Math.min(index, this.drafts.length - 1);
    (next < 0 ? document.getElementById("add-noul") : this.fieldOf(next, ["name"])).focus();
    this.changed();
  }

  input(target, key, { label, field = null, hint = "", area = false, class: name = null }) {
    const made = element(area ? "textarea" : "input", {
      "aria-label": label,
      "data-field": field,
      placeholder: hint,
      class: name,
      rows: area ? 1 : null,
      autocomplete: "off",
      spellcheck: area ? null : "false",
      input: (event) => {
        target[key] = event.target.value;
        if (area) fit(event.target);
        this.changed();
      },
    });
    made.value = target[key];
    return made;
  }

  sides(one, index) {
    return element(
      "div",
      { class: "criteria" },
      this.labelled("yes", "counts as yes", one, "yes", `What counts as yes in question ${index + 1}`),
      this.labelled("no", "counts as no", one, "no", `What counts as no in question ${index + 1}`),
    );
  }

  labelled(word, hint, one, key, label) {
    return element(
      "div",
      { class: "row" },
      element("span", { class: "side", "aria-hidden": "true", text: word }),
      this.input(one, key, { label, field: key, hint: `${hint} (optional)` }),
    );
  }

  options(one, index) {
    const rows = one.options.map((option, at) =>
      element(
        "li",
        { class: "row" },
        this.input(option, "name", {
          label: `Name of option ${at + 1}`,
          field: `option ${at}`,
          hint: "option",
          class: "name",
        }),
        this.input(option, "text", {
          label: `Description of option ${at + 1}`,
          hint: "description (optional)",
        }),
        this.less(index, one.options, at, "option"),
      ),
    );
    return this.list(rows, index, one.options, "option", MAX_OPTIONS, () => ({ name: "", text: "" }));
  }

  levels(one, index) {
    const rows = one.levels.map((_, at) =>
      element(
        "li",
        { class: "row" },
        element("span", { class: "side", "aria-hidden": "true", text: String(at) }),
        this.input(one.levels, at, {
          label: `Level ${at}`,
          field: `level ${at}`,
          hint: at ? "higher" : "lowest",
        }),
        this.less(index, one.levels, at, "level"),
      ),
    );
    return this.list(rows, index, one.levels, "level", MAX_LEVELS, () => "");
  }

  list(rows, index, items, word, most, make) {
    const add = element("button", {
      type: "button",
      class: "quiet add",
      text: `+ ${word}`,
      disabled: items.length >= most,
      "aria-label": `Add ${word === "option" ? "an" : "a"} ${word} to question ${index + 1}`,
      click: () => this.restructure(index, () => items.push(make()), `${word} ${items.length}`),
    });
    return element("div", { class: "criteria" }, element("ul", { class: "plain" }, ...rows), add);
  }

  less(index, items, at, word) {
    return element("button", {
      type: "button",
      class: "quiet",
      text: "✕",
      title: "Remove",
      "aria-label": `Remove ${word} ${word === "level" ? at : at + 1}`,
      disabled: items.length < 2,
      click: () =>
        this.restructure(
          index,
          () => items.splice(at, 1),
          `${word} ${Math.max(0, Math.min(at, items.length - 2))}`,
        ),
    });
  }
}
