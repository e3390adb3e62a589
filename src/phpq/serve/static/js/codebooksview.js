/* The codebooks: how each is used, and the images behind each codeword. */

import * as api from "./api.js";
import { decimals, el, hueOf, icon, labelText, picture, plural, thumbnail, whole } from "./dom.js";
import { ownsCodebooks } from "./kinds.js";
import { problem, say, skeletons, state } from "./notify.js";
import { imageLink, walkable } from "./results.js";
import { format } from "./route.js";
import { facts } from "./store.js";

const STRIP = 14; // images in the row of a codeword
const PAGE = 60; // images of one codeword on its own page
const ROWS = 24; // codewords shown at first

export function codebooksView(app) {
  const title = el("h1", { tabindex: "-1" }, "Codebooks");
  const lead = el("p", { class: "summary" });
  const tabs = el("nav", { class: "tabs", "aria-label": "Codebooks" });
  const body = el("div", { class: "books-body" });
  const root = el("div", { class: "books" }, title, lead, tabs, body);
  let books = null;
  let running = new AbortController();

  async function update(route) {
    running.abort();
    running = new AbortController();
    const { signal } = running;
    document.title = `Codebooks · ${facts.info.name}`;
    try {
      if (!books) {
        body.replaceChildren(el("ul", { class: "words" }, skeletons(6, "word")));
        books = (await api.codebooks(signal)).codebooks;
      }
      if (signal.aborted) return;
      showTabs(route);
      if (route.word === null) showBook(route, signal);
      else await showWord(route, signal);
    } catch (error) {
      if (signal.aborted) return;
      const retry = () => update(route);
      body.replaceChildren(problem(error, retry));
      if (error instanceof api.OfflineError) app.whenBack(retry);
    }
  }

  function showTabs(route) {
    tabs.replaceChildren(
      ...books.map(({ codebook }) =>
        el(
          "a",
          {
            href: format({ view: "codebooks", book: codebook }),
            "aria-current": codebook === route.book ? "true" : null,
            vars: { hue: hueOf(codebook, books.length) },
          },
          `Codebook ${codebook + 1}`,
        ),
      ),
    );
  }

  function showBook(route, signal) {
    const book = books.find((one) => one.codebook === route.book);
    if (!book) {
      body.replaceChildren(unknown(`There is no codebook ${route.book + 1}`));
      return;
    }
    title.textContent = "Codebooks";
    const size = facts.info.codebook_size;
    lead.textContent = ownsCodebooks()
      ? "A code names one codeword of each codebook, which this gallery fitted to its images and " +
        "labels. The sum of its codewords stands for an image."
      : "A code names one codeword of each codebook. Images behind the same codeword look alike " +
        "to that part of the model.";
    const list = el("ul", { class: "words" });
    const rows = book.words.map((word) => wordRow(book, word, signal));
    list.append(...rows.slice(0, ROWS));
    const more = rows.length > ROWS && el("button", { type: "button", class: "button wide" });
    if (more) {
      more.append(`Show ${rows.length - ROWS} more codewords`);
      more.addEventListener("click", () => {
        list.append(...rows.slice(ROWS));
        rows[ROWS].querySelector("a").focus();
        more.remove();
      });
    }
    const rowsOfUse = [
      ["in use", `${whole(book.used)} of ${whole(size)}`],
      ["never used", whole(book.dead)],
      ["entropy", `${decimals(book.entropy_bits)} of ${decimals(Math.log2(size), 0)} bits`],
    ];
    const usage = el(
      "dl",
      { class: "usage" },
      rowsOfUse.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    );
    const nothing =
      rows.length === 0 &&
      state({
        drawing: "books",
        title: "No codeword is in use",
        words: "The gallery has no images yet.",
      });
    body.replaceChildren(...[usage, list, more, nothing].filter(Boolean));
    say(`Codebook ${book.codebook + 1}: ${plural(book.used, "codeword")} in use`);
  }

  /** One codeword: its use, and a row of images that is fetched when it comes into sight. */
  function wordRow(book, { word, images }, signal) {
    const most = Math.max(...book.words.map((one) => one.images));
    const strip = el("span", { class: "strip" });
    const link = el(
      "a",
      {
        class: "word-link",
        href: format({ view: "codebooks", book: book.codebook, word }),
        vars: { share: images / most, hue: hueOf(book.codebook, books.length) },
      },
      el("span", { class: "word-name" }, `Codeword ${word}`),
      el("span", { class: "word-count" }, plural(images, "image")),
      el("span", { class: "bar", "aria-hidden": "true" }, el("span", { class: "bar-fill" })),
    );
    const row = el("li", { class: "word" }, link, strip);
    const watcher = new IntersectionObserver(
      async ([seen]) => {
        if (!seen.isIntersecting) return;
        watcher.disconnect();
        try {
          const found = await api.codeword(book.codebook, word, STRIP, signal);
          strip.append(
            ...found.images.map((image) =>
              picture(thumbnail(image, 192), {
                alt: labelText(image.label),
                title: labelText(image.label),
              }),
            ),
          );
        } catch (error) {
          if (!signal.aborted) strip.append(el("span", { class: "hint" }, error.message));
        }
      },
      { rootMargin: "200px" },
    );
    watcher.observe(row);
    signal.addEventListener("abort", () => watcher.disconnect());
    return row;
  }

  async function showWord(route, signal) {
    const list = el("ul", { class: "starts" }, skeletons(12, "start"));
    title.textContent = `Codeword ${route.word} of codebook ${route.book + 1}`;
    lead.textContent = "Looking…";
    const back = el("a", {
      class: "button",
      href: format({ view: "codebooks", book: route.book }),
    });
    back.append(icon("left"), `All of codebook ${route.book + 1}`);
    body.replaceChildren(el("p", {}, back), list);
    const { images, total } = await api.codeword(route.book, route.word, PAGE, signal);
    if (signal.aborted) return;
    lead.textContent = total
      ? `${plural(total, "image")} ${total === 1 ? "has" : "have"} this codeword${shares(images)}.`
      : "No image of the gallery has this codeword.";
    list.replaceChildren(...images.map((image) => imageLink(image, 384)));
    walkable(list, "a");
    if (total > images.length) {
      body.append(el("p", { class: "end" }, `The first ${images.length} of ${whole(total)}.`));
    }
    say(lead.textContent);
  }

  return { root, title, update, leave: () => running.abort() };
}

/** "; 38 of the first 60 are Red throated Wren" */
function shares(images) {
  const counts = new Map();
  for (const { label } of images) if (label) counts.set(label, (counts.get(label) ?? 0) + 1);
  if (!counts.size) return "";
  const [label, count] = [...counts].sort((a, b) => b[1] - a[1])[0];
  const are = count === 1 ? "is" : "are";
  return `; ${whole(count)} of the ${whole(images.length)} shown ${are} ${labelText(label)}`;
}

const unknown = (words) =>
  state({ drawing: "books", title: words, words: "Choose one of the codebooks above." });
