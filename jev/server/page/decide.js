// The tab "Decide": a state, files and questions in; answers out.

import { BASE, call, sentence } from "./api.js";
import { byId, choose, chosen, copy, element, fit, onChoice } from "./dom.js";
import { listenForFiles } from "./drop.js";
import { Editor } from "./editor.js";
import { EXAMPLES } from "./examples.js";
import { Files } from "./files.js";
import { parse, write } from "./json.js";
import { clear, complain, mark, refuse, showAnswers } from "./outcome.js";
import { fromWire, toWire } from "./questions.js";
import { curlOf, numberOf, pythonOf } from "./share.js";
import { apiKey, keep, kept } from "./store.js";

const OPTIONS = ["instructions", "samples", "permutations", "layout", "seed", "calibration"];

export class Decide {
  /** @param model returns the chosen model. */
  constructor(model) {
    this.model = model;
    this.running = null;
    this.editor = new Editor(byId("questions"), () => this.changed());
    this.files = new Files(byId("files"), () => this.filesChanged());
    this.restore();
    this.listen();
    this.showShare();
  }

  restore() {
    const held = kept("decide");
    if (held) this.fill(held);
    else this.load(EXAMPLES[0]);
    this.files.restore(kept("files") ?? []);
    const lost = kept("lost") ?? [];
    if (lost.length) this.note(`Too large to keep over a reload, add them again: ${lost.join(", ")}`);
  }

  fill({ kind, state, form, json, drafts, options }) {
    choose("state-kind", kind);
    choose("question-kind", form);
    byId("state").value = state;
    byId("questions-json").value = json;
    for (const name of OPTIONS) byId(`option-${name}`).value = options[name] ?? "";
    byId("option-diagnostics").checked = options.diagnostics ?? true;
    this.editor.show(drafts);
    this.showForm();
    this.fitAll();
  }

  load(example) {
    this.fill({
      kind: example.kind,
      state: example.state,
      form: "form",
      json: "",
      drafts: structuredClone(example.questions),
      options: {},
    });
  }

  listen() {
    byId("examples").append(
      ...EXAMPLES.map((example) =>
        element("button", {
          type: "button",
          class: "chip",
          text: example.title,
          click: () => {
            this.files.clear();
            this.load(example);
            this.changed();
            clear();
          },
        }),
      ),
    );
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("ask").addEventListener("input", (event) => {
      if (event.target.tagName === "TEXTAREA") fit(event.target);
      this.changed();
    });
    onChoice("state-kind", () => this.changed());
    onChoice("question-kind", () => this.switchForm());
    onChoice("share-kind", () => this.showShare());
    for (const type of ["noul", "choice", "score"])
      byId(`add-${type}`).addEventListener("click", () => this.editor.add(type));
    listenForFiles(byId("panel-decide"), (files) => this.note(this.files.add([...files])));
    byId("copy").addEventListener("click", async () => {
      const done = await copy(byId("code").textContent, byId("code"));
      byId("copied").textContent = done ? "Copied." : "Selected: copy it with the keyboard.";
    });
  }

  note(text) {
    byId("files-note").textContent = text ?? "";
  }

  fitAll() {
    byId("ask").querySelectorAll("textarea").forEach(fit);
  }

  /** Between the cards and their JSON. */
  switchForm() {
    clear();
    const toJson = chosen("question-kind") === "json";
    try {
      if (toJson) byId("questions-json").value = write(toWire(this.editor.drafts, []), "");
      else this.editor.show(fromWire(parse(byId("questions-json").value)));
    } catch (error) {
      choose("question-kind", "json");
      mark(byId("questions-json"), error.message);
    }
    this.showForm();
    this.changed();
  }

  showForm() {
    const json = chosen("question-kind") === "json";
    byId("question-form").hidden = json;
    byId("questions-json").hidden = !json;
    this.fitAll();
  }

