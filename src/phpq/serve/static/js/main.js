/* The page: reads the address, shows the view that it names, and keeps history, focus and the
   connection in order. */

import * as api from "./api.js";
import { auditView } from "./auditview.js";
import { button, el, icon, plural, whole } from "./dom.js";
import { codebooksView } from "./codebooksview.js";
import { homeView } from "./homeview.js";
import { listen } from "./intake.js";
import { listenForKeys } from "./keys.js";
import { mapView } from "./mapview.js";
import { problem, say, toast } from "./notify.js";
import { format, parse } from "./route.js";
import { searchView } from "./searchview.js";
import { choice, facts, forget, keepUpload } from "./store.js";

const VIEWS = {
  home: homeView,
  search: searchView,
  map: mapView,
  codebooks: codebooksView,
  audit: auditView,
};
const main = document.getElementById("main");

let view = null;
let viewName = "";
let rendered = ""; // address and memory on the page
let started = false;
let lastKey = 0;
const scrolls = new Map(); // entry of the history -> how far it was scrolled
let waiting = []; // what to do when the server is back
let early = null; // pictures that came before the gallery's facts

const app = {
  /** What belongs to this entry of the history beside its address. */
  memory() {
    const { upload, preview, name } = history.state ?? {};
    return { upload, preview, name };
  },
  /** Go to an address. */
  go(route, memory = {}, { replace = false } = {}) {
    const address = format(route);
    const { dialog, key } = history.state ?? {};
    if (replace) history.replaceState({ ...memory, dialog, key }, "", address);
    else history.pushState({ ...memory, key: newKey() }, "", address);
    render();
  },
  /** Change address and memory of what is shown already; returns how to add to the memory. */
  settle(route, memory) {
    const key = history.state?.key;
    history.replaceState({ ...memory, key }, "", format(route));
    rendered = keyOfPage();
    return (more) => {
      // Later, and only if the reader has not gone elsewhere.
      if (history.state?.key === key) history.replaceState({ ...history.state, ...more }, "");
    };
  },
  /** A dialog that was opened by a step forward is closed by a step back. */
  leaveDialog(route) {
    if (history.state?.dialog) history.back();
    else app.go(route, app.memory(), { replace: true });
  },
  whenBack(task) {
    waiting.push(task);
  },
};

const newKey = () => {
  lastKey += 1;
  return `${performance.timeOrigin}-${lastKey}`;
};

const keyOfPage = () => `${location.hash} ${history.state?.upload ?? ""}`;

/** Show what the address says. */
async function render() {
  if (!facts.info) return;
  if (location.hash && !location.hash.startsWith("#/")) return; // the skip link
  const page = keyOfPage();
  if (page === rendered) return;
  rendered = page;
  waiting = [];
  if (!history.state?.key) history.replaceState({ ...history.state, key: newKey() }, "");
  const { key } = history.state;
  const known = scrolls.has(key);
  const scrolled = scrolls.get(key) ?? 0; // read now: a shorter page changes it
  scrolls.set(key, scrolled);
  const route = parse(location.hash);
  const fresh = route.view !== viewName;
  if (fresh) {
    view?.leave();
    viewName = route.view;
    view = VIEWS[viewName](app);
    main.replaceChildren(view.root);
  }
  markNavigation(route.view);
  const before = document.activeElement;
  const update = view.update(route, history.state);
  if (!known && (fresh || !main.contains(before)) && !route.why) {
    scrollTo(0, 0);
    // Nobody's focus is moved on the first load; later the heading says where one is.
    if (started) view.title.focus({ preventScroll: true });
  }
  started = true;
  await update;
  if (known && history.state?.key === key && !route.why) scrollTo(0, scrolled);
  else if (!known && !fresh && !route.why && !document.activeElement?.closest(".side, .kinds")) {
    scrollTo(0, 0);
    if (document.activeElement === document.body) view.title.focus({ preventScroll: true });
  }
}

function markNavigation(name) {
  const current = name === "home" ? "search" : name;
  for (const link of document.querySelectorAll(".views a")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Pictures came in: they are the query of a new search. */
function receive(photos) {
  if (!facts.info) {
    early = photos;
    return;
  }
  for (const open of document.querySelectorAll("dialog[open]")) open.close();
  const most = facts.info.limits.max_photos ?? 1;
  if (photos.length > most) {
    toast(`${photos.length} pictures; a search takes ${most}. The first ${most} are used.`);
  }
  const upload = keepUpload(photos.slice(0, most));
  const { labels, fields, where } = parse(location.hash);
  const route = { view: "search", kind: "upload", labels, fields, where };
  app.go(route, { upload: upload.key, name: upload.name });
}

async function begin() {
  try {
    facts.info = { filters: [], limits: {}, model: {}, ...(await api.info()) };
  } catch (error) {
    main.replaceChildren(problem(error, begin));
    if (error instanceof api.OfflineError) app.whenBack(begin);
    return;
  }
  const { info } = facts;
  document.getElementById("gallery-name").textContent = info.name;
  document.title = info.name;
  document
    .getElementById("facts")
    .replaceChildren(
      el("span", {}, plural(info.images, "image")),
      el("span", {}, `${whole(info.bits)} bits`),
      el("span", {}, [info.model.method, info.model.backbone].filter(Boolean).join(" · ")),
    );
  document.getElementById("bottom").prepend(`phpq ${info.phpq_version ?? ""} · `);
  rendered = "";
  await render();
  if (early) receive(early);
  early = null;
}

/** Say that the server is gone, knock until it is back, then go on. */
function watchConnection() {
  const banner = document.getElementById("banner");
  let timer = 0;
  const lost = () => {
    banner.replaceChildren(
      icon("offline"),
      el("span", {}, "No connection to the server. Trying again…"),
      button("Try now", { class: "button small", on: { click: () => api.knock() } }),
    );
    banner.hidden = false;
    clearInterval(timer);
    timer = setInterval(api.knock, 2500);
  };
  const found = () => {
    clearInterval(timer);
    banner.hidden = true;
    banner.replaceChildren();
    forget();
    toast("Connected again.");
    const tasks = waiting;
    waiting = [];
    for (const task of tasks) task();
  };
  api.connection.addEventListener("lost", lost);
  api.connection.addEventListener("found", found);
  addEventListener("offline", api.knock);
  addEventListener("online", () => api.isLost() && api.knock());
}

function themeButton() {
  const names = { auto: "as the system", light: "light", dark: "dark" };
  const order = Object.keys(names);
  const node = document.getElementById("theme");
  let now = document.documentElement.dataset.theme ?? "auto";
  const show = () => {
    const words = `Colours: ${names[now]}`;
    node.title = words;
    document.getElementById("theme-name").textContent = words;
    if (now === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
  };
  node.addEventListener("click", () => {
    now = order[(order.indexOf(now) + 1) % order.length];
    choice.set("theme", now);
    show();
    say(`Colours: ${names[now]}`);
    dispatchEvent(new Event("themechange")); // a canvas does not hear of it by itself
  });
  show();
}

history.scrollRestoration = "manual";
const keepScroll = () => history.state?.key && scrolls.set(history.state.key, scrollY);
addEventListener("scroll", keepScroll, { passive: true });
addEventListener("popstate", render);
addEventListener("hashchange", render);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the state; it must not become "#main"
  main.focus();
});
themeButton();
watchConnection();
listenForKeys();
listen(receive);
begin();
