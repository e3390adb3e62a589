/* Ways a picture gets in: drop, paste, a file, the camera. A checked file out, or words why not. */

import { bytesText, button, el, icon } from "./dom.js";
import { toast } from "./notify.js";
import { facts, photoOf, shrink } from "./store.js";

const ENDINGS = /\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic|heif|ppm|jp2)$/i;
const LONGEST_SIDE = 1600; // of a picture made smaller: far more than any model looks at

let deliver = () => {};
let picked = null; // who waits for the pictures that are chosen next, if not the whole page

/** Listen for pictures everywhere on the page. */
export function listen(receive) {
  deliver = receive;
  for (const id of ["pick", "camera"]) {
    const input = document.getElementById(id);
    input.addEventListener("change", () => {
      take([...input.files], picked ?? deliver);
      picked = null;
      input.value = ""; // so that the same file can be picked again
    });
  }
  document.addEventListener("paste", onPaste);
  dropping();
}

/** Let pictures be chosen: for `receive`, or for a new search. */
export function pick(receive = null) {
  picked = typeof receive === "function" ? receive : null;
  document.getElementById("pick").click();
}
export const camera = () => document.getElementById("camera").click();

/** Buttons that let a picture in; `camera` shows on touch screens only. */
export const doors = (weight = "strong") => [
  button("Choose a picture", { class: `button ${weight}`, on: { click: () => pick() } }, icon("picture")),
  button("Take a photo", { class: "button camera", on: { click: camera } }, icon("camera")),
];

/** Hand over the pictures among files that this server can take. */
async function take(files, receive = deliver) {
  const good = [];
  for (const file of files) good.push(await checked(file));
  const photos = good.filter(Boolean).map(photoOf);
  if (photos.length) receive(photos);
}

/** A file, made smaller if it must be; null, and a word why, if it cannot be used. */
async function checked(file) {
  const isPicture = file.type.startsWith("image/") || (!file.type && ENDINGS.test(file.name));
  if (!isPicture) {
    const kind = file.type ? ` (${file.type})` : "";
    toast(`“${file.name}”${kind} is not a picture. Use a JPEG, PNG or WebP file.`, "bad");
    return null;
  }
  if (file.size === 0) {
    toast(`“${file.name}” is empty. Choose another picture.`, "bad");
    return null;
  }
  const limit = facts.info?.limits?.max_upload_bytes ?? Infinity;
  if (file.size <= limit) {
    return file;
  }
  const smaller = await shrink(file, LONGEST_SIDE);
  if (smaller && smaller.size <= limit) {
    toast(`Made smaller to fit: ${bytesText(file.size)} → ${bytesText(smaller.size)}.`);
    return smaller;
  }
  const words = `“${file.name}” has ${bytesText(file.size)}; this server takes`;
  toast(`${words} ${bytesText(limit)}. Choose a smaller picture.`, "bad");
  return null;
}

function onPaste(event) {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length) {
    event.preventDefault();
    take(files);
  } else if (!event.target.closest?.("input, textarea")) {
    toast("There is no picture on the clipboard. Copy an image, not its address.", "bad");
  }
}

function dropping() {
  const veil = document.getElementById("drop-veil");
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0; // dragenter and dragleave also fire between the elements of the page
  const hide = () => {
    depth = 0;
    veil.hidden = true;
  };
  addEventListener("dragenter", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    depth += 1;
    veil.hidden = false;
  });
  addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) hide();
  });
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
  });
  addEventListener("drop", (event) => {
    hide();
    if (!holdsFiles(event)) return;
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
}

/** The large place to drop on, for the start page. */
export const dropPlace = () =>
  el(
    "div",
    { class: "drop-place" },
    el("span", { class: "drop-drawing" }, icon("picture")),
    el("p", { class: "drop-words" }, "Drop a picture here, or paste one"),
    el("p", { class: "drop-doors" }, doors()),
    el("p", { class: "drop-note" }, "Several pictures of one thing make one search. None is kept."),
  );
