// The tab "Write": a chat whose answers are shown while they are refined.

import { ApiError, call, events, sentence } from "./api.js";
import { byId, duration, element, fit } from "./dom.js";
import { numberOf } from "./share.js";
import { write } from "./json.js";
import { keep, kept } from "./store.js";

const NUMBERS = { max_tokens: "max-tokens", max_denoising_steps: "max-steps", seed: "chat-seed" };
const NEAR_END = 80; // pixels within which the page follows what is written

export class Write {
  /** @param model returns the chosen model. */
  constructor(model) {
    this.model = model;
    this.running = null;
    const held = kept("write") ?? {};
    this.messages = held.messages ?? [];
    byId("message").value = held.message ?? "";
    byId("max-tokens").value = held.maxTokens ?? "256";
    byId("max-steps").value = held.maxSteps ?? "";
    byId("chat-seed").value = held.seed ?? "";
    byId("refinement").checked = held.refinement ?? true;
    this.listen();
    this.render();
  }

  listen() {
    byId("chat").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("message").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.altKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId("panel-write").addEventListener("input", () => this.changed());
    byId("message").addEventListener("input", (event) => fit(event.target));
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("new-chat").addEventListener("click", () => this.restart());
  }

  changed() {
    keep("write", {
      messages: this.messages,
      message: byId("message").value,
      maxTokens: byId("max-tokens").value,
      maxSteps: byId("max-steps").value,
      seed: byId("chat-seed").value,
      refinement: byId("refinement").checked,
    });
  }

  render() {
    byId("messages").replaceChildren(...this.messages.map((one) => new Message(one).root));
    byId("chat-empty").hidden = this.messages.length > 0;
    byId("new-chat").hidden = this.messages.length === 0;
  }

  restart() {
    this.running?.abort();
    this.messages = [];
    this.say("");
    this.render();
    this.changed();
    byId("message").focus();
  }

  say(text, isError = false) {
    const status = byId("chat-status");
    status.textContent = text;
    status.classList.toggle("error", isError);
  }

  /** Mark the field that an error names, or none. */
  mark(name) {
    for (const [field, id] of Object.entries(NUMBERS)) {
      byId(id).toggleAttribute("aria-invalid", false);
      if (field !== name) continue;
      byId(id).setAttribute("aria-invalid", "true");
      byId(id).setAttribute("aria-describedby", "chat-status");
      byId("chat-settings").open = true;
    }
  }

  warn(text) {
    byId("chat-warning").textContent = text ?? "";
    byId("chat-warning").hidden = !text;
  }

  body() {
    const request = new Map([
      ["model", this.model()],
      [
        "messages",
        this.messages.map(
          ({ role, content }) =>
            new Map([
              ["role", role],
              ["content", content],
            ]),
        ),
      ],
    ]);
    for (const [name, id] of Object.entries(NUMBERS)) {
      if (byId(id).value.trim()) request.set(name, numberOf(byId(id).value));
    }
    const stream = new Map([["include_usage", true]]);
    if (byId("refinement").checked) stream.set("denoising", true);
    return write(request.set("stream", true).set("stream_options", stream));
  }

  async send() {
    const text = byId("message").value;
    if (this.running || !text.trim()) return;
    const controller = new AbortController();
    this.running = controller;
    this.messages.push({ role: "user", content: text });
    const messages = this.messages;
    byId("message").value = "";
    fit(byId("message"));
    this.render();
    const answer = new Message({ role: "assistant", content: "" });
    byId("messages").append(answer.root);
    this.busy(true);
    this.mark(null);
    this.say("Writing…");
    const told = new Progress();
    let problem = null;
    try {
      const response = await call("v1/chat/completions", {
        method: "POST",
        body: this.body(),
        signal: controller.signal,
      });
      this.warn(response.headers.get("x-jev-warning"));
      told.seed = response.headers.get("x-jev-seed");
      for await (const data of events(response)) {
        if (data === "[DONE]") break;
        this.take(JSON.parse(data), answer, told);
      }
      if (!told.finish) problem = new Error("The connection ended before the text did.");
    } catch (error) {
      problem = error;
    }
    this.running = null;
    this.busy(false);
    answer.settle();
    if (messages === this.messages) this.conclude(answer, told, text, problem);
  }

