/* Why a hit matched: query and hit side by side, heat maps over them, the score in its parts. */

import * as api from "./api.js";
import {
  decimals,
  el,
  hueOf,
  icon,
  labelText,
  percent,
  picture,
  thumbnail,
  tool,
  valueText,
} from "./dom.js";
import { ownsCodebooks } from "./kinds.js";
import { problem, say } from "./notify.js";
import { fromImage } from "./route.js";
import { choice, facts, why, wordsOf } from "./store.js";

const SUM = "Each codebook compares one part of the embedding; their shares add up.";
const OWN_SUM = "The codewords of a hit add up to what stands for it, and so do their shares.";
const dialog = () => document.getElementById("why");
let running = new AbortController();
let onClose = () => {};
let wired = false;

function wire() {
  if (wired) return;
  wired = true;
  dialog().addEventListener("close", () => {
    running.abort();
    onClose();
  });
  dialog().addEventListener("click", (event) => {
    if (event.target === dialog()) dialog().close(); // a click beside the sheet
  });
  dialog().addEventListener("keydown", (event) => {
    if (event.target.matches("input") || event.altKey || event.ctrlKey || event.metaKey) return;
    const name = { ArrowLeft: "before", ArrowRight: "after" }[event.key];
    dialog().querySelector(`[data-step="${name}"]:not(:disabled)`)?.click();
  });
}

/** Close without telling anyone: the address has already changed. */
export function closeWhy() {
  onClose = () => {};
  if (dialog().open) dialog().close();
}

/** Open the sheet, or turn it to another hit. */
export async function showWhy(shown) {
  wire();
  running.abort();
  running = new AbortController();
  onClose = shown.close;
  const focused = dialog().open ? document.activeElement?.dataset?.step : null;
  const sheet = layOut(shown);
  dialog().replaceChildren(...sheet.parts);
  if (!dialog().open) dialog().showModal();
  if (focused) dialog().querySelector(`[data-step="${focused}"]`)?.focus();
  else dialog().scrollTop = 0;
  await fill(sheet, shown, running.signal);
}

async function fill(sheet, shown, signal) {
  const details = async () => {
    // A hit that is not on the page was opened by its address: ask who it is.
    const item =
      shown.hit.metadata && shown.hit.code ? shown.hit : await api.item(shown.hit.id, signal);
    if (!signal.aborted) sheet.showHit({ ...item, ...shown.hit, ...{ code: item.code } });
    return item;
  };
  const parts = async () => why(shown.route, shown.upload, shown.hit.id, signal);
  const [item, answer] = await Promise.allSettled([details(), parts()]);
  if (signal.aborted) return;
  if (answer.status === "rejected") {
    const again = () => fill(sheet, shown, signal);
    sheet.fail(answer.reason, again);
    return;
  }
  sheet.explain(answer.value, item.status === "fulfilled" ? item.value.code : null);
}

function layOut(shown) {
  const { hit, query, route } = shown;
  const stage = el("div", { class: "compare", "aria-busy": "true" });
  const queryName = query.label ? labelText(query.label) : (shown.upload?.name ?? "Query");
  const queryFigure = figure("Query", queryName, queryAddress(shown));
  const hitFigure = figure(
    `Hit ${hit.rank ?? ""}`.trim(),
    labelText(hit.label),
    thumbnail(hit, 768),
  );
  stage.append(queryFigure.root, hitFigure.root);
  const strength = heatControl(stage);
  const score = el("div", { class: "shares" }, skeletonBars());
  const about = el("div", { class: "about" });
  const head = el(
    "header",
    { class: "sheet-head" },
    el("h2", { id: "why-title", tabindex: "-1", autofocus: true }, "Why this matched"),
    stepButton("before", "Hit before", "left", shown.before, shown.step),
    stepButton("after", "Hit after", "right", shown.after, shown.step),
    tool("Close", "close", () => dialog().close()),
  );
  const foot = el(
    "p",
    { class: "sheet-foot" },
    el(
      "a",
      { class: "button strong", href: fromImage(hit.id, route) },
      icon("search"),
      "Search from this hit",
    ),
  );
  const left = el("div", { class: "sheet-part" }, stage, strength.root);
  const right = el("div", { class: "sheet-part" }, score, about, foot);
  return {
    parts: [head, el("div", { class: "sheet-body" }, left, right)],
    showHit(item) {
      hitFigure.name(labelText(item.label));
      about.replaceChildren(...aboutHit(item));
      if (item.has_original) {
        const address = `/api/v1/original?id=${encodeURIComponent(item.id)}`;
        const open = el("a", { class: "button", href: address, target: "_blank", rel: "noopener" });
        open.append("Open the original");
        if (!foot.querySelector('[target="_blank"]')) foot.append(open);
      }
    },
    explain(answer, code) {
      stage.removeAttribute("aria-busy");
      queryFigure.heat(answer.query?.heatmap);
      hitFigure.heat(answer.hit?.heatmap);
      strength.root.hidden = !answer.query?.heatmap && !answer.hit?.heatmap;
      score.replaceChildren(...bars(answer, shown, code));
      say(`Score ${decimals(answer.score)} from ${answer.shares.length} codebooks.`);
    },
    fail(error, again) {
      stage.removeAttribute("aria-busy");
      strength.root.hidden = true;
      score.replaceChildren(problem(error, again));
    },
  };
}

