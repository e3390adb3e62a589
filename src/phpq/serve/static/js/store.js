/* What the page remembers between views: the gallery's facts, pictures given, answers had. */

import * as api from "./api.js";
import { whereOf } from "./route.js";

const PAGE = 24; // hits fetched at once
const KEPT_ANSWERS = 60;
const PREVIEW = 360; // pixels; small enough to live in the browser's history

/** The gallery's facts, from /info; filled by main.js before any view is shown. */
export const facts = { info: null };

const uploads = new Map();
let nextUpload = Date.now(); // unlike any of an earlier page, which may live on in the history

/** A picture as the page knows it; `box` is the part that is meant, `shown` a drawing of it. */
export const photoOf = (file) => ({
  file,
  name: file.name || "pasted picture",
  address: URL.createObjectURL(file),
  box: null,
  shown: null,
});

/** Remember pictures of one thing that a person gave. A change of them is kept beside them. */
export function keepUpload(photos) {
  nextUpload += 1;
  const [first, ...more] = photos;
  const name = more.length ? `${photos.length} pictures` : first.name;
  const upload = { key: nextUpload, photos, name, address: first.shown ?? first.address };
  uploads.set(upload.key, upload);
  return upload;
}

/** The same picture with another part of it, drawn so that the rest steps back. */
export async function withBox(photo, box) {
  if (box === null) return { ...photo, box, shown: null };
  const bitmap = await createImageBitmap(photo.file);
  const scale = (2 * PREVIEW) / Math.max(bitmap.width, bitmap.height);
  const canvas = draw(bitmap, scale);
  const brush = canvas.getContext("2d");
  const [left, top, right, bottom] = box.map((edge) => edge * scale);
  brush.fillStyle = "rgb(10 16 22 / 68%)";
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(
    bitmap,
    ...[box[0], box[1], box[2] - box[0], box[3] - box[1]],
    ...[left, top, right - left, bottom - top],
  );
  brush.strokeStyle = "#fff";
  brush.lineWidth = Math.max(2, canvas.width / 120);
  brush.strokeRect(left, top, right - left, bottom - top);
  return { ...photo, box, shown: canvas.toDataURL("image/jpeg", 0.85) };
}

export const uploadOf = (state) => (state?.upload ? (uploads.get(state.upload) ?? null) : null);

/** A small copy as a data address: it outlives a reload, which the picture itself does not. */
export async function preview({ photos: [{ file, shown }] }) {
  try {
    if (shown) return shown;
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, PREVIEW / Math.max(bitmap.width, bitmap.height));
    return draw(bitmap, scale).toDataURL("image/jpeg", 0.8);
  } catch {
    return null; // a kind of picture that only the server can read
  }
}

function draw(bitmap, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const brush = canvas.getContext("2d");
  brush.fillStyle = "#fff"; // JPEG has no transparency
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** Make a picture fit the server's limit; null when this browser cannot read it. */
export async function shrink(file, longest) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height));
    const canvas = draw(bitmap, scale);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
    return blob && new File([blob], file.name || "picture.jpg", { type: "image/jpeg" });
  } catch {
    return null;
  }
}

const answers = new Map();

function remember(key, answer) {
  answers.delete(key);
  answers.set(key, answer);
  if (answers.size > KEPT_ANSWERS) answers.delete(answers.keys().next().value);
  return answer;
}

/** Forget answers, as when the gallery may have changed. */
export const forget = () => answers.clear();

/**
 * Search as a route says, from `offset` on; an answer had before comes at once.
 * @param {object} route Of route.js.
 * @param {object|null} upload The picture, where the query is one and is still at hand.
 */
export async function hits(route, upload, offset, signal) {
  const wanted = {
    top_k: Math.min(PAGE, facts.info.limits?.max_top_k ?? PAGE),
    offset,
    where: whereOf(route, facts.info.filters),
    label: route.labels,
    more: route.more,
    less: route.less,
  };
  const source = upload ? { upload: upload.key } : { [route.kind]: route.value };
  const key = JSON.stringify([source, wanted]);
  if (answers.has(key)) return remember(key, answers.get(key));
  const answer = upload
    ? await api.searchImages(upload.photos, wanted, signal)
    : await api.search({ ...source, ...wanted }, signal);
  return remember(key, answer);
}

/** Say why a hit matched; an answer had before comes at once. */
export async function why(route, upload, hitId, signal) {
  const source = upload ? { upload: upload.key } : { [route.kind]: route.value };
  const fields = { hit_id: hitId, more: route.more, less: route.less };
  const key = JSON.stringify(["why", source, fields]);
  if (answers.has(key)) return remember(key, answers.get(key));
  let answer;
  if (upload) answer = await api.explainImages(upload.photos, fields, signal);
  else if (route.kind === "id") {
    answer = await api.explain({ query_id: route.value, ...fields }, signal);
  } else answer = await api.explain({ code: route.value, ...fields }, signal);
  return remember(key, answer);
}

/** The codewords of a code in hex, one a byte; [] where it is packed otherwise. */
export function wordsOf(code) {
  const books = facts.info.num_codebooks;
  if (!code || code.length !== 2 * books) return [];
  return Array.from({ length: books }, (_, book) =>
    parseInt(code.slice(2 * book, 2 * book + 2), 16),
  );
}

/** Read and write a choice of this reader; forbidden storage forgets. */
export const choice = {
  get(name) {
    try {
      return localStorage.getItem(`phpq.${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`phpq.${name}`, value);
    } catch {
      // Storage may be forbidden.
    }
  },
};
