/* Who may decide: a writable server, and its token, which this tab remembers until it is closed. */

import * as api from "./api.js";
import { el } from "./dom.js";
import { facts } from "./store.js";

const NAME = "phpq.token";

export const mayWrite = () => Boolean(facts.info?.writable);

export const hasToken = () => api.token.value !== "";

export const mayDecide = () => mayWrite() && hasToken();

export function setToken(text) {
  api.token.value = text.trim();
  try {
    if (text) sessionStorage.setItem(NAME, api.token.value);
    else sessionStorage.removeItem(NAME);
  } catch {
    // Storage may be forbidden: the page remembers it until it is loaded again.
  }
}

try {
  api.token.value = sessionStorage.getItem(NAME) ?? "";
} catch {
  // As above.
}

/** A field for the token; `done` is called when there is one. */
export function tokenForm(done) {
  const field = el("input", {
    id: "token",
    class: "field",
    type: "password",
    autocomplete: "off",
    required: true,
  });
  return el(
    "form",
    {
      class: "token",
      on: {
        submit: (event) => {
          event.preventDefault();
          setToken(field.value);
          if (hasToken()) done();
        },
      },
    },
    el("label", { for: "token" }, "To decide, enter the token of the server"),
    field,
    el("button", { type: "submit", class: "button" }, "Use it"),
  );
}
