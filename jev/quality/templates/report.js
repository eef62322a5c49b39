"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const PAGE = 50;
  let shown = PAGE;

  // Text only ever goes in as text, so that nothing in a state can become part of the page.
  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const option = (select, value, text) => {
    const node = make("option", "", text);
    node.value = value;
    select.append(node);
  };

  data.lists.forEach((list, index) => option(by("list"), index, `${list.title} (${list.entries.length})`));
  const first = data.lists.findIndex((list) => list.entries.length);
  by("list").value = Math.max(0, first);

  const current = () => data.lists[Number(by("list").value)];

  const questions = () => {
    const select = by("question");
    select.replaceChildren();
    option(select, "", "all questions");
    [...new Set(current().entries.map((entry) => entry.question))].sort().forEach((name) => option(select, name, name));
  };

  const right = (entry, index) => entry.answers[index].winner === entry.reviewed;

  const reviewed = (entry, wanted) => {
    if (!wanted) return true;
    if (entry.reviewed === null) return wanted === "unreviewed";
    const last = entry.answers.length - 1;
    if (wanted === "first") return right(entry, 0);
    if (wanted === "last") return right(entry, last);
    return wanted === "none" && !entry.answers.some((_, index) => right(entry, index));
  };

  const words = (entry) => {
    const row = data.rows[entry.row] || { state: "", attachments: [] };
    return [entry.row, entry.id, entry.question, entry.instructions, row.state, ...row.attachments, ...entry.alternatives]
      .join(" ").toLowerCase();
  };

  const matching = () => {
    const kind = by("kind").value, question = by("question").value, review = by("review").value;
    const search = by("search").value.toLowerCase();
    return current().entries.filter((entry) =>
      (!kind || entry.type === kind) && (!question || entry.question === question) &&
      reviewed(entry, review) && (!search || words(entry).includes(search)));
  };

  const table = (entry, names) => {
    const grid = make("table");
    const head = make("tr");
    head.append(make("th"), ...names.map((name) => make("th", "", name)));
    grid.append(head);
    entry.alternatives.forEach((label, index) => {
      const line = make("tr");
      const told = entry.levels ? `${label} ${entry.levels[index]}` : label;
      line.append(make("th", label === entry.reviewed ? "good" : "", label === entry.reviewed ? `${told} ✓` : told));
      entry.answers.forEach((answer) => {
        const p = answer.probabilities[index];
        const cell = make("td", answer.winner === label ? "won" : "");
        const track = make("span", "track");
        track.style.width = `${Math.round(p * 80)}px`;
        cell.append(track, document.createTextNode(p.toFixed(3)));
        line.append(cell);
      });
      grid.append(line);
    });
    return grid;
  };

  const card = (entry, names) => {
    const row = data.rows[entry.row];
    const node = make("div", "entry");
    const parts = [`row ${entry.row}`, entry.id, `${entry.question} (${entry.type})`];
    if (entry.dp !== undefined) parts.push(`|dp| ${entry.dp.toFixed(3)}`);
    node.append(make("div", "head", parts.filter(Boolean).join(" · ")));
    if (entry.instructions) node.append(make("div", "", entry.instructions));
    if (row && row.state) node.append(make("pre", "", row.state));
    if (row && row.attachments.length) node.append(make("div", "muted", row.attachments.join(", ")));
    node.append(table(entry, names));
    return node;
  };

  const show = () => {
    const found = matching();
    by("count").textContent = `${found.length} of ${current().entries.length}`;
    by("entries").replaceChildren(...found.slice(0, shown).map((entry) => card(entry, current().names)));
    by("more").hidden = found.length <= shown;
  };

  const restart = () => { shown = PAGE; show(); };
  by("list").addEventListener("change", () => { questions(); restart(); });
  ["kind", "question", "review"].forEach((id) => by(id).addEventListener("change", restart));
  by("search").addEventListener("input", restart);
  by("more").addEventListener("click", () => { shown += PAGE; show(); });
  questions();
  show();
})();
