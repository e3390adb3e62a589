/* Which part of a picture is meant: a box drawn by mouse, finger, arrow keys or numbers. */

import * as api from "./api.js";
import { button, el, tool } from "./dom.js";
import { say } from "./notify.js";
import { facts } from "./store.js";

const SMALLEST = 8; // pixels of a side: less shows nothing
const STEP = 0.02; // of a side, for an arrow key
const EDGES = ["Left", "Top", "Right", "Bottom"];
const CORNERS = ["nw", "ne", "sw", "se"];

const dialog = () => document.getElementById("box");
let running = new AbortController();

/**
 * Ask for a part of a picture.
 * @param {object} photo Of store.js; its box, if it has one, is where one begins.
 * @param {(box: number[]|null) => void} choose Called with [x0, y0, x1, y1], or null for all of it.
 */
export function askBox(photo, choose) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const image = el("img", { src: photo.address, alt: `Your picture ${photo.name}` });
  const frame = el("div", { class: "box-frame", tabindex: "0", role: "group" });
  frame.append(...CORNERS.map((name) => el("span", { class: "box-corner", data: { corner: name } })));
  const stage = el("div", { class: "box-stage", hidden: true }, image, frame);
  const note = el("p", { class: "hint box-note", role: "status" }, "Loading the picture…");
  const fields = EDGES.map((name, edge) =>
    el("input", { type: "number", min: 0, on: { change: () => typed(edge) }, "aria-label": name }),
  );
  const search = button("Search with this part", { class: "button strong", disabled: true });
  const whole = button("Whole picture", { on: { click: () => leave(null) } });
  const suggest = button("Suggest a part", { disabled: true, on: { click: () => suggested() } });
  let box = photo.box ?? null;
  let size = [0, 0];

  const leave = (chosen) => {
    dialog().close();
    choose(chosen);
  };
  search.addEventListener("click", () => leave(box));

  /** Keep a box inside the picture and large enough, in whole pixels. */
  function fit([x0, y0, x1, y1]) {
    const axis = (low, high, most) => {
      let [start, end] = [Math.min(low, high), Math.max(low, high)].map(Math.round);
      start = Math.max(0, Math.min(start, most - SMALLEST));
      end = Math.min(most, Math.max(end, start + SMALLEST));
      return [start, end];
    };
    const [left, right] = axis(x0, x1, size[0]);
    const [top, bottom] = axis(y0, y1, size[1]);
    return [left, top, right, bottom];
  }

  function show(next, { aloud = false } = {}) {
    box = fit(next);
    const share = (value, axis) => `${(100 * value) / size[axis]}%`;
    frame.style.left = share(box[0], 0);
    frame.style.top = share(box[1], 1);
    frame.style.width = share(box[2] - box[0], 0);
    frame.style.height = share(box[3] - box[1], 1);
    fields.forEach((field, edge) => {
      field.value = box[edge];
      field.max = size[edge % 2];
    });
    const words = `Box from ${box[0]}, ${box[1]} to ${box[2]}, ${box[3]} of ${size.join(" × ")} pixels`;
    frame.setAttribute("aria-label", `${words}. Arrow keys move it, with Shift they resize it.`);
    if (aloud) say(words);
  }

  function typed(edge) {
    const value = Number(fields[edge].value);
    show(box.map((one, place) => (place === edge && Number.isFinite(value) ? value : one)));
  }

  function moved([x0, y0, x1, y1], across, down) {
    const dx = Math.max(-x0, Math.min(across, size[0] - x1));
    const dy = Math.max(-y0, Math.min(down, size[1] - y1));
    return [x0 + dx, y0 + dy, x1 + dx, y1 + dy];
  }

  frame.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = way[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const [across, down] = step.map((one, axis) => one * Math.max(1, STEP * size[axis]));
    const larger = [box[0], box[1], box[2] + across, box[3] + down];
    const kept = larger[2] - box[0] >= SMALLEST && larger[3] - box[1] >= SMALLEST ? larger : box;
    show(event.shiftKey ? kept : moved(box, across, down), { aloud: true });
  });

  /** Where on the picture a pointer is, in its pixels. */
  function place(event) {
    const { left, top, width, height } = image.getBoundingClientRect();
    return [((event.clientX - left) / width) * size[0], ((event.clientY - top) / height) * size[1]];
  }

  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    const corner = event.target.dataset?.corner ?? "";
    const inside = event.target === frame;
    const from = place(event);
    const before = box;
    // The corner that stays: that opposite of the one taken, or where a new box begins.
    const fixed = corner
      ? [corner.includes("w") ? box[2] : box[0], corner.includes("n") ? box[3] : box[1]]
      : from;
    stage.setPointerCapture(event.pointerId);
    const follow = (one) => {
      const now = place(one);
      show(inside ? moved(before, now[0] - from[0], now[1] - from[1]) : [...fixed, ...now]);
    };
    const stop = () => {
      stage.removeEventListener("pointermove", follow);
      show(box, { aloud: true });
    };
    stage.addEventListener("pointermove", follow);
    stage.addEventListener("lostpointercapture", stop, { once: true });
  });

  async function suggested() {
    suggest.disabled = true;
    stage.setAttribute("aria-busy", "true");
    note.textContent = "Looking for the part that matters…";
    note.classList.remove("failed");
    try {
      const found = await api.suggestBox(photo, signal);
      if (signal.aborted) return;
      show(found.box, { aloud: true });
      note.textContent = "Suggested, from where the heat map of your picture is hot. Change it as you like.";
    } catch (error) {
      if (signal.aborted) return;
      note.textContent = `No part could be suggested. ${error.message}`;
      note.classList.add("failed");
    } finally {
      suggest.disabled = false;
      stage.removeAttribute("aria-busy");
    }
  }

  image.addEventListener("load", () => {
    size = [image.naturalWidth, image.naturalHeight];
    stage.style.setProperty("--wide", size[0]);
    stage.style.setProperty("--high", size[1]);
    stage.hidden = false;
    search.disabled = false;
    suggest.disabled = !facts.info.suggests_boxes;
    const [width, height] = size;
    show(box ?? [0.25 * width, 0.25 * height, 0.75 * width, 0.75 * height]);
    note.textContent = facts.info.suggests_boxes
      ? "Draw a box on the picture, or let one be suggested."
      : "Draw a box on the picture. This server cannot suggest one: that takes torch.";
    frame.focus({ preventScroll: true });
  });
  image.addEventListener("error", () => {
    note.textContent = "This browser cannot show the picture, so that no box can be drawn on it.";
    note.classList.add("failed");
  });

  const close = tool("Close", "close", () => dialog().close());
  dialog().replaceChildren(
    el("header", { class: "sheet-head" }, el("h2", { id: "box-title" }, "Which part is meant?"), close),
    el(
      "div",
      { class: "sheet-body" },
      note,
      stage,
      el(
        "fieldset",
        { class: "box-edges" },
        el("legend", { class: "caption" }, "Edges, in pixels"),
        EDGES.map((name, edge) => el("label", {}, el("span", {}, name), fields[edge])),
      ),
      el("p", { class: "sheet-foot" }, search, suggest, whole),
    ),
  );
  dialog().onclick = (event) => event.target === dialog() && dialog().close();
  dialog().onclose = () => running.abort();
  dialog().showModal();
}
