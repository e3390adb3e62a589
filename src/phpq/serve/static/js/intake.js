/* Ways a picture gets in: drop, paste, a file, the camera. A checked file out, or words why not. */

import { bytesText, button, el, icon } from "./dom.js";
import { toast } from "./notify.js";
import { facts, shrink } from "./store.js";

const ENDINGS = /\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic|heif|ppm|jp2)$/i;
const LONGEST_SIDE = 1600; // of a picture made smaller: far more than any model looks at

let deliver = () => {};

/** Listen for pictures everywhere on the page. */
export function listen(receive) {
  deliver = receive;
  for (const id of ["pick", "camera"]) {
    const input = document.getElementById(id);
    input.addEventListener("change", () => {
      const [file] = input.files;
      if (file) take(file);
      input.value = ""; // so that the same file can be picked again
    });
  }
  document.addEventListener("paste", onPaste);
  dropping();
}

export const pick = () => document.getElementById("pick").click();
export const camera = () => document.getElementById("camera").click();

/** Buttons that let a picture in; `camera` shows on touch screens only. */
export const doors = (weight = "strong") => [
  button("Choose a picture", { class: `button ${weight}`, on: { click: pick } }, icon("picture")),
  button("Take a photo", { class: "button camera", on: { click: camera } }, icon("camera")),
];

async function take(file) {
  const isPicture = file.type.startsWith("image/") || (!file.type && ENDINGS.test(file.name));
  if (!isPicture) {
    const kind = file.type ? ` (${file.type})` : "";
    toast(`“${file.name}”${kind} is not a picture. Use a JPEG, PNG or WebP file.`, "bad");
    return;
  }
  if (file.size === 0) {
    toast(`“${file.name}” is empty. Choose another picture.`, "bad");
    return;
  }
  const limit = facts.info?.limits?.max_upload_bytes ?? Infinity;
  if (file.size <= limit) {
    deliver(file);
    return;
  }
  const smaller = await shrink(file, LONGEST_SIDE);
  if (smaller && smaller.size <= limit) {
    toast(`Made smaller to fit: ${bytesText(file.size)} → ${bytesText(smaller.size)}.`);
    deliver(smaller);
  } else {
    const words = `“${file.name}” has ${bytesText(file.size)}; this server takes`;
    toast(`${words} ${bytesText(limit)}. Choose a smaller picture.`, "bad");
  }
}

function onPaste(event) {
  const file = [...(event.clipboardData?.files ?? [])][0];
  if (file) {
    event.preventDefault();
    take(file);
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
    const files = [...event.dataTransfer.files];
    if (files.length > 1) toast(`${files.length} files dropped; searching with the first.`);
    if (files.length) take(files[0]);
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
    el("p", { class: "drop-note" }, "It is searched with and not kept."),
  );
