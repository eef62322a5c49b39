"use strict";
// Rows are texts of strangers: everything is put in as textContent, never as markup.

const SHOWN = 60; // options that are buttons at once
const byId = (id) => document.getElementById(id);
let view = null;
let busy = false;
let over = false;

function element(tag, text, name) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function note(text) {
  byId("note").textContent = text;
}

async function ask(path, body) {
  if (busy || over) return;
  busy = true;
  try {
    const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    const response = await fetch(path, options);
    if (path === "quit") return finish("The review has ended; this page can be closed.");
    if (!response.ok && response.status !== 409) throw new Error((await response.json()).detail || response.statusText);
    view = await response.json();
    show();
    if (response.status === 409) note("Another page was faster; this is where the review stands.");
  } catch (error) {
    if (error instanceof TypeError) finish("jev review is not running any more.");
    else note(String(error.message));
  } finally {
    busy = false;
  }
}

function finish(text) {
  over = true;
  byId("item").hidden = byId("end").hidden = true;
  note(text);
}

const decide = (what, option) => ask("decide", { at: view.at, do: what, option });

function show() {
  const { item, summary } = view;
  note("");
  byId("bar").max = Math.max(1, view.total);
  byId("bar").value = view.at;
  byId("progress").textContent = `${Math.min(view.at + 1, view.total)} of ${view.total} · ${summary.reviewed} reviewed · ` +
    `${summary.corrected} corrected · ${summary.skipped} skipped`;
  byId("item").hidden = !item;
  byId("end").hidden = Boolean(item);
  byId("later").disabled = byId("unsure").disabled = !item;
  byId("undo").disabled = view.at === 0;
  if (!item) return;
  const about = [`row ${item.row}`];
  if (item.id !== null) about.push(`id ${item.id}`);
  if (item.certainty !== null) about.push(`certainty ${item.certainty.toFixed(2)}`);
  byId("about").textContent = about.join(" · ");
  const state = byId("state");
  state.textContent = item.state;
  state.hidden = !item.state;
  state.classList.remove("all");
  state.scrollTop = 0;
  byId("files").replaceChildren(...item.files.map(figure));
  byId("name").textContent = item.instructions ? `${item.name}:` : item.name;
  byId("instructions").textContent = item.instructions;
  const proposed = item.options.find((option) => option.proposed);
  byId("accept").hidden = !proposed;
  if (proposed) byId("accept").lastElementChild.textContent = `${item.whose}: ${proposed.name}${share(proposed)}`;
  byId("find").value = "";
  byId("find").hidden = item.options.length < 10;
  list();
  byId("more").hidden = state.scrollHeight <= state.clientHeight;
  if (document.activeElement) document.activeElement.blur();
  window.scrollTo(0, 0);
}

function share(option) {
  return option.probability === null ? "" : ` ${option.probability.toFixed(2)}`;
}

function figure(file, index) {
  const made = document.createElement("figure");
  made.append(element("figcaption", file.note ? `${file.name} (${file.note})` : file.name));
  if (file.kind === "text") made.append(element("pre", file.text));
  if (file.kind === "image") {
    const image = document.createElement("img");
    image.src = `files/${view.at}/${index}`;
    image.alt = file.name;
    made.append(image);
  }
  return made;
}

function found() {
  const typed = byId("find").value.toLowerCase();
  const options = view.item.options;
  if (!typed) return options.length > SHOWN ? options.filter((option) => option.key) : options;
  return options
    .filter((option) => `${option.name}\n${option.about}`.toLowerCase().includes(typed))
    .sort((a, b) => b.name.toLowerCase().startsWith(typed) - a.name.toLowerCase().startsWith(typed));
}

function list() {
  byId("options").replaceChildren(...found().slice(0, SHOWN).map((option) => {
    const made = element("button", "", option.proposed ? "proposed" : "");
    made.type = "button";
    if (option.key) made.append(element("kbd", option.key));
    made.append(element("span", option.name, "name"), element("span", option.about, "about"));
    made.append(element("span", share(option), "share"));
    made.addEventListener("click", () => decide("answer", option.index));
    return made;
  }));
}

function more() {
  byId("state").classList.toggle("all");
}

const actions = {
  s: () => view.item && decide("later"),
  x: () => view.item && decide("unsure"),
  u: () => (view.at ? decide("undo") : note("there is nothing to undo")),
  q: () => ask("quit", {}),
  m: more,
};

function press(event) {
  if (!view || over || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const finding = document.activeElement === byId("find");
  if (finding) {
    if (event.key === "Escape") {
      byId("find").value = "";
      byId("find").blur();
      list();
    } else if (event.key === "Enter" && byId("find").value && found().length) {
      event.preventDefault();
      decide("answer", found()[0].index);
    }
    return;
  }
  const item = view.item;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const option = item && item.options.find((one) => one.key === key);
  if (key === "/" && item && !byId("find").hidden) byId("find").focus();
  else if (option) decide("answer", option.index);
  else if (actions[key]) actions[key]();
  else if (key === "Enter" && document.activeElement.tagName !== "BUTTON") {
    const proposed = item && item.options.find((one) => one.proposed);
    if (proposed) decide("answer", proposed.index);
    else note(item ? "there is no answer to accept" : "");
  } else return;
  event.preventDefault();
}

document.addEventListener("keydown", press);
byId("find").addEventListener("input", list);
byId("more").addEventListener("click", more);
byId("accept").addEventListener("click", () => decide("answer", view.item.options.find((one) => one.proposed).index));
byId("later").addEventListener("click", actions.s);
byId("unsure").addEventListener("click", actions.x);
byId("undo").addEventListener("click", actions.u);
byId("quit").addEventListener("click", actions.q);
ask("state");
