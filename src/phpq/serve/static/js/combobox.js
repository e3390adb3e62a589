/* A text field that suggests labels while one types: the ARIA combobox pattern with a list. */

import * as api from "./api.js";
import { el, labelText, whole } from "./dom.js";
import { say } from "./notify.js";
import { facts } from "./store.js";

const SHOWN = 12;
const FEW = 1000; // so few labels are fetched once and searched here, by any of their words
const STILL = 120; // milliseconds without a key before the server is asked

let known = null; // all labels, where they are few

/** Labels that fit what was typed: by any part, or by their beginning where they are many. */
async function matching(typed, signal) {
  if (facts.info.labels > FEW) return api.labels({ prefix: typed, limit: SHOWN }, signal);
  known ??= (await api.labels({ limit: FEW }, signal)).labels;
  const wanted = typed.toLowerCase();
  const fits = ({ label }) =>
    label.toLowerCase().includes(wanted) || labelText(label).toLowerCase().includes(wanted);
  const found = known.filter(fits);
  return { total: found.length, labels: found.slice(0, SHOWN) };
}

/**
 * @param {string} id For the elements' ids.
 * @param {(label: string) => void} choose Called with the label taken.
 * @returns {{root: HTMLElement, input: HTMLInputElement}}
 */
export function labelField(id, choose) {
  const list = el("ul", { id: `${id}-list`, class: "suggestions", role: "listbox", hidden: true });
  list.setAttribute("aria-label", "Labels");
  const input = el("input", {
    id,
    type: "text",
    role: "combobox",
    class: "field",
    placeholder: "Type a label…",
    autocomplete: "off",
    spellcheck: "false",
    "aria-expanded": "false",
    "aria-controls": `${id}-list`,
    "aria-autocomplete": "list",
  });
  let options = [];
  let active = -1;
  let timer = 0;
  let listed = null; // the text that the list was made for
  let running = new AbortController();

  const close = () => {
    running.abort();
    clearTimeout(timer);
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const mark = (place) => {
    active = place;
    [...list.children].forEach((node, number) => {
      node.setAttribute("aria-selected", String(number === active));
    });
    const node = list.children[active];
    if (!node) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", node.id);
      node.scrollIntoView({ block: "nearest" });
    }
  };
  const take = (label) => {
    input.value = "";
    close();
    choose(label);
  };
  const show = (answer) => {
    options = answer.labels.map(({ label }) => label);
    list.replaceChildren(
      ...answer.labels.map(({ label, images }, number) =>
        el(
          "li",
          {
            id: `${id}-option-${number}`,
            role: "option",
            "aria-selected": "false",
            title: label,
            on: {
              pointerdown: (event) => event.preventDefault(), // keeps the focus in the field
              click: () => take(label),
            },
          },
          el("span", {}, labelText(label)),
          el("span", { class: "count" }, whole(images)),
        ),
      ),
    );
    if (!options.length) {
      list.append(el("li", { class: "nothing", role: "presentation" }, "No such label"));
    } else if (answer.total > options.length) {
      const words = `${whole(answer.total - options.length)} more; type on`;
      list.append(el("li", { class: "nothing", role: "presentation" }, words));
    }
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    say(options.length ? `${options.length} labels` : "No such label");
    mark(options.length && input.value.trim() ? 0 : -1);
  };
  const ask = async () => {
    running.abort();
    running = new AbortController();
    const { signal } = running;
    const typed = input.value.trim();
    try {
      const answer = await matching(typed, signal);
      if (signal.aborted) return;
      listed = typed;
      show(answer);
    } catch (error) {
      if (error.name !== "AbortError") close();
    }
  };

  /** Takes the label that is marked; of what was just typed, not of a list that is older. */
  const enter = async () => {
    const typed = input.value.trim();
    if (typed && typed !== listed) {
      clearTimeout(timer);
      await ask();
    }
    if (options[active] !== undefined && !list.hidden) take(options[active]);
  };

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, STILL);
  });
  input.addEventListener("focus", ask);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) ask();
      else if (options.length) {
        const step = event.key === "ArrowDown" ? 1 : -1;
        mark((active + step + options.length) % options.length);
      }
    } else if (event.key === "Enter") {
      event.preventDefault();
      enter();
    } else if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      close();
    }
  });
  return { root: el("div", { class: "combobox" }, input, list), input };
}
