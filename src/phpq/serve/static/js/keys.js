/* Single keys for those who like them (they can be turned off), and a sheet that lists them. */

import { bytesText, el, tool, whole } from "./dom.js";
import { camera, pick } from "./intake.js";
import { ownsCodebooks } from "./kinds.js";
import { choice, facts } from "./store.js";

const KEYS = [
  ["o", "Choose a picture", () => pick()],
  ["c", "Take a photo", camera],
  ["/", "Filter by label", () => openFilter()],
  ["w", "Why the focused hit matched", () => whyFocused()],
  [
    "s",
    "Search",
    () => {
      location.hash = "#/";
    },
  ],
  [
    "m",
    "Map",
    () => {
      location.hash = "#/map";
    },
  ],
  [
    "b",
    "Codebooks",
    () => {
      location.hash = "#/codebooks";
    },
  ],
  [
    "a",
    "Audit",
    () => {
      location.hash = "#/audit";
    },
  ],
  ["?", "These keys", () => showKeys()],
];
const MORE = [
  ["← ↑ → ↓", "From hit to hit, from point to point"],
  ["Enter", "Search from it"],
  ["Ctrl V", "Search with a copied picture"],
  ["u", "In the audit: undo the last decision"],
  ["Esc", "Close"],
];

const off = () => choice.get("keys") === "off";

export function listenForKeys() {
  document.getElementById("help").addEventListener("click", showKeys);
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || off()) return;
    if (event.target.closest?.("input, select, textarea")) return;
    if (document.querySelector("dialog[open]")) return;
    const found = KEYS.find(([key]) => key === event.key);
    if (!found) return;
    event.preventDefault();
    found[2]();
  });
}

function openFilter() {
  const panel = document.querySelector(".filters");
  if (!panel) return;
  panel.open = true;
  document.getElementById("filter-label")?.focus();
}

function whyFocused() {
  const card = document.activeElement?.closest(".hit") ?? document.querySelector(".hit");
  card?.querySelector("button")?.click();
}

/** Open the sheet of keys and facts. */
function showKeys() {
  const sheet = document.getElementById("keys");
  const box = el("input", { id: "keys-on", type: "checkbox" });
  box.checked = !off();
  box.addEventListener("change", () => choice.set("keys", box.checked ? "on" : "off"));
  const close = tool("Close", "close", () => sheet.close());
  sheet.replaceChildren(
    el(
      "header",
      { class: "sheet-head" },
      el("h2", { id: "keys-title", tabindex: "-1", autofocus: true }, "Keys and about"),
      close,
    ),
    el(
      "div",
      { class: "sheet-body" },
      el(
        "dl",
        { class: "key-list" },
        [...KEYS, ...MORE].map(([key, words]) =>
          el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)),
        ),
      ),
      el("p", {}, el("label", { class: "check", for: "keys-on" }, box, "Use single-key shortcuts")),
      facts.info && about(),
    ),
  );
  sheet.showModal();
  sheet.addEventListener("click", (event) => event.target === sheet && sheet.close(), {
    once: true,
  });
}

function about() {
  const { info } = facts;
  const { model = {}, limits = {} } = info;
  const rows = [
    ["gallery", info.name],
    ["images", whole(info.images)],
    ["bits per image", `${info.bits} (${info.num_codebooks} codebooks of ${info.codebook_size})`],
    ["codebooks are", ownsCodebooks() ? "its own, fitted to its images and labels" : "the model's"],
    ["method", model.method],
    ["backbone", model.backbone],
    ["classes learned", model.classes],
    ["epochs", model.epochs],
    ["fingerprint", model.fingerprint],
    ["largest upload", limits.max_upload_bytes && bytesText(limits.max_upload_bytes)],
    ["phpq", info.phpq_version],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el(
    "section",
    {},
    el("h3", {}, "About"),
    el(
      "dl",
      { class: "pairs" },
      rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  );
}
