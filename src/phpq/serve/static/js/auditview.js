/* The audit: what was found in the gallery, and a decision on each; the last one can be undone. */

import * as api from "./api.js";
import { labelField } from "./combobox.js";
import { button, el, icon, labelText, likely, percent, picture, plural, thumbnail } from "./dom.js";
import { hasToken, mayDecide, mayWrite, setToken, tokenForm } from "./audittoken.js";
import { problem, say, skeletons, state, toast } from "./notify.js";
import { format, fromImage } from "./route.js";
import { facts, forget } from "./store.js";

const PAGE = 20; // findings shown at first, and with each step
const POLL = 1000; // milliseconds between two looks at an audit that is at work

const KINDS = [
  ["copies", "Copies", "One picture, twice or more: scaled, compressed or cropped. Keep one."],
  ["wrong_labels", "Labels", "Labels that images of the same look contradict, surest first."],
  ["outliers", "Outliers", "Images that are like no other of the gallery."],
  ["to_label", "Label next", "Images without a label that would tell most, if they had one."],
  ["confused", "Confused labels", "Labels whose images are found for each other by their codes."],
];

export function auditView(app) {
  const title = el("h1", { tabindex: "-1" }, "Audit");
  const lead = el("p", { class: "summary" });
  const bar = el("div", { class: "audit-bar" });
  const tabs = el("nav", { class: "tabs plain", "aria-label": "What was found" });
  const body = el("div", { class: "audit-body" });
  const undoBar = el("div", { class: "undo-bar", role: "region", "aria-label": "Last decision" });
  undoBar.hidden = true;
  const root = el("div", { class: "audit" }, title, lead, bar, tabs, body, undoBar);
  let running = new AbortController();
  let answer = null;
  let route = { kind: "copies" };
  let shown = PAGE;
  let timer = 0;
  let busy = false;

  async function update(next) {
    if (next.token) {
      setToken(next.token); // it must stay neither in the address nor in the history
      app.go({ view: "audit", kind: next.kind }, {}, { replace: true });
      return;
    }
    if (next.kind !== route.kind) shown = PAGE;
    route = next;
    document.title = `Audit · ${facts.info.name}`;
    if (answer) draw();
    else {
      body.replaceChildren(el("ul", { class: "findings" }, skeletons(3, "finding")));
      await look();
    }
  }

  async function look() {
    running.abort();
    running = new AbortController();
    const { signal } = running;
    clearTimeout(timer);
    try {
      const before = answer?.state;
      answer = await api.audit(signal);
      draw();
      if (answer.state === "working") timer = setTimeout(look, POLL);
      else if (before === "working") {
        say(answer.state === "failed" ? "The audit failed" : `The audit is done. ${summary()}`);
      }
    } catch (error) {
      if (signal.aborted) return;
      body.replaceChildren(problem(error, look));
      if (error instanceof api.OfflineError) app.whenBack(look);
    }
  }

  async function begin() {
    try {
      answer = await api.startAudit();
      say("The audit has begun");
      draw();
      timer = setTimeout(look, POLL);
    } catch (error) {
      refused(error);
    }
  }

  const found = (kind) => answer.report?.[kind] ?? [];
  const open = () => KINDS.reduce((sum, [kind]) => sum + found(kind).length, 0);
  const summary = () =>
    open() ? `${plural(open(), "finding")} to decide on` : "Nothing is left to decide on";

  function draw() {
    lead.textContent = answer.report
      ? `${summary()}, in ${plural(answer.report.images, "image")}, compared by ` +
        `${answer.report.vectors}.`
      : "Copies, wrong labels, outliers: what is worth a look.";
    drawBar();
    drawUndo();
    tabs.hidden = !answer.report;
    if (answer.report) drawTabs();
    if (answer.state === "failed" && !answer.report) body.replaceChildren(failed());
    else if (!answer.report) body.replaceChildren(answer.state === "working" ? waiting() : never());
    else drawFindings();
  }

  /** What concerns the whole audit: at work, failed, out of date, the token. */
  function drawBar() {
    const parts = [];
    if (answer.state === "working") parts.push(progress(answer.progress));
    if (answer.state === "failed" && answer.report) {
      parts.push(el("p", { class: "notice bad", role: "alert" }, `It failed: ${answer.error}`));
    }
    if (!mayWrite()) {
      const words = "This server is read-only. To decide here, start: ";
      const command = el("code", {}, `phpq audit ${facts.info.name} --page`);
      parts.push(el("p", { class: "notice" }, words, command));
    } else if (!hasToken()) parts.push(tokenForm(draw));
    else if (answer.report && answer.state !== "working") {
      parts.push(button("Look again", { class: "button small", on: { click: begin } }));
    }
    for (const note of answer.report?.notes ?? []) {
      parts.push(el("p", { class: "notice" }, note));
    }
    bar.replaceChildren(...parts);
  }

  function drawTabs() {
    tabs.replaceChildren(
      ...KINDS.map(([kind, words]) =>
        el(
          "a",
          {
            href: format({ view: "audit", kind }),
            "aria-current": kind === route.kind ? "true" : null,
          },
          words,
          el("span", { class: "count" }, String(found(kind).length)),
        ),
      ),
    );
  }

  function drawFindings() {
    const [kind, , words] = KINDS.find(([name]) => name === route.kind) ?? KINDS[0];
    const all = found(kind);
    if (!all.length) {
      body.replaceChildren(nothing(kind));
      return;
    }
    const list = el(
      "ul",
      { class: "findings" },
      all.slice(0, shown).map((finding, place) => DRAWN[kind](finding, place)),
    );
    const left = all.length - shown;
    const more =
      left > 0 &&
      button(`Show ${Math.min(left, PAGE)} more of ${left}`, {
        class: "button wide",
        on: {
          click: () => {
            const next = shown;
            shown += PAGE;
            drawFindings();
            body.querySelectorAll(".finding")[next]?.querySelector("button, a")?.focus();
          },
        },
      });
    body.replaceChildren(...[el("p", { class: "hint" }, words), list, more].filter(Boolean));
  }

  function nothing(kind) {
    const other = KINDS.find(([name]) => found(name).length > 0);
    const link = other && el("a", { class: "button", href: format({ view: "audit", kind: other[0] }) });
    link?.append(`${other[1]}: ${found(other[0]).length}`);
    const titles = {
      copies: "No copies",
      wrong_labels: "No label looks wrong",
      outliers: "No outliers",
      to_label: "Nothing waits for a label",
      confused: "No labels are confused",
    };
    return state({
      drawing: "check",
      title: titles[kind],
      words: other ? "There is something to decide on elsewhere." : "Nothing is left to decide on.",
      actions: link ? [link] : [],
    });
  }

  const never = () =>
    state({
      drawing: "search",
      title: "Nobody has looked yet",
      words:
        "An audit looks through all images. It takes seconds to minutes and changes nothing: " +
        "you decide on what it finds.",
      detail: mayWrite() ? "" : `phpq audit ${facts.info.name}`,
      actions:
        mayDecide()
          ? [button("Look through the gallery", { class: "button strong", on: { click: begin } })]
          : [],
    });

  const waiting = () =>
    state({
      drawing: "search",
      title: "Looking through the gallery",
      words: "The page shows what is found as soon as it is done. You can go elsewhere meanwhile.",
    });

  const failed = () =>
    state({
      drawing: "warn",
      title: "The audit failed",
      words: answer.error,
      actions: mayDecide()
        ? [button("Try again", { class: "button strong", on: { click: begin } })]
        : [],
      role: "alert",
      kind: "bad",
    });

  /* One finding of each kind. */

  const shot = (id, label, size = 192) =>
    el(
      "a",
      { class: "shot", href: fromImage(id), title: `Search from ${id}` },
      picture(thumbnail({ id }, size), { width: size, height: size, alt: `${id}` }),
      label !== undefined && el("span", {}, labelText(label)),
    );

  const row = (name, pictures, words, actions) => {
    const buttons = mayDecide() ? actions : [];
    return el(
      "li",
      { class: "finding", data: { kind: route.kind } },
      el("div", { class: "shots" }, pictures),
      el(
        "div",
        { class: "finding-words" },
        el("h2", {}, name),
        words.map((text) => el("p", {}, text)),
        buttons.length > 0 && el("div", { class: "choices" }, buttons),
      ),
    );
  };

  const act = (words, decision, props = {}) =>
    button(words, { class: "button small", ...props, on: { click: (event) => go(event, decision) } });

  const another = (place, finding) => {
    const field = labelField(`label-${place}`, (label) =>
      go({ target: field.input }, { key: finding.key, action: "relabel", ids: [finding.id], label }),
    );
    field.input.setAttribute("aria-label", `Another label for ${finding.id}`);
    field.input.placeholder = "Another label…";
    return field.root;
  };

  const remove = (finding) =>
    act("Delete", { key: finding.key, action: "delete", ids: [finding.id] }, { class: "button small bad" });

  const DRAWN = {
    copies(finding, place) {
      const choose = finding.ids.map((id, number) => {
        const radio = el("input", { type: "radio", name: `keep-${place}`, value: id });
        radio.checked = number === 0;
        return el(
          "div",
          { class: "copy" },
          shot(id, finding.labels[number]),
          mayDecide()
            ? el("label", { class: "check" }, radio, el("span", {}, `Keep ${id}`))
            : el("p", { class: "copy-name" }, id),
        );
      });
      const merge = button("Merge into the one kept", {
        class: "button small strong",
        on: {
          click: (event) => {
            const kept = event.target.closest(".finding").querySelector("input:checked").value;
            const others = finding.ids.filter((id) => id !== kept);
            go(event, { key: finding.key, action: "merge", ids: [kept, ...others] });
          },
        },
      });
      const labels = new Set(finding.labels.filter(Boolean));
      return row(
        `${plural(finding.ids.length, "copy", "copies")} of one picture`,
        choose,
        [
          finding.exact ? "Their files are equal." : "The same picture, not the same file.",
          ...(labels.size > 1 ? ["Their labels differ."] : []),
        ],
        [merge, act("Keep all", { key: finding.key, action: "keep" })],
      );
    },
    wrong_labels(finding, place) {
      const to = labelText(finding.suggested);
      return row(
        `${labelText(finding.label)}? Looks like ${to}`,
        [shot(finding.id)],
        [`${finding.id}: a wrong label, ${likely(finding.wrong)} likely.`],
        [
          act(
            `Relabel: ${to}`,
            { key: finding.key, action: "relabel", ids: [finding.id], label: finding.suggested },
            { class: "button small strong" },
          ),
          another(place, finding),
          act(`Keep: ${labelText(finding.label)}`, { key: finding.key, action: "keep" }),
          remove(finding),
        ],
      );
    },
    outliers(finding, place) {
      return row(
        finding.id,
        [shot(finding.id)],
        [
          `${labelText(finding.label)}. Its nearest images are ${percent(finding.nearness)} alike; ` +
            `${percent(finding.usual)} is usual here.`,
        ],
        [
          act("Keep", { key: finding.key, action: "keep" }),
          another(place, finding),
          remove(finding),
        ],
      );
    },
    to_label(finding, place) {
      const to = finding.suggested && labelText(finding.suggested);
      return row(
        to ? `${to}?` : finding.id,
        [shot(finding.id)],
        [to ? `${finding.id}: ${likely(finding.likely)} likely by its looks.` : "No label tells."],
        [
          ...(to
            ? [
                act(
                  `Label: ${to}`,
                  { key: finding.key, action: "relabel", ids: [finding.id], label: finding.suggested },
                  { class: "button small strong" },
                ),
              ]
            : []),
          another(place, finding),
          act("Leave without", { key: finding.key, action: "keep" }),
        ],
      );
    },
    confused(finding) {
      const [one, other] = finding.labels.map(labelText);
      const into = (old, kept, words) =>
        act(words, { key: finding.key, action: "merge labels", old_label: old, label: kept });
      return row(
        `${one} and ${other}`,
        [],
        [
          `${percent(finding.share)} of their hits are the other's: ` +
            `${plural(finding.images[0], "image")} and ${plural(finding.images[1], "image")}.`,
        ],
        [
          act("Keep apart", { key: finding.key, action: "keep" }),
          into(finding.labels[0], finding.labels[1], `All are ${other}`),
          into(finding.labels[1], finding.labels[0], `All are ${one}`),
        ],
      );
    },
  };

  /** Carry a decision out; what deletes is asked about first. */
  async function go(event, decision) {
    if (busy) return;
    const card = event.target.closest(".finding");
    const place = [...body.querySelectorAll(".finding")].indexOf(card);
    if (decision.action === "delete" || decision.action === "merge") {
      const gone = decision.ids.length - (decision.action === "merge" ? 1 : 0);
      if (!(await sure(gone, decision))) return;
      decision.yes = true;
    }
    busy = true;
    card?.setAttribute("aria-busy", "true");
    try {
      answer = await api.decide(decision);
      forget();
      draw();
      const cards = body.querySelectorAll(".finding");
      const next = cards[Math.min(place, cards.length - 1)];
      (next?.querySelector("button") ?? title).focus();
      say(`${saidOf(answer.last)}. ${summary()}`);
    } catch (error) {
      card?.removeAttribute("aria-busy");
      refused(error);
    } finally {
      busy = false;
    }
  }

  async function undo() {
    if (busy) return;
    busy = true;
    try {
      const was = saidOf(answer.last);
      answer = await api.undo();
      forget();
      draw();
      toast(`Undone: ${was}`);
      (undoBar.querySelector("button") ?? title).focus();
    } catch (error) {
      refused(error);
    } finally {
      busy = false;
    }
  }

  function drawUndo() {
    undoBar.hidden = !(answer.last && mayDecide());
    if (undoBar.hidden) return;
    undoBar.replaceChildren(
      el("p", {}, `${saidOf(answer.last)} (${plural(answer.decided, "decision")})`),
      button("Undo", { class: "button small", title: "Undo (u)", on: { click: undo } }),
    );
  }

  function refused(error) {
    if (error.status === 401) {
      setToken("");
      draw();
    }
    toast(error.message, "bad");
  }

  function keys(event) {
    const typing = event.target.closest?.("input:not([type=radio]), select, textarea");
    if (event.key !== "u" || event.ctrlKey || event.metaKey || event.altKey || typing) return;
    if (document.querySelector("dialog[open]") || undoBar.hidden) return;
    event.preventDefault();
    undo();
  }
  addEventListener("keydown", keys);

  const leave = () => {
    running.abort();
    clearTimeout(timer);
    removeEventListener("keydown", keys);
  };
  return { root, title, update, leave };
}

