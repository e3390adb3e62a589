/* The server's doors: a path and parameters in, JSON out, or one of two errors with words. */

/** The server answered, and said no. */
export class ApiError extends Error {
  constructor(message, { kind = "Error", status = 0, requestId = "" } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.requestId = requestId;
  }
}

/** No answer: the server is gone, or the network is. */
export class OfflineError extends Error {
  constructor() {
    super("The server does not answer. Is it still running, and are you connected?");
  }
}

const PATIENCE = 2; // times that a busy server is asked again
const LONGEST_WAIT = 5; // seconds

/** What the rest of the page may listen to: "lost" and "found". */
export const connection = new EventTarget();
let lost = false;

function setLost(now) {
  if (now === lost) return;
  lost = now;
  connection.dispatchEvent(new Event(now ? "lost" : "found"));
}

export const isLost = () => lost;

/** Ask whether the server is back. */
export async function knock() {
  try {
    const answer = await fetch("/health", { cache: "no-store" });
    if (answer.ok) setLost(false);
  } catch {
    setLost(true);
  }
  return !lost;
}

function address(path, params) {
  const url = new URL(`/api/v1/${path}`, location.origin);
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, one);
    }
  }
  return url;
}

async function refusal(answer) {
  const fallback = `The server answered ${answer.status} ${answer.statusText}.`.replace(" .", ".");
  try {
    const { error } = await answer.json();
    return new ApiError(error.message || fallback, {
      kind: error.kind,
      status: answer.status,
      requestId: error.request_id,
    });
  } catch {
    return new ApiError(fallback, { status: answer.status });
  }
}

const pause = (seconds, signal) =>
  new Promise((done, stop) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      stop(signal.reason);
    });
  });

async function ask(path, { params = {}, signal, ...options } = {}) {
  for (let turn = 0; ; turn += 1) {
    let answer;
    try {
      answer = await fetch(address(path, params), { signal, ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      // Only a server that answers nothing is gone: one that broke off must not be asked for ever.
      if (!(await knock())) throw new OfflineError();
      throw new ApiError("The connection broke off before the answer was there.");
    }
    setLost(false);
    if (answer.ok) return answer.json();
    const busy = answer.status === 429 || answer.status === 503;
    if (!busy || turn >= PATIENCE) throw await refusal(answer);
    const wait = Number(answer.headers.get("Retry-After")) || 1;
    await pause(Math.min(wait, LONGEST_WAIT), signal);
  }
}

/** Pictures of store.js and fields as a form. */
function form(photos, fields) {
  const data = new FormData();
  for (const { file } of photos) data.append("image", file, file.name || "pasted.png");
  if (photos.some(({ box }) => box)) {
    for (const { box } of photos) data.append("box", box ? box.join(",") : "whole");
  }
  for (const [name, value] of Object.entries(fields)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") data.append(name, one);
    }
  }
  return data;
}

export const info = () => ask("info");
export const labels = (params, signal) => ask("labels", { params, signal });
export const item = (id, signal) => ask("item", { params: { id }, signal });
export const search = (params, signal) => ask("search", { params, signal });
export const searchImages = (photos, fields, signal) =>
  ask("search", { method: "POST", body: form(photos, fields), signal });
export const suggestBox = ({ file }, signal) =>
  ask("suggest-box", { method: "POST", body: form([{ file }], {}), signal });
export const explain = (params, signal) => ask("explain", { params, signal });
export const explainImages = (photos, fields, signal) =>
  ask("explain", { method: "POST", body: form(photos, fields), signal });
export const map = (limit, signal) => ask("map", { params: { limit }, signal });
export const codebooks = (signal) => ask("codebooks", { signal });
export const codeword = (book, word, limit, signal) =>
  ask(`codebooks/${book}/${word}`, { params: { limit }, signal });

/** The token of a writable server; "" where the reader gave none. */
export const token = { value: "" };

const change = (path, content) =>
  ask(path, {
    method: "POST",
    headers: { Authorization: `Bearer ${token.value}`, "Content-Type": "application/json" },
    body: content === undefined ? undefined : JSON.stringify(content),
  });

export const audit = (signal) => ask("audit", { signal, cache: "no-store" });
export const startAudit = () => change("audit");
export const decide = (decision) => change("audit/decisions", decision);
export const undo = () => change("audit/undo");
