/* What a picture may show, where the gallery knows kinds: the likeliest one and the runners-up,
   each a button that leaves only its hits. Where it knows how likely they are, it says only what is
   sure: a kind, what the nearest kinds belong to, or that it does not know. */

import { el, labelText, likely } from "./dom.js";
import { facts } from "./store.js";

export const knowsKinds = () => facts.info.kinds;

/** Whether codes are sums of codewords that were fitted to the gallery, with its kinds. */
export const ownsCodebooks = () => facts.info.codebooks === "own";

/**
 * @param {(labels: string[]) => void} choose Called with the labels to filter by.
 * @returns {{root: HTMLElement, wait: () => void, hide: () => void,
 *   show: (verdict: object|null, route: object) => void, words: () => string}}
 */
export function kindsPanel(choose) {
  const root = el("section", { class: "card kinds", "aria-label": "What it may be" });
  let shown = null; // the verdict on the page
  let labels = [];

  const isChosen = (label) => labels.length === 1 && labels[0] === label;

  function kindButton(label, share = "") {
    const name = labelText(label);
    const made = el("button", {
      type: "button",
      class: "kind",
      title: `Show only ${label}`,
      data: { label },
      on: { click: () => choose(isChosen(label) ? [] : [label]) },
    });
    made.append(el("span", {}, name));
    if (share) made.append(el("span", { class: "count" }, share));
    made.setAttribute("aria-label", `${name}${share && `, ${share} likely`}: show only these`);
    return made;
  }

  const likeliest = (label) =>
    el(
      "div",
      { class: "kind-best" },
      el("h2", { class: "caption" }, "Most likely"),
      kindButton(label),
      el("p", { class: "hint" }),
    );

  /** What is said in place of a kind that is not sure: its parent, or nothing. */
  const unsure = (verdict) =>
    el(
      "div",
      { class: "kind-best" },
      el("h2", { class: "caption" }, verdict.sure.label === null ? "Not sure" : "Most likely"),
      el("p", { class: "kind-name" }, unsureName(verdict)),
      el("p", { class: "hint" }),
    );

  const rest = (others, known) =>
    el(
      "div",
      { class: "kind-others" },
      el("h2", { class: "caption" }, named(shown) ? "Or it may be" : "The nearest kinds"),
      el(
        "ol",
        { "aria-label": `${named(shown) ? "Other" : "The nearest"} kinds, the likeliest first` },
        others.map(([label, share]) => el("li", {}, kindButton(label, likely(known * share)))),
      ),
    );

  function show(verdict, route) {
    labels = route.labels;
    root.hidden = false;
    if (verdict === null) root.replaceChildren(el("p", { class: "hint" }));
    else if (verdict !== shown) {
      // Otherwise the buttons stay, and with them the focus.
      shown = verdict;
      const best = named(verdict) ? likeliest(verdict.label) : unsure(verdict);
      const others = named(verdict) ? verdict.runners_up : kindsOf(verdict);
      root.replaceChildren(best);
      if (others.length) root.append(rest(others, verdict.known ?? 1));
    }
    shown = verdict;
    root.querySelector(".hint").replaceChildren(...sentence(verdict, route));
    for (const one of root.querySelectorAll("button")) {
      one.setAttribute("aria-pressed", String(isChosen(one.dataset.label)));
    }
  }

  if (!facts.info.labels) show(null, { labels: [], fields: [], where: "" });
  return {
    root,
    show,
    wait() {
      root.hidden = false;
      if (!facts.info.labels) return; // what is said of that needs no search
      shown = null;
      const bone = (kind) => el("span", { class: `bone line ${kind}`, "aria-hidden": "true" });
      root.replaceChildren(
        el("div", {}, bone("short"), bone("")),
        el("div", {}, bone(""), bone("")),
      );
    },
    hide() {
      shown = null;
      root.hidden = true;
    },
    /** The same for those who do not see it. */
    words() {
      if (!shown) return "";
      const [best, ...others] = kindsOf(shown).map(
        ([label, share]) => `${labelText(label)} ${likely((shown.known ?? 1) * share)}`,
      );
      if (named(shown)) {
        return `Most likely ${best}${others.length ? `, or ${others.join(", ")}` : ""}.`;
      }
      const { label, probability } = shown.sure;
      const name = `Most likely ${labelText(label)} ${likely(probability)}`;
      const said = label === null ? unsureName(shown) : name;
      return `${said}. The nearest kinds: ${[best, ...others].join(", ")}.`;
    },
  };
}

const kindsOf = (verdict) => [[verdict.label, verdict.share], ...verdict.runners_up];

/** Whether a kind is named: where probabilities are not known, always. */
const named = ({ sure }) => !sure || sure.level === 0;

/** What stands in place of a kind that is not sure: a parent, or that it is unknown. */
function unsureName({ label, sure }) {
  if (sure.label !== null) return labelText(sure.label);
  return sure.probability >= 0.5 ? `Unknown, perhaps ${labelText(label)}` : "Unknown";
}

/** What is sure, and how sure that is. */
function surely({ label, level, probability, wrong_at_most: accepted }) {
  const limit = `at most ${Number((100 * accepted).toPrecision(3))} %`;
  if (label === null) return [`No name is sure enough when ${limit} of names may be wrong.`];
  const share = el("strong", {}, `${likely(probability)} likely`);
  const which = level === 0 ? "" : "; which kind is not sure";
  return [share, `${which}. Names are given so that ${limit} are wrong.`];
}

/** How likely it is, and among which kinds: a filter by one label alone is not counted. */
function sentence(verdict, { labels, fields, where }) {
  const filtered = labels.length > 1 || fields.length > 0 || where !== "";
  if (verdict === null) {
    const images = filtered ? "The images that pass the filters" : "The images of this gallery";
    return [`${images} have no labels, so that no kind can be named.`];
  }
  if (verdict.sure) return surely(verdict.sure);
  const filters = labels.length === 1 ? "the other filters" : "the filters";
  if (!verdict.runners_up.length) {
    return [`The only kind that ${filtered ? `passes ${filters}` : "this gallery knows"}.`];
  }
  const among = filtered ? `pass ${filters}` : "this gallery knows";
  const share = el("strong", {}, `${likely(verdict.share)} likely`);
  return [share, `, if it is one of the kinds that ${among}.`];
}
