// Attachments: chosen, dropped or pasted files, sent inside the request or, if they are large, uploaded before it.

import { call } from "./api.js";
import { bytes, element } from "./dom.js";

export const MAX_FILES = 8;
const MAX_INLINE = 8 * 2 ** 20; // all of them together; more is uploaded
const MAX_KEPT = 2 ** 20; // of base64, which a reload does not lose

export class Files {
  /**
   * @param holder the list that they are shown in.
   * @param changed called after every change.
   */
  constructor(holder, changed) {
    this.holder = holder;
    this.changed = changed;
    this.items = [];
  }

  /** Take files; returns a sentence about those that were too many, or null. */
  add(given) {
    const room = MAX_FILES - this.items.length;
    const taken = [...given].slice(0, room);
    for (const blob of taken) this.items.push(itemOf(blob, blob.name));
    this.render();
    this.changed();
    return given.length > room
      ? `A request has at most ${MAX_FILES} files; ${given.length - room} not added.`
      : null;
  }

  get names() {
    return this.items.map((item) => item.name);
  }

  clear() {
    this.items.forEach(forget);
    this.items = [];
    this.render();
    this.changed();
  }

  /** The entries of `files` of a request; uploads what is too large to go inside it. */
  async toWire(signal) {
    const total = this.items.reduce((sum, item) => sum + item.blob.size, 0);
    const made = [];
    for (const [index, item] of this.items.entries()) {
      if (total > MAX_INLINE) {
        item.id ??= await upload(item, index, signal);
        made.push(
          new Map([
            ["name", item.name],
            ["file", item.id],
          ]),
        );
      } else
        made.push(
          new Map([
            ["name", item.name],
            ["data", await base64(item.blob)],
          ]),
        );
    }
    return made;
  }

  /** Upload again next time: the server may not have them any more. */
  forgetUploads() {
    for (const item of this.items) item.id = null;
  }

  /** What a reload can restore, or only the names of what is too large for that. */
  async toKeep() {
    const total = this.items.reduce((sum, item) => sum + item.blob.size, 0);
    if ((total * 4) / 3 > MAX_KEPT) return { files: [], lost: this.names };
    const files = await Promise.all(
      this.items.map(async (item) => ({
        name: item.name,
        type: item.blob.type,
        data: await base64(item.blob),
      })),
    );
    return { files, lost: [] };
  }

  restore(files) {
    this.items = files.map(({ name, type, data }) => {
      const content = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
      return itemOf(new Blob([content], { type }), name);
    });
    this.render();
  }

  field(index) {
    return this.holder.querySelectorAll(".file")[index] ?? null;
  }

  render() {
    this.holder.replaceChildren(...this.items.map((item, index) => this.row(item, index)));
  }

  row(item, index) {
    const remove = element("button", {
      type: "button",
      class: "quiet",
      text: "✕",
      title: "Remove",
      "aria-label": `Remove the file ${item.name}`,
      click: () => {
        forget(item);
        this.items.splice(index, 1);
        this.render();
        (
          this.holder.children[Math.min(index, this.items.length - 1)]?.querySelector("button") ??
          document.getElementById("pick")
        ).focus();
        this.changed();
      },
    });
    const picture = item.address && element("img", { src: item.address, alt: "" });
    return element(
      "li",
      { class: "row file" },
      picture,
      element("span", { class: "grow wrap", text: item.name }),
      element("span", { class: "dim", text: bytes(item.blob.size) }),
      remove,
    );
  }
}

function itemOf(blob, name) {
  const isPicture = /^image\/(png|jpeg|gif|webp|bmp)$/.test(blob.type);
  return { blob, name, id: null, address: isPicture ? URL.createObjectURL(blob) : null };
}

function forget(item) {
  if (item.address) URL.revokeObjectURL(item.address);
}

async function base64(blob) {
  const address = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("A file cannot be read any more; choose it again."));
    reader.readAsDataURL(blob);
  });
  return address.slice(address.indexOf(",") + 1);
}

async function upload(item, index, signal) {
  const form = new FormData();
  form.append("file", item.blob, item.name);
  try {
    const response = await call("v1/files", { method: "POST", body: form, signal });
    return (await response.json()).files[0].id;
  } catch (error) {
    // Each is the first of its own upload; say which of all it is.
    for (const { loc } of error.issues ?? []) if (loc[1] === "files") loc[2] = index;
    throw error;
  }
}