  take(chunk, answer, told) {
    if (chunk.error) throw new ApiError(0, chunk.error.message ?? String(chunk.error));
    if (chunk.x_warning) this.warn(chunk.x_warning);
    if (chunk.usage) told.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice?.delta?.content) answer.append(choice.delta.content);
    if (choice?.finish_reason) told.finish = choice.finish_reason;
    if (chunk.x_denoising) {
      told.step(chunk.x_denoising);
      answer.draft(chunk.x_denoising);
    }
  }

  /** Keep what was written, or give the message back if nothing was. */
  conclude(answer, told, text, problem) {
    const stopped = problem?.name === "AbortError";
    const why = stopped
      ? "Stopped."
      : problem &&
        (problem.status === 404 ? `${problem.message}: does this server write text?` : sentence(problem));
    if (answer.content || !problem) {
      const note = stopped ? "stopped" : problem ? "broken off" : told.sentence();
      this.messages.push({ role: "assistant", content: answer.content, note });
      this.say(why ?? "The answer is complete.", Boolean(problem) && !stopped);
    } else {
      this.messages.pop();
      if (!byId("message").value) byId("message").value = text;
      fit(byId("message"));
      this.say(why, !stopped);
    }
    this.mark(problem?.field);
    this.render();
    this.changed();
    byId(NUMBERS[problem?.field] ?? "message").focus({ preventScroll: true });
    if (problem?.wantsKey) dispatchEvent(new CustomEvent("jev:key", { detail: problem.message }));
  }

  busy(running) {
    byId("stop").hidden = !running;
    byId("send").hidden = running;
    byId("messages").setAttribute("aria-busy", String(running));
    if (running) byId("stop").focus({ preventScroll: true });
  }
}

/** Counts what a text took. */
class Progress {
  constructor() {
    this.began = performance.now();
    this.steps = new Map(); // of each canvas, as far as they were told
    this.usage = null;
    this.finish = null;
    this.seed = null;
  }

  step({ block, step }) {
    this.steps.set(block, step);
  }

  sentence() {
    const told = [];
    if (this.usage) told.push(`${this.usage.completion_tokens} tokens`);
    const canvases = this.steps.size;
    if (canvases) {
      const steps = [...this.steps.values()].reduce((sum, one) => sum + one);
      told.push(`${steps} steps on ${canvases} ${canvases === 1 ? "canvas" : "canvases"}`);
    }
    told.push(duration(performance.now() - this.began));
    if (this.seed) told.push(`seed ${this.seed}`);
    if (this.finish === "length") told.push("ended by its limit");
    return told.join(" · ");
  }
}

/** A message as it is shown: what is committed, and behind it the canvas that is being refined. */
class Message {
  constructor({ role, content, note }) {
    this.content = content;
    this.text = element("span", { class: "committed", text: content });
    this.canvas = element("span", { class: "draft", "aria-hidden": "true" });
    this.progress = element("progress", { max: 1, value: 0, "aria-label": "Steps of this canvas" });
    this.about = element("span", { text: note ?? "" });
    this.progress.hidden = true;
    this.waiting = null;
    this.root = element(
      "li",
      { class: `message ${role}` },
      element("span", { class: "hidden", text: role === "user" ? "You: " : "Answer: " }),
      element("div", { class: "text wrap" }, this.text, this.canvas),
      element("p", { class: "dim meter" }, this.progress, this.about),
    );
  }

  append(text) {
    this.content += text;
    this.later(() => {
      this.text.textContent = this.content;
      this.canvas.replaceChildren();
    });
  }

  /** Show a canvas as it is now, what may still change dimmed. Spans count characters, not UTF-16 units. */
  draft({ block, step, steps, text, kept: spans, entropy, final }) {
    const characters = [...text];
    this.later(() => {
      this.text.textContent = this.content;
      const parts = [];
      let at = 0;
      for (const [start, end] of final ? [[0, characters.length]] : spans) {
        if (start > at)
          parts.push(element("span", { class: "open", text: characters.slice(at, start).join("") }));
        if (end > start) parts.push(element("span", { text: characters.slice(start, end).join("") }));
        at = Math.max(at, end);
      }
      if (at < characters.length)
        parts.push(element("span", { class: "open", text: characters.slice(at).join("") }));
      this.canvas.replaceChildren(...parts);
      this.progress.hidden = false;
      this.progress.max = steps;
      this.progress.value = step;
      this.about.textContent = `canvas ${block + 1} · step ${step} of at most ${steps} · entropy ${entropy.toFixed(2)}`;
    });
  }

  /** Draw once a frame, however many events come; only the last drawing of them is seen. */
  later(draw) {
    const first = this.waiting === null;
    this.waiting = draw;
    if (first) requestAnimationFrame(() => this.now());
  }

  now() {
    const page = document.scrollingElement;
    const follows = page.scrollHeight - page.scrollTop - page.clientHeight < NEAR_END;
    this.waiting?.();
    this.waiting = null;
    if (follows) page.scrollTop = page.scrollHeight;
  }

  settle() {
    this.now();
  }
}
