/* How people point: several pictures, a part of each, and hits that are right or wrong. */

import { askBox } from "./boxsheet.js";
import { button, el, icon, picture, plural, thumbnail } from "./dom.js";
import { pick } from "./intake.js";
import { toast } from "./notify.js";
import { facts, withBox } from "./store.js";

/**
 * The pictures of a query, each a door to the choice of its part.
 * @param {object} upload Of store.js.
 * @param {(photos: object[]) => void} change Called with the pictures to search with.
 */
export function photoStrip(upload, change) {
  const { photos } = upload;
  const others = (place) => photos.filter((_, one) => one !== place);
  const chosen = (place) =>
    askBox(photos[place], async (box) => {
      if (box === null && !photos[place].box) return;
      const next = await withBox(photos[place], box);
      change(photos.map((one, number) => (number === place ? next : one)));
    });
  const one = (photo, place) => {
    const which = photos.length > 1 ? `Picture ${place + 1}` : "Your picture";
    const part = photo.box ? "a part of it is searched with" : "all of it is searched with";
    const door = el(
      "button",
      { type: "button", class: "photo", title: "Choose a part", on: { click: () => chosen(place) } },
      picture(photo.shown ?? photo.address, { loading: "eager" }),
    );
    door.setAttribute("aria-label", `${which}, ${part}. Choose the part that is meant`);
    if (photos.length === 1) return el("li", {}, door);
    const away = el("button", {
      type: "button",
      class: "tool photo-away",
      on: { click: () => change(others(place)) },
    });
    away.append(icon("close"), el("span", { class: "unseen" }, `Leave out picture ${place + 1}`));
    return el("li", {}, door, away);
  };
  const list = el("ol", { class: "photos", data: { count: photos.length } }, photos.map(one));
  list.setAttribute("aria-label", `The query: ${plural(photos.length, "picture")}`);
  return list;
}

/** Buttons that change what a picture of the query is. */
export function photoDoors(upload, change) {
  const most = facts.info.limits.max_photos ?? 1;
  const [first, ...more] = upload.photos;
  const doors = [];
  if (!more.length) {
    const words = first.box ? "Change the part" : "Choose a part";
    const ask = () =>
      askBox(first, async (box) => {
        if (box !== null || first.box) change([await withBox(first, box)]);
      });
    doors.push(button(words, { on: { click: ask } }, icon("fit")));
  }
  const add = () =>
    pick((files) => {
      const room = most - upload.photos.length;
      if (files.length > room) toast(`A search takes ${most} pictures; the first ones are used.`);
      change([...upload.photos, ...files.slice(0, room)]);
    });
  const full = upload.photos.length >= most;
  const title = full ? `A search takes at most ${most} pictures` : "Of the same thing";
  doors.push(button("Add a picture", { disabled: full, title, on: { click: add } }, icon("plus")));
  return doors;
}

/** Two buttons on a hit: more like this, less like this. */
export function marks(hit, words, mark) {
  const one = (way, name, drawing) => {
    const made = el("button", {
      type: "button",
      class: `button small mark ${way}`,
      data: { way },
      on: { click: () => mark(way, hit.id) },
    });
    made.append(icon(drawing), name);
    made.setAttribute("aria-label", `${name} like ${hit.rank}, ${words}`);
    return made;
  };
  return el("div", { class: "hit-marks" }, one("more", "More", "plus"), one("less", "Less", "minus"));
}

/** A route with one more example; nothing where there is no room. */
export function marked(route, way, id) {
  const most = facts.info.limits.max_examples ?? 0;
  if (route[way].length >= most) {
    toast(`A search takes at most ${most} images to be ${way} like. Take one away first.`, "bad");
    return null;
  }
  return { ...route, [way]: [...route[way], id] };
}

/**
 * The examples of a search, each a button that takes it away.
 * @param {(part: object) => void} change Called with what changes in the route.
 */
export function exampleLists(route, change) {
  const row = (way, title) => {
    const ids = route[way];
    if (!ids.length) return null;
    const one = (id) => {
      const made = el("button", {
        type: "button",
        class: `example ${way}`,
        title: `Take away ${id}`,
        on: { click: () => change({ [way]: ids.filter((other) => other !== id) }) },
      });
      made.append(picture(thumbnail({ id }, 96)), icon("close"));
      made.setAttribute("aria-label", `${title} ${id}: take away`);
      return el("li", {}, made);
    };
    const list = el("ul", { class: "examples" }, ids.map(one));
    list.setAttribute("aria-label", title);
    return el("div", {}, el("span", { class: "caption" }, title), list);
  };
  if (!route.more.length && !route.less.length) return null;
  return el(
    "div",
    { class: "query-examples" },
    row("more", "More like"),
    row("less", "Less like"),
    button("Clear examples", {
      class: "button small",
      on: { click: () => change({ more: [], less: [] }) },
    }),
  );
}