  changed() {
    keep("decide", {
      kind: chosen("state-kind"),
      state: byId("state").value,
      form: chosen("question-kind"),
      json: byId("questions-json").value,
      drafts: this.editor.drafts,
      options: {
        ...Object.fromEntries(OPTIONS.map((name) => [name, byId(`option-${name}`).value])),
        diagnostics: byId("option-diagnostics").checked,
      },
    });
    this.showShare();
  }

  async filesChanged() {
    this.showShare();
    const items = [...this.files.items];
    const { files, lost } = await this.files.toKeep();
    if (items.length !== this.files.items.length || items.some((one, at) => one !== this.files.items[at]))
      return; // changed again
    keep("files", files);
    keep("lost", lost);
  }

  /** The request without its files, and problems that only the browser can see. */
  build() {
    const problems = [];
    const request = new Map();
    if (this.model() !== "jev-latest") request.set("model", this.model());
    request.set("state", this.state(problems));
    request.set("questions", this.questions(problems));
    for (const name of OPTIONS) {
      const text = byId(`option-${name}`).value;
      if (!text.trim()) continue;
      request.set(name, ["samples", "permutations", "seed"].includes(name) ? numberOf(text) : text);
    }
    if (byId("option-diagnostics").checked) request.set("diagnostics", true);
    return { request, problems };
  }

  state(problems) {
    const text = byId("state").value;
    if (chosen("state-kind") === "text") return text;
    try {
      return parse(text);
    } catch (error) {
      problems.push({ field: byId("state"), message: error.message });
      return null;
    }
  }

  questions(problems) {
    if (chosen("question-kind") === "form") {
      const found = [];
      const questions = toWire(this.editor.drafts, found);
      problems.push(
        ...found.map(({ draft, rest, message }) => ({ field: this.editor.fieldOf(draft, rest), message })),
      );
      return questions;
    }
    try {
      const questions = parse(byId("questions-json").value);
      if (questions instanceof Map) return questions;
      throw new Error("Questions are an object: a name and a question each");
    } catch (error) {
      problems.push({ field: byId("questions-json"), message: error.message });
      return new Map();
    }
  }

  async run() {
    this.running?.abort();
    const controller = new AbortController();
    this.running = controller;
    clear();
    const { request, problems } = this.build();
    if (problems.length) return refuse(problems);
    byId("results").setAttribute("aria-busy", "true");
    byId("status").textContent = "Deciding…";
    const began = performance.now();
    try {
      const files = await this.files.toWire(controller.signal);
      if (files.length) request.set("files", files);
      const response = await call("v1/systemone", {
        method: "POST",
        body: write(request),
        signal: controller.signal,
      });
      showAnswers(parse(await response.text()), request, performance.now() - began);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    } finally {
      if (this.running === controller) {
        this.running = null;
        byId("results").removeAttribute("aria-busy");
      }
    }
    return undefined;
  }

  fail(error) {
    if (error.wantsKey) dispatchEvent(new CustomEvent("jev:key", { detail: error.message }));
    const problems = (error.issues ?? []).map((issue) => ({
      field: this.fieldOf(issue.loc),
      message: issue.msg,
      loc: issue.loc,
    }));
    if (problems.some(({ loc }) => loc[1] === "files" && loc.at(-1) === "file")) this.files.forgetUploads();
    if (problems.length) refuse(problems);
    else complain([sentence(error)], "It was not decided.");
  }

  /** The element that a place in the request stands in, or null. */
  fieldOf([, part, ...rest]) {
    if (part === "state") return byId("state");
    if (part === "files") return this.files.field(rest[0]) ?? byId("pick");
    if (part === "questions") {
      if (chosen("question-kind") === "json") return byId("questions-json");
      return (rest.length ? this.editor.find(rest[0], rest.slice(1)) : null) ?? byId("questions");
    }
    return byId(`option-${part}`);
  }

  showShare() {
    const { request, problems } = this.build();
    const code = chosen("share-kind") === "curl" ? curlOf : pythonOf;
    const told = problems.map(({ message }) => message).join("\n");
    byId("code").textContent = told || code(request, this.files.names, BASE, Boolean(apiKey()));
    byId("copy").disabled = told !== "";
    byId("copied").textContent = "";
  }
}
