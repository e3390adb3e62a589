/* The start: a place for a picture, images to start from, and what the gallery is. */

import * as api from "./api.js";
import { el, labelText, picture, thumbnail, whole } from "./dom.js";
import { dropPlace } from "./intake.js";
import { ownsCodebooks } from "./kinds.js";
import { problem, skeletons, state } from "./notify.js";
import { walkable } from "./results.js";
import { fromImage } from "./route.js";
import { facts } from "./store.js";

const ASKED = 240; // images among which a few of different labels are chosen
const SHOWN = 12;

export function homeView(app) {
  const title = el("h1", { tabindex: "-1" }, "Which one is it?");
  const list = el("ul", { class: "starts" });
  const start = el(
    "section",
    { class: "start-from", "aria-labelledby": "start-title" },
    el("h2", { id: "start-title" }, "Or start from an image of the gallery"),
    list,
  );
  const root = el(
    "div",
    { class: "home" },
    el("section", { class: "hero" }, title, el("p", { class: "summary" }, greeting()), dropPlace()),
    start,
    el("section", { "aria-label": "About this gallery" }, headlines()),
  );
  walkable(list, "a");
  let running = new AbortController();

  async function update(route) {
    document.title = facts.info.name;
    if (!facts.info.images) {
      start.replaceChildren(emptyGallery());
      return;
    }
    if (list.querySelector("a")) {
      for (const link of list.querySelectorAll("a")) link.href = fromImage(link.dataset.id, route);
      return;
    }
    running.abort();
    running = new AbortController();
    const { signal } = running;
    list.replaceChildren(...skeletons(SHOWN, "start"));
    try {
      const { points } = await api.map(ASKED, signal);
      list.replaceChildren(...varied(points).map((point) => startLink(point, route)));
    } catch (error) {
      if (signal.aborted) return;
      const retry = () => update(route);
      list.replaceChildren(el("li", { class: "row" }, problem(error, retry)));
      if (error instanceof api.OfflineError) app.whenBack(retry);
    }
  }

  return { root, title, update, leave: () => running.abort() };
}

function greeting() {
  const { images, labels } = facts.info;
  const kinds = labels ? ` of ${whole(labels)} kinds` : "";
  return `Give a picture and see the ones most like it among ${whole(images)} images${kinds}.`;
}

/** As many different labels as there is room for, evenly over the gallery. */
function varied(points) {
  const byLabel = new Map();
  for (const point of points) {
    const of = byLabel.get(point.label) ?? [];
    of.push(point);
    byLabel.set(point.label, of);
  }
  const groups = [...byLabel.entries()].sort(([a], [b]) => String(a).localeCompare(String(b)));
  const stride = Math.max(1, groups.length / SHOWN);
  const chosen = [];
  for (let place = 0; chosen.length < Math.min(SHOWN, groups.length); place += stride) {
    chosen.push(groups[Math.floor(place)][1][0]);
  }
  const rest = points.filter((point) => !chosen.includes(point));
  return [...chosen, ...rest].slice(0, SHOWN);
}

const startLink = (point, route) =>
  el(
    "li",
    { class: "start" },
    el(
      "a",
      { href: fromImage(point.id, route), title: point.id, data: { id: point.id } },
      picture(thumbnail(point, 384), { width: 384, height: 384 }),
      el("span", {}, labelText(point.label)),
    ),
  );

const emptyGallery = () =>
  state({
    drawing: "picture",
    title: "This gallery is empty",
    words: "Put images into it, then load this page again:",
    detail: `phpq index ${facts.info.name} FOLDER`,
  });

/** The same cards of figures that open a report. */
function headlines() {
  const { images, bits, num_codebooks: books, codebook_size: size, model = {} } = facts.info;
  const own = ownsCodebooks() ? ", its own" : "";
  const cards = [
    [
      "Images",
      whole(images),
      facts.info.labels ? `${whole(facts.info.labels)} labels` : "no labels",
    ],
    ["Bits per image", whole(bits), bits % 8 === 0 ? `${whole(bits / 8)} bytes` : ""],
    ["Codebooks", whole(books), `of ${whole(size)} codewords each${own}`],
    ["Model", (model.method ?? "phpq").toUpperCase(), model.backbone ?? ""],
  ];
  return el(
    "dl",
    { class: "headlines" },
    cards.map(([label, value, note]) =>
      el(
        "div",
        {},
        el("dt", {}, label),
        el("dd", { class: "value" }, value),
        note && el("dd", { class: "note" }, note),
      ),
    ),
  );
}
