// Files that are chosen, dropped or pasted.

import { byId } from "./dom.js";

/** Call `add` with the files of a panel: of its button, dropped on it, or pasted into it. */
export function listenForFiles(panel, add) {
  byId("pick").addEventListener("click", () => byId("picker").click());
  byId("picker").addEventListener("change", (event) => {
    add(event.target.files);
    event.target.value = "";
  });
  const dragged = (event) => event.dataTransfer.types.includes("Files");
  panel.addEventListener("dragover", (event) => {
    if (!dragged(event)) return;
    event.preventDefault();
    byId("drop").classList.add("over");
  });
  panel.addEventListener("dragleave", (event) => {
    if (!panel.contains(event.relatedTarget)) byId("drop").classList.remove("over");
  });
  panel.addEventListener("drop", (event) => {
    byId("drop").classList.remove("over");
    if (!dragged(event)) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  });
  panel.addEventListener("paste", (event) => {
    // Copied cells and words come as a picture too; they are text.
    if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    add(event.clipboardData.files);
  });
}
