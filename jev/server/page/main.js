// The page: its tabs, the server's state, the models and the key.

import { call, sentence } from "./api.js";
import { byId, element, fit } from "./dom.js";
import { Decide } from "./decide.js";
import { apiKey, keep, kept, setApiKey } from "./store.js";
import { Write } from "./write.js";

const RETRY_MS = 2000;
const TABS = ["decide", "write"];

function showTab(name, focus = false) {
  for (const one of TABS) {
    const tab = byId(`tab-${one}`);
    const isShown = one === name;
    tab.setAttribute("aria-selected", String(isShown));
    tab.tabIndex = isShown ? 0 : -1;
    byId(`panel-${one}`).hidden = !isShown;
    if (isShown && focus) tab.focus();
  }
  history.replaceState(null, "", `#${name}`);
  for (const area of byId(`panel-${name}`).querySelectorAll("textarea")) fit(area);
}

function listenToTabs() {
  const shown = () => (TABS.includes(location.hash.slice(1)) ? location.hash.slice(1) : TABS[0]);
  for (const [index, name] of TABS.entries()) {
    byId(`tab-${name}`).addEventListener("click", () => showTab(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: TABS.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      showTab(TABS.at(to % TABS.length), true);
    });
  }
  addEventListener("hashchange", () => showTab(shown()));
  addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.defaultPrevented) return;
    event.preventDefault();
    byId(byId("panel-decide").hidden ? "chat" : "ask").requestSubmit();
  });
  showTab(shown());
}

function status(text) {
  byId("server").textContent = text;
}

const model = () => byId("model").value;

/** Wait until the server is ready, then list its models. */
async function connect() {
  try {
    const { model: name } = await (await call("ready")).json();
    status(name);
  } catch (error) {
    status(sentence(error));
    setTimeout(connect, RETRY_MS);
    return;
  }
  try {
    const { models } = await (await call("v1/models")).json();
    const wanted = kept("model") ?? model();
    byId("model").replaceChildren(
      ...models.map(({ name, description }) =>
        element("option", { value: name, text: name, title: description, selected: name === wanted }),
      ),
    );
    if (apiKey()) showKey(false, "");
  } catch (error) {
    if (error.wantsKey) showKey(true, apiKey() ? error.message : "This server wants an API key.");
    else status(sentence(error));
  }
}

/** Show the field of the key, or only the button that shows it. */
function showKey(open, text) {
  byId("key-form").hidden = !open;
  byId("key-button").hidden = false;
  byId("key-button").setAttribute("aria-expanded", String(open));
  byId("key-note").textContent = text;
}

function listenForKey(decide) {
  byId("key-button").addEventListener("click", () => {
    const open = byId("key-form").hidden;
    showKey(open, "");
    if (open) byId("key").focus();
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = byId("key").value.trim();
    if (!/^[!-~]*$/.test(key)) return showKey(true, "A key has printable ASCII characters without spaces.");
    setApiKey(key);
    byId("key").value = "";
    decide.showShare();
    if (!key) return showKey(true, "The key is forgotten.");
    return connect();
  });
  addEventListener("jev:key", (event) => {
    showKey(true, event.detail);
    byId("key").focus();
  });
}

const decide = new Decide(model);
new Write(model);
listenToTabs();
listenForKey(decide);
byId("model").addEventListener("change", () => {
  keep("model", model());
  decide.showShare();
});
connect();
