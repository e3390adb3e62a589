/* Hits as cards in a grid that arrow keys walk through. */

import { decimals, el, icon, labelText, likely, percent, picture, thumbnail } from "./dom.js";
import { marks } from "./pointing.js";
import { fromImage } from "./route.js";

/** An image to search from: its picture, `size` pixels wide, above its label. */
export const imageLink = (image, size) =>
  el(
    "li",
    { class: "start" },
    el(
      "a",
      { href: fromImage(image.id), title: `Search from ${image.id}` },
      picture(thumbnail(image, size), { width: size, height: size }),
      el("span", {}, labelText(image.label)),
    ),
  );

/**
 * One hit.
 * @param {object} hit Of a SearchAnswer.
 * @param {object} route The search it belongs to.
 * @param {string|null} wanted The label of the query, where it has one.
 * @param {(hit: object) => void} why Called when its explanation is asked for.
 * @param {(way: string, id: string) => void} mark Called when it is to be an example.
 */
export function hitCard(hit, route, wanted, why, mark) {
  const words = labelText(hit.label);
  const same = wanted !== null && hit.label === wanted;
  const about = aboutText(hit.metadata ?? {});
  const link = el(
    "a",
    { class: "hit-link", href: fromImage(hit.id, route), title: `Search from ${hit.id}` },
    picture(thumbnail(hit, 384), { class: "hit-picture", width: 384, height: 384 }),
    el("span", { class: "rank", "aria-hidden": "true" }, hit.rank),
  );
  const chance = hit.probability ?? null;
  const rated = chance === null ? "" : `${likely(chance)} likely the same kind, `;
  const score = `${rated}score ${decimals(hit.score)}`;
  const name = `${hit.rank}: ${words}, ${score}${same ? ", same label" : ""}`;
  link.setAttribute("aria-label", `${name}. Search from this image`);
  const ask = el("button", {
    type: "button",
    class: "button small",
    on: { click: () => why(hit) },
  });
  ask.append("Why?");
  ask.setAttribute("aria-label", `Why did ${hit.rank}, ${words}, match?`);
  return el(
    "li",
    { class: "hit", data: { id: hit.id } },
    link,
    el(
      "p",
      { class: "hit-label" },
      el("span", { title: hit.label ?? "" }, words),
      same && el("span", { class: "same", title: "The label of the query" }, icon("check")),
    ),
    about && el("p", { class: "hit-about", title: about }, about),
    el(
      "div",
      { class: "hit-foot" },
      scoreBar(hit),
      el(
        "span",
        { class: "hit-score", title: `${rated}${percent(hit.share)} of the best score` },
        chance === null ? decimals(hit.score) : likely(chance),
      ),
      ask,
    ),
    marks(hit, words, mark),
  );
}

/** The metadata in one line: a truth is its name, or nothing. */
function aboutText(metadata) {
  return Object.entries(metadata)
    .filter(([, value]) => value !== null && value !== false && value !== "")
    .map(([name, value]) => (value === true ? name : String(value)))
    .join(" · ");
}

function scoreBar(hit) {
  const share = Math.max(0, Math.min(1, hit.probability ?? hit.share ?? 0));
  return el(
    "span",
    { class: "bar", "aria-hidden": "true", vars: { share } },
    el("span", { class: "bar-fill" }),
  );
}

/** Let the arrow keys move the focus from card to card. */
export function walkable(list, selector) {
  list.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const links = [...list.querySelectorAll(selector)];
    const now = links.findIndex((link) => link === document.activeElement);
    if (now < 0) return;
    const next = step(links, now, event.key);
    if (next === null) return;
    event.preventDefault();
    links[next].focus();
  });
}

function step(links, now, key) {
  const last = links.length - 1;
  if (key === "ArrowRight") return Math.min(now + 1, last);
  if (key === "ArrowLeft") return Math.max(now - 1, 0);
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const top = links[0].getBoundingClientRect().top;
  const firstBelow = links.findIndex((link) => link.getBoundingClientRect().top > top + 4);
  const columns = firstBelow < 0 ? links.length : firstBelow;
  const next = now + (key === "ArrowDown" ? columns : -columns);
  return next < 0 || next > last ? now : next;
}
