/* What the page says to people: toasts, words for screen readers, and the states of a view. */

import { ApiError, OfflineError } from "./api.js";
import { button, el, icon } from "./dom.js";

const SECONDS = { good: 5, bad: 12 };

/** Show a message at the edge of the page; it leaves by itself unless it is being read. */
export function toast(words, kind = "good") {
  const box = document.getElementById("toasts");
  for (const old of box.children) if (old.dataset.words === words) old.remove();
  const note = el(
    "div",
    { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status", data: { words } },
    icon(kind === "bad" ? "warn" : "check"),
    el("p", {}, words),
  );
  const leave = () => note.remove();
  const close = el(
    "button",
    { type: "button", class: "tool", on: { click: leave } },
    icon("close"),
  );
  close.append(el("span", { class: "unseen" }, "Close the message"));
  note.append(close);
  let timer = setTimeout(leave, 1000 * SECONDS[kind]);
  const hold = () => clearTimeout(timer);
  const go = () => {
    hold();
    timer = setTimeout(leave, 1000 * SECONDS[kind]);
  };
  note.addEventListener("pointerenter", hold);
  note.addEventListener("pointerleave", go);
  note.addEventListener("focusin", hold);
  note.addEventListener("focusout", go);
  box.append(note);
  while (box.children.length > 3) box.firstElementChild.remove();
}

/** Say something to those who do not see the page. */
export function say(words) {
  const place = document.getElementById("said");
  place.textContent = "";
  requestAnimationFrame(() => {
    place.textContent = words;
  });
}

/** A designed state: nothing here, or something went wrong. */
export function state({
  drawing,
  title,
  words,
  detail = "",
  actions = [],
  role = null,
  kind = "",
}) {
  return el(
    "div",
    { class: `state ${kind}`, role },
    el("span", { class: "state-drawing" }, icon(drawing)),
    el("h2", {}, title),
    el("p", {}, words),
    detail && el("p", { class: "state-detail" }, detail),
    actions.length > 0 && el("p", { class: "state-actions" }, actions),
  );
}

const TITLES = {
  BadImageError: "This picture cannot be read",
  UnknownNameError: "There is no such image here",
  RateLimitError: "A little too fast",
};

/** Whether the same question may have an answer later. */
const mayPass = ({ status = 0 }) => status === 0 || status === 429 || status >= 500;

/** The state for an error of api.js. */
export function problem(error, retry, more = []) {
  const again =
    mayPass(error) && retry
      ? [button("Try again", { class: "button strong", on: { click: retry } })]
      : [];
  if (error instanceof OfflineError) {
    return state({
      drawing: "offline",
      title: "No connection to the server",
      words: error.message,
      detail: "The page goes on by itself as soon as the server answers.",
      actions: [...again, ...more],
      role: "alert",
      kind: "offline",
    });
  }
  if (!(error instanceof ApiError)) console.error(error);
  const busy = error.status === 429 || error.status === 503;
  return state({
    drawing: "warn",
    title: TITLES[error.kind] ?? (busy ? "The server is busy" : "That did not work"),
    words: error instanceof ApiError ? error.message : "The page made a mistake. Try again.",
    detail: error.requestId ? `Request ${error.requestId}` : "",
    actions: [...again, ...more],
    role: "alert",
    kind: "bad",
  });
}

/** Grey shapes where results will be. */
export const skeletons = (count, className = "hit") =>
  Array.from({ length: count }, () =>
    el(
      "li",
      { class: `${className} skeleton`, "aria-hidden": "true" },
      el("span", { class: "bone square" }),
      el("span", { class: "bone line" }),
      el("span", { class: "bone line short" }),
    ),
  );