function queryAddress({ upload, preview, route }) {
  if (route.kind === "id") return thumbnail({ id: route.value }, 768);
  return upload?.address ?? preview;
}

/** A picture with room for a heat map above it. */
function figure(role, name, address) {
  const words = el("span", { class: "figure-name" }, name);
  const view = el("div", { class: "figure-view" });
  if (address) view.append(picture(address, { alt: `${role}: ${name}`, loading: "eager" }));
  else view.append(el("span", { class: "no-picture" }, "Only its code is known"));
  return {
    root: el(
      "figure",
      {},
      view,
      el("figcaption", {}, el("span", { class: "caption" }, role), words),
    ),
    name(text) {
      words.textContent = text;
    },
    heat(data) {
      if (!data || !data.startsWith("data:image/")) return;
      view.append(el("img", { class: "heat", src: data, alt: "" }));
    },
  };
}

/** How strongly the heat maps show. */
function heatControl(stage) {
  const range = el("input", { id: "heat", type: "range", min: "0", max: "100", step: "5" });
  range.value = choice.get("heat") ?? "100";
  const apply = () => stage.style.setProperty("--heat", String(range.value / 100));
  range.addEventListener("input", () => {
    apply();
    choice.set("heat", range.value);
  });
  apply();
  const label = el("label", { class: "caption", for: "heat" }, "Heat map");
  return { root: el("p", { class: "heat-control" }, label, range) };
}

const skeletonBars = () =>
  Array.from({ length: Math.min(facts.info.num_codebooks ?? 4, 8) }, () =>
    el("span", { class: "bone line", "aria-hidden": "true" }),
  );

/** The score as the sum of its codebooks. */
function bars(answer, { hit }, code) {
  const books = answer.shares.length;
  const share = hit.share > 0 ? hit.share : null;
  const best = share ? Math.max(answer.score / share, answer.score) : books;
  const longest = Math.max(best / books, ...answer.shares.map((one) => Math.abs(one.score)));
  const words = wordsOf(code);
  const stacked = el("div", { class: "stacked", "aria-hidden": "true" });
  for (const one of answer.shares) {
    const length = Math.max(0, one.score) / best;
    stacked.append(el("span", { vars: { length, hue: hueOf(one.codebook, books) } }));
  }
  // What speaks against takes back from the end of the others.
  const against = answer.shares.reduce((sum, one) => sum - Math.min(0, one.score), 0);
  if (against > 0)
    stacked.append(el("span", { class: "against", vars: { length: against / best } }));
  const rows = answer.shares.map((one) =>
    bookRow(one, { longest, books, word: words[one.codebook] }),
  );
  const total = el(
    "tr",
    { class: "total" },
    el("th", { scope: "row" }, "Score"),
    el("td", {}, stacked),
    el("td", { class: "number" }, decimals(answer.score, 3)),
    el("td", {}),
  );
  const part = `${decimals(answer.score)} is ${percent(answer.score / best)}`;
  const lead = share ? `${part} of the best score that any code could reach. ` : "";
  return [
    el("h3", {}, "Where the score comes from"),
    el("p", { class: "hint" }, `${lead}${ownsCodebooks() ? OWN_SUM : SUM}`),
    el(
      "table",
      {},
      el(
        "thead",
        { class: "unseen" },
        el(
          "tr",
          {},
          ["Codebook", "Share", "Score", "Part"].map((name) => el("th", { scope: "col" }, name)),
        ),
      ),
      el("tbody", {}, rows, total),
    ),
    answer.note && el("p", { class: "note" }, answer.note),
  ].filter(Boolean);
}

function bookRow(one, { longest, books, word }) {
  const name = `Codebook ${one.codebook + 1}`;
  const head = el("th", { scope: "row" }, name);
  if (word !== undefined) {
    const door = el("a", { href: `#/codebooks/${one.codebook}/${word}` }, `word ${word}`);
    door.setAttribute("aria-label", `${name}, word ${word}: images behind it`);
    head.append(" ", door);
  }
  const length = Math.abs(one.score) / longest;
  const bar = el("span", {
    class: one.score < 0 ? "share-bar against" : "share-bar",
    vars: { length, hue: hueOf(one.codebook, books) },
  });
  return el(
    "tr",
    {},
    head,
    el("td", {}, bar),
    el("td", { class: "number" }, decimals(one.score, 3)),
    el("td", { class: "number" }, percent(one.part)),
  );
}

function aboutHit(item) {
  const rows = [["id", item.id], ["label", item.label], ...Object.entries(item.metadata ?? {})];
  return [
    el("h3", {}, "The hit"),
    el(
      "dl",
      { class: "pairs" },
      rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, valueText(value))]),
    ),
  ];
}

function stepButton(name, words, drawing, hit, step) {
  return tool(words, drawing, () => hit && step(hit), { disabled: !hit, data: { step: name } });
}