function progress({ what, done, total }) {
  const part = total ? done / total : 0;
  return el(
    "div",
    { class: "working" },
    el("p", { id: "audit-step" }, `${what[0].toUpperCase()}${what.slice(1)}: ${done} of ${total}`),
    el("progress", { max: "1", value: String(part), "aria-labelledby": "audit-step" }),
  );
}

/** "Deleted owl/3.jpg", "Relabelled 2 images: wren" */
function saidOf({ action, ids, label }) {
  const what = ids.length === 1 ? ids[0] : plural(ids.length, "image");
  return {
    keep: "Kept as it is",
    relabel: `Relabelled ${what}: ${labelText(label)}`,
    delete: `Deleted ${what}`,
    merge: `Merged ${plural(ids.length, "copy", "copies")}`,
    "merge labels": `Merged labels: ${plural(ids.length, "image")} now ${labelText(label)}`,
  }[action];
}

/** Ask before something is deleted; only a yes is a yes. */
function sure(count, decision) {
  const sheet = document.getElementById("yes");
  const no = button("No, keep", { autofocus: true, on: { click: () => sheet.close() } });
  const yes = button(`Yes, delete ${plural(count, "image")}`, {
    class: "button strong bad",
    on: { click: () => sheet.close("yes") },
  });
  const listed = decision.action === "merge" ? decision.ids.slice(1) : decision.ids;
  sheet.returnValue = "";
  sheet.replaceChildren(
    el(
      "div",
      { class: "sheet-body" },
      el("h2", { id: "yes-title" }, icon("warn"), `Delete ${plural(count, "image")}?`),
      el("p", {}, listed.slice(0, 5).join(", "), listed.length > 5 && " …"),
      el("p", {}, "They leave the gallery; their files stay. It can be undone."),
      el("div", { class: "sheet-foot" }, no, yes),
    ),
  );
  sheet.showModal();
  return new Promise((done) => {
    sheet.addEventListener("close", () => done(sheet.returnValue === "yes"), { once: true });
  });
}
