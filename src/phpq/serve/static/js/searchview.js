/* A search: the query and filters beside its hits. */

import { OfflineError } from "./api.js";
import {
  button,
  decimals,
  el,
  hueOf,
  icon,
  labelText,
  picture,
  plural,
  thumbnail,
  whole,
} from "./dom.js";
import { closeWhy, showWhy } from "./explain.js";
import { filterPanel } from "./filters.js";
import { doors } from "./intake.js";
import { kindsPanel, knowsKinds } from "./kinds.js";
import { problem, say, skeletons, state as stateBox, toast } from "./notify.js";
import { exampleLists, marked, photoDoors, photoStrip } from "./pointing.js";
import { hitCard, walkable } from "./results.js";
import { format, hasFilters } from "./route.js";
import { facts, hits as fetchHits, keepUpload, preview, uploadOf, wordsOf } from "./store.js";

export function searchView(app) {
  const title = el("h1", { tabindex: "-1" }, "Searching…");
  const summary = el("p", { class: "summary" });
  const list = el("ol", { class: "hits" });
  list.setAttribute("aria-label", "Hits, best first");
  const after = el("div", { class: "after" });
  const query = el("section", { class: "card query", "aria-label": "Query" });
  const change = (part) => app.go({ ...route, ...part, why: null }, app.memory());
  const filters = filterPanel(change);
  const kinds = knowsKinds() ? kindsPanel((labels) => change({ labels })) : null;
  const root = el(
    "div",
    { class: "search" },
    el("div", { class: "side" }, query, filters.root),
    el(
      "section",
      { class: "found", "aria-label": "Results" },
      el("div", { class: "found-head" }, title, kinds?.root, summary),
      list,
      after,
    ),
  );
  walkable(list, ".hit-link");

  let route = null;
  let shown = null; // what the hits on the page answer
  let answer = null;
  let all = [];
  let running = new AbortController();

  /** A hit becomes an example of what is looked for, or of what is not. */
  const mark = (way, id) => {
    const next = marked(route, way, id);
    if (next) app.go({ ...next, why: null }, app.memory());
  };

  /** The same search with other pictures, or other parts of them. */
  function repoint(photos) {
    const upload = keepUpload(photos);
    const next = { ...route, kind: "upload", value: "", why: null };
    app.go(next, { upload: upload.key, name: upload.name });
  }

  const why = (hit) => app.go({ ...route, why: hit.id }, { ...app.memory(), dialog: true });

  const keyOf = (one, memory) => JSON.stringify([format({ ...one, why: null }), memory?.upload]);

  async function update(next, memory) {
    route = next;
    const key = keyOf(route, memory);
    filters.show(route);
    if (key !== shown && !(await load(memory, key))) return;
    root.dataset.shown = location.hash;
    openDialog(memory);
  }

  /** Fetch and show; false if that failed, or if something else was asked for meanwhile. */
  async function load(memory, key) {
    const upload = uploadOf(memory);
    if (route.kind === "upload" && !upload) {
      app.go({ view: "home", labels: [], fields: [], where: "" }, {}, { replace: true });
      return false;
    }
    running.abort();
    running = new AbortController();
    const { signal } = running;
    const sameQuery = answer !== null && query.dataset.of === queryKey(memory);
    shown = key;
    showQuery(memory, upload, sameQuery ? answer.query : null);
    const waiting = setTimeout(() => {
      list.setAttribute("aria-busy", "true");
      if (!sameQuery) {
        title.textContent = "Searching…";
        summary.textContent = "";
        kinds?.wait();
        list.replaceChildren(...skeletons(12));
        after.replaceChildren();
      }
    }, 60); // an answer from memory comes sooner and needs no skeleton
    try {
      const asked = fetchHits(route, upload, 0, signal);
      // A filter by one label leaves one kind: what else it may be is known without it.
      const alone = kinds && route.labels.length === 1;
      const wider = alone ? fetchHits({ ...route, labels: [] }, upload, 0, signal) : asked;
      const [found, { verdict }] = await Promise.all([asked, wider]);
      if (signal.aborted) return false;
      answer = found;
      all = [...found.hits];
      if (route.kind === "upload") settleAddress(memory, upload);
      // By hits: the gallery has changed since the page was opened, and knows no kinds any more.
      if (verdict?.by === "hits") kinds?.hide();
      else kinds?.show(verdict, route);
      showHits();
      showQuery(app.memory(), upload, answer.query);
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      shown = null;
      answer = null;
      failed(error, memory);
      return false;
    } finally {
      clearTimeout(waiting);
      if (!signal.aborted) list.removeAttribute("aria-busy");
    }
  }

  /** Once its code is known, a picture has an address that can be shared. */
  function settleAddress(memory, upload) {
    route = { ...route, kind: "code", value: answer.query.code };
    shown = keyOf(route, memory);
    const remember = app.settle(route, { upload: upload.key, name: upload.name });
    preview(upload).then((small) => remember({ preview: small }));
  }

  function failed(error, memory) {
    title.textContent = error instanceof OfflineError ? "Waiting for the server" : "No results";
    summary.textContent = "";
    kinds?.hide();
    list.replaceChildren();
    const retry = () => update(route, memory);
    const more = error.status === 404 || !hasFilters(route) ? [] : [clearButton()];
    const other = error instanceof OfflineError ? [] : doors("");
    after.replaceChildren(problem(error, retry, [...more, ...other]));
    if (error instanceof OfflineError) app.whenBack(retry);
  }

  const clearButton = () =>
    button("Clear the filters", {
      class: "button strong",
      on: {
        click: () =>
          app.go({ ...route, labels: [], fields: [], where: "", why: null }, app.memory()),
      },
    });

  function showHits() {
    const wanted = answer.query.label ?? null;
    list.replaceChildren(...all.map((hit) => hitCard(hit, route, wanted, why, mark)));
    after.replaceChildren();
    if (!all.length) {
      nothing();
      return;
    }
    title.textContent = titleOf(answer.query);
    document.title = `${title.textContent} · ${facts.info.name}`;
    summary.replaceChildren(...summaryOf());
    say(`${plural(all.length, "hit")}. ${kinds?.words() ?? ""} ${summary.textContent}`);
    showMore();
  }

  function summaryOf() {
    const filtered = hasFilters(route) ? "that pass the filters" : "";
    const scope = `The best ${whole(all.length)} of ${plural(answer.total, "image")} ${filtered}`;
    const parts = [`${scope.trim()}, found in ${timeText(answer.seconds)}.`];
    const { more, less } = route;
    if (more.length || less.length) {
      parts.push(` Led by ${plural(more.length + less.length, "example")}.`);
    }
    const counts = new Map();
    for (const hit of all) if (hit.label) counts.set(hit.label, (counts.get(hit.label) ?? 0) + 1);
    const wanted = answer.query.label;
    if (wanted) {
      const count = counts.get(wanted) ?? 0;
      const many =
        count === all.length ? "All" : count ? `${whole(count)} of them` : "None of them";
      parts.push(` ${many} ${count === 0 ? "has" : "have"} the label of the query.`);
    } else if (counts.size && !kinds) {
      const [label, count] = [...counts].sort((a, b) => b[1] - a[1])[0];
      const many = count === all.length ? "All" : whole(count);
      parts.push(` ${many} are `, el("strong", {}, labelText(label)), ".");
    }
    return parts;
  }

  function nothing() {
    const filtered = hasFilters(route);
    title.textContent = "No results";
    summary.textContent = "";
    if (!kinds?.words()) kinds?.hide(); // else there are others to choose
    say("No results");
    after.replaceChildren(
      stateBox({
        drawing: "search",
        title: filtered ? "No image passes these filters" : "This gallery has no other image",
        words: filtered
          ? "Take a filter away, or ask for another label."
          : "Add images with: phpq index",
        actions: filtered ? [clearButton()] : [],
      }),
    );
  }

  function showMore() {
    const farthest = facts.info.limits.max_offset ?? Infinity;
    if (all.length >= answer.total || !answer.hits.length || all.length > farthest) {
      after.replaceChildren(
        el("p", { class: "end" }, `That is all: ${plural(all.length, "hit")}.`),
      );
      return;
    }
    const more = button("Show more", { class: "button strong wide", on: { click: () => next() } });
    after.replaceChildren(more);
    const next = async () => {
      more.disabled = true;
      more.textContent = "Searching…";
      const { signal } = running;
      try {
        const found = await fetchHits(route, uploadOf(app.memory()), all.length, signal);
        if (signal.aborted) return;
        const cards = found.hits.map((hit) =>
          hitCard(hit, route, answer.query.label ?? null, why, mark),
        );
        all = [...all, ...found.hits];
        answer = { ...found, query: answer.query };
        list.append(...cards);
        summary.replaceChildren(...summaryOf());
        showMore();
        cards[0]?.querySelector("a").focus();
        say(`${plural(cards.length, "more hit")}`);
      } catch (error) {
        if (signal.aborted) return;
        showMore();
        toast(error.message, "bad");
      }
    };
  }

  const queryKey = (memory) => `${memory?.upload ?? `${route.kind}/${route.value}`}`;

  function showQuery(memory, upload, known) {
    query.dataset.of = queryKey(memory);
    query.replaceChildren(
      el(
        "div",
        { class: "query-picture" },
        upload ? photoStrip(upload, repoint) : queryPicture(memory, known),
      ),
      el(
        "div",
        { class: "query-body" },
        el("h2", { title: nameOf(memory, known) }, nameOf(memory, known)),
        el("p", { class: "hint" }, kindOf(memory, upload)),
        exampleLists(route, change),
        known && codeChips(known.code),
      ),
      ...(upload ? [el("p", { class: "query-doors pointing" }, photoDoors(upload, repoint))] : []),
      el("p", { class: "query-doors" }, copyButton(), ...doors()),
    );
  }

  function queryPicture(memory, known) {
    if (route.kind === "id") {
      const words = `The query: ${labelText(known?.label)}`;
      return picture(thumbnail({ id: route.value }, 768), { alt: words, loading: "eager" });
    }
    const address = memory?.preview;
    if (address) return picture(address, { alt: "The query: your picture", loading: "eager" });
    return codeDrawing(route.value);
  }

  const nameOf = (memory, known) => {
    if (route.kind === "id") return known?.label ? labelText(known.label) : route.value;
    return uploadOf(memory)?.name ?? memory?.name ?? "A shared code";
  };

  const kindOf = (memory, upload) => {
    if (route.kind === "id") return route.value;
    if (upload?.photos.length > 1) return "Pictures of one thing. A link shares their code, not them.";
    if (upload || memory?.preview) return "Your picture. A link shares its code, not the picture.";
    return "The picture is not in the link; its code is enough to search.";
  };

  function openDialog(memory) {
    if (!route.why || !answer) {
      closeWhy();
      return;
    }
    const place = all.findIndex((hit) => hit.id === route.why);
    showWhy({
      route,
      upload: uploadOf(memory),
      preview: memory?.preview ?? null,
      query: answer.query,
      hit: all[place] ?? { id: route.why },
      before: all[place - 1] ?? null,
      after: place >= 0 ? (all[place + 1] ?? null) : null,
      step: (hit) => app.go({ ...route, why: hit.id }, app.memory(), { replace: true }),
      close: () => app.leaveDialog({ ...route, why: null }),
    });
  }

  return {
    root,
    title,
    update,
    leave() {
      running.abort();
      closeWhy();
    },
  };
}

