/* A map of the gallery: images that look alike lie close; a list says the same to those who do not
   use the picture. */

import * as api from "./api.js";
import { el, hueOfMany, labelText, picture, plural, thumbnail, tool, whole } from "./dom.js";
import { problem, say, state } from "./notify.js";
import { Plot } from "./plot.js";
import { imageLink, walkable } from "./results.js";
import { fromImage } from "./route.js";
import { facts } from "./store.js";

const POINTS = 4000;
const LISTED = 24;
const SPOKEN =
  "Map of the gallery. Arrow keys step from image to image, plus and minus zoom, Enter searches " +
  "from the image. The list after the map holds the same images.";
const HINT =
  "Images of one code share a place and are drawn around it. Scroll or pinch to zoom, drag to " +
  "move.";

export function mapView(app) {
  const title = el("h1", { tabindex: "-1" }, "Map of the gallery");
  const lead = el(
    "p",
    { class: "summary" },
    "Images that look alike to the model lie close to each other.",
  );
  const body = el("div", { class: "map-body" });
  const root = el("div", { class: "map" }, title, lead, body);
  let running = new AbortController();
  let plot = null;

  async function update(route) {
    document.title = `Map · ${facts.info.name}`;
    if (plot) return;
    running.abort();
    running = new AbortController();
    const { signal } = running;
    body.replaceChildren(el("div", { class: "bone map-bone", "aria-hidden": "true" }));
    try {
      const answer = await api.map(POINTS, signal);
      if (signal.aborted) return;
      if (answer.points.length) show(answer);
      else {
        const words = "There is nothing to draw yet.";
        body.replaceChildren(state({ drawing: "map", title: "This gallery is empty", words }));
      }
    } catch (error) {
      if (signal.aborted) return;
      const retry = () => update(route);
      body.replaceChildren(problem(error, retry));
      if (error instanceof api.OfflineError) app.whenBack(retry);
    }
  }

  function show(answer) {
    const names = groupNames(answer.points);
    const groups = new Map(names.map((name, group) => [name, group]));
    const points = answer.points.map((point) => ({ ...point, group: groups.get(point.label) }));
    const canvas = el("canvas", { class: "plot", tabindex: "0", role: "application" });
    canvas.setAttribute("aria-label", SPOKEN);
    const tip = el("div", { class: "tip", hidden: true });
    const frame = el("div", { class: "map-frame card" }, canvas, tip, controls());
    const legend = el("ul", { class: "legend" });
    const list = el("ul", { class: "starts small" });
    const listTitle = el("h2", {}, "In sight");
    walkable(list, "a");
    body.replaceChildren(
      frame,
      el("aside", { class: "card map-side" }, el("h2", {}, "Labels"), legend),
      el("section", { class: "map-list", "aria-label": "Images in sight" }, listTitle, list),
      el("p", { class: "hint map-note" }, `${howText(answer)} ${HINT}`),
    );
    const colours = names.map((name, place) => colourOf(place, name));
    plot = new Plot(canvas, points, {
      colour: (group) => colours[group](),
      ink: () => getComputedStyle(canvas).color,
      image: (point) => thumbnail(point, 192),
    });
    plot.addEventListener("choose", ({ detail }) => {
      location.hash = fromImage(detail.id);
    });
    plot.addEventListener("hover", ({ detail }) => showTip(tip, detail, canvas));
    const refresh = () => {
      const seen = plot.seen(LISTED);
      listTitle.textContent = seen.length ? "In sight" : "Nothing in sight";
      list.replaceChildren(...seen.map((point) => imageLink(point, 192)));
    };
    plot.addEventListener("view", refresh);
    showLegend(legend, names, points);
    requestAnimationFrame(refresh);
  }

  function controls() {
    return el(
      "div",
      { class: "map-tools" },
      tool("Closer", "plus", () => plot.zoom(1.6)),
      tool("Farther", "minus", () => plot.zoom(1 / 1.6)),
      tool("All of it", "fit", () => plot.fit()),
    );
  }

  function showLegend(legend, names, points) {
    const counts = names.map(() => 0);
    for (const { group } of points) counts[group] += 1;
    const buttons = names.map((name, group) => {
      const made = el(
        "button",
        {
          type: "button",
          "aria-pressed": "false",
          title: name ?? "",
          vars: { hue: hueOfMany(group), depth: group % 3 },
        },
        el("span", { class: name === null ? "swatch none" : "swatch" }),
        el("span", {}, labelText(name)),
        el("span", { class: "count" }, whole(counts[group])),
      );
      made.addEventListener("click", () => {
        const lit = plot.lit === group ? null : group;
        plot.light(lit);
        buttons.forEach((one, place) => one.setAttribute("aria-pressed", String(place === lit)));
        say(lit === null ? "All labels" : `Only ${labelText(name)}`);
      });
      return made;
    });
    legend.replaceChildren(...buttons.map((one) => el("li", {}, one)));
  }

  function showTip(tip, point, canvas) {
    if (!point) {
      tip.hidden = true;
      return;
    }
    tip.replaceChildren(
      picture(thumbnail(point, 192), { loading: "eager" }),
      el("span", {}, labelText(point.label)),
      el("span", { class: "hint" }, point.id),
    );
    tip.hidden = false;
    const { x, y } = plot.place(point);
    const side = x > canvas.clientWidth / 2 ? -tip.offsetWidth - 16 : 16;
    const top = Math.max(
      4,
      Math.min(canvas.clientHeight - tip.offsetHeight - 4, y - tip.offsetHeight / 2),
    );
    tip.style.setProperty("left", `${x + side}px`);
    tip.style.setProperty("top", `${top}px`);
    if (document.activeElement === canvas) say(labelText(point.label));
  }

  return {
    root,
    title,
    update,
    leave() {
      running.abort();
      plot?.stop();
    },
  };
}

/** Labels by name; images without one come last. */
function groupNames(points) {
  const names = [...new Set(points.map((point) => point.label))];
  return names.sort((a, b) => (a === null) - (b === null) || String(a).localeCompare(String(b)));
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Colours that stand out on light and on dark; three depths keep many labels apart. */
function colourOf(place, name) {
  if (name === null) return () => "gray";
  const hue = hueOfMany(place);
  return () => {
    const chosen = document.documentElement.dataset.theme;
    const isDark = chosen ? chosen === "dark" : dark.matches;
    return `oklch(${(isDark ? 0.76 : 0.56) + 0.07 * ((place % 3) - 1)} 0.15 ${hue})`;
  };
}

function howText({ points, sampled, method }) {
  const of = sampled ? ` of ${whole(facts.info.images)}, drawn at random` : "";
  return `${plural(points.length, "image")}${of}; ${methodText(method)}.`;
}

const methodText = (method) =>
  method?.toLowerCase() === "pca"
    ? "two main directions of their codes (PCA)"
    : `drawn by ${method}`;
