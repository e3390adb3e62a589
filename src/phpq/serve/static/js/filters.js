/* The filters of a search: labels, fields of the metadata, an expression. Each change is a new
   address, so that back undoes it. */

import { labelField } from "./combobox.js";
import { button, el, icon, labelText, valueText } from "./dom.js";
import { OPERATORS, hasFilters, kindOf, operatorsOf } from "./route.js";
import { facts } from "./store.js";

/**
 * @param {(change: object) => void} change Called with the parts of the route that are new.
 * @returns {{root: HTMLElement, show: (route: object) => void}}
 */
export function filterPanel(change) {
  let route = null;
  const { labels } = facts.info;
  const filters = freeFields();
  const chips = el("ul", { class: "chips", "aria-label": "Filters in use" });
  const clear = button("Clear all", {
    class: "button plain",
    on: { click: () => change({ labels: [], fields: [], where: "" }) },
  });
  const body = el("div", { class: "filter-body" }, chips);
  const count = el("span", { class: "badge", hidden: true });

  if (labels !== 0) {
    const { root } = labelField("filter-label", (label) =>
      change({ labels: [...new Set([...route.labels, label])] }),
    );
    body.append(el("label", { class: "caption", for: "filter-label" }, "Label"), root);
  }
  if (filters.length) {
    body.append(fieldForm((one) => change({ fields: [...route.fields, one] })));
  }
  const expert = expression((where) => change({ where }));
  body.append(expert.root);

  const wide = matchMedia("(min-width: 60rem)").matches;
  const root = el(
    "details",
    { class: "card filters", open: wide },
    el("summary", {}, el("h2", {}, "Filter"), count),
    body,
  );

  const show = (next) => {
    route = next;
    const made = [
      ...route.labels.map((label) =>
        chip(labelText(label), label, () =>
          change({ labels: route.labels.filter((one) => one !== label) }),
        ),
      ),
      ...route.fields.map((field) =>
        chip(fieldText(field), null, () =>
          change({ fields: route.fields.filter((one) => one !== field) }),
        ),
      ),
      ...(route.where ? [chip(route.where, null, () => change({ where: "" }), "code")] : []),
    ];
    const focused = chips.contains(document.activeElement);
    chips.replaceChildren(...made);
    if (made.length > 1) chips.append(el("li", {}, clear));
    chips.hidden = !hasFilters(route);
    count.hidden = !made.length;
    count.textContent = String(made.length);
    if (focused) (chips.querySelector("button") ?? root.querySelector("summary")).focus();
    expert.show(route.where);
  };
  return { root, show };
}

/** The fields of the metadata; labels have a place of their own. */
const freeFields = () => facts.info.filters.filter(({ name }) => name !== "label" && name !== "id");

const fieldText = ({ name, operator, value }) => {
  const shown = value === "true" || value === "false" ? valueText(value === "true") : value;
  return `${name} ${OPERATORS[operator]?.words ?? operator} ${shown}`;
};

function chip(words, title, remove, kind = "") {
  const drop = el("button", { type: "button", title: title ?? words, on: { click: remove } });
  drop.append(el("span", { class: kind }, words), icon("close"));
  drop.setAttribute("aria-label", `Remove the filter ${words}`);
  return el("li", { class: "chip" }, drop);
}

/** Field, operator, value: three small fields and a button. */
function fieldForm(add) {
  const filters = freeFields();
  const name = el("select", { class: "field", "aria-label": "Field" });
  name.append(...filters.map((one) => el("option", { value: one.name }, one.name)));
  const operator = el("select", { class: "field", "aria-label": "Comparison" });
  const slot = el("span", { class: "value-slot" });
  const adapt = () => {
    const { type } = filters.find((one) => one.name === name.value);
    const kind = kindOf(type);
    operator.replaceChildren(
      ...operatorsOf(kind).map((key) => el("option", { value: key }, OPERATORS[key].words)),
    );
    slot.replaceChildren(valueField(kind, type));
  };
  name.addEventListener("change", adapt);
  adapt();
  const submit = (event) => {
    event.preventDefault();
    const field = slot.firstElementChild;
    const value = field.value.trim();
    if (!value) return;
    add({ name: name.value, operator: operator.value, value });
    if (field.tagName === "INPUT") field.value = "";
  };
  return el(
    "form",
    { class: "field-form", "aria-label": "Filter by a field", on: { submit } },
    el("span", { class: "caption" }, "Field"),
    el("span", { class: "field-row" }, name, operator),
    el("span", { class: "field-row" }, slot, el("button", { class: "button" }, "Add")),
  );
}

function valueField(kind, type) {
  const props = { class: "field", "aria-label": "Value", required: true };
  if (kind === "truth") {
    return el(
      "select",
      props,
      el("option", { value: "true" }, "yes"),
      el("option", { value: "false" }, "no"),
    );
  }
  if (kind === "number") return el("input", { ...props, type: "number", step: "any" });
  if (kind === "time") {
    return el("input", {
      ...props,
      type: String(type).startsWith("date") ? "date" : "datetime-local",
    });
  }
  return el("input", { ...props, type: "text", placeholder: "Value" });
}

/** A line of SQL for those who want it. */
function expression(change) {
  const names = facts.info.filters.map((one) => one.name);
  const input = el("input", {
    id: "filter-where",
    class: "field code",
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    placeholder: "label LIKE '%Wren%'",
    "aria-describedby": "filter-where-help",
  });
  const submit = (event) => {
    event.preventDefault();
    change(input.value.trim());
  };
  const form = el(
    "form",
    { class: "expression", on: { submit } },
    el("label", { class: "caption", for: "filter-where" }, "Expression"),
    el("span", { class: "field-row" }, input, el("button", { class: "button" }, "Apply")),
    el("p", { id: "filter-where-help", class: "hint" }, `SQL over ${names.join(", ")}.`),
  );
  const root = el("details", { class: "expert" }, el("summary", {}, "For experts"), form);
  return {
    root,
    show(where) {
      if (document.activeElement !== input) input.value = where;
      if (where) root.open = true;
    },
  };
}