function titleOf(query) {
  if (query.label) return `Like ${labelText(query.label)}`;
  if (query.photos > 1) return `What looks like your ${query.photos} pictures`;
  return `What looks like ${query.boxes ? "this part of " : ""}your picture`;
}

const timeText = (seconds) =>
  seconds < 0.001
    ? "under 1 ms"
    : seconds < 1
      ? `${Math.round(1000 * seconds)} ms`
      : `${decimals(seconds, 1)} s`;

/** The code of a query: one chip a codebook, each a door to its codeword. */
function codeChips(code) {
  const words = wordsOf(code);
  const bits = facts.info.bits;
  const label = el("span", { class: "caption" }, `Code, ${bits} bits`);
  if (!words.length) return el("p", { class: "code-chips" }, label, el("code", {}, code));
  const chips = words.map((word, book) => {
    const chip = el("a", {
      href: `#/codebooks/${book}/${word}`,
      class: "code-chip",
      title: `Codebook ${book + 1}, codeword ${word}`,
      vars: { hue: hueOf(book, words.length) },
    });
    chip.textContent = word.toString(16).padStart(2, "0");
    chip.setAttribute("aria-label", `Codebook ${book + 1}, codeword ${word}`);
    return chip;
  });
  return el("p", { class: "code-chips" }, label, chips);
}

/** A drawing for a query of which only the code is known. */
function codeDrawing(code) {
  const pairs = code.match(/../g) ?? [];
  const cells = pairs
    .slice(0, 16)
    .map((pair, book) => el("span", { vars: { hue: hueOf(book, pairs.length) } }, pair));
  const drawing = el("div", { class: "code-drawing", role: "img" }, cells);
  drawing.setAttribute("aria-label", `The query: the code ${code}`);
  return drawing;
}

const copyButton = () =>
  button(
    "Copy link",
    {
      class: "button",
      on: {
        click: async () => {
          try {
            await navigator.clipboard.writeText(location.href);
            toast("The link is on the clipboard.");
          } catch {
            toast("The browser did not allow it. Copy the address of this page instead.", "bad");
          }
        },
      },
    },
    icon("link"),
  );
