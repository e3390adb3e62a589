/* Elements from data. Texts become text nodes: nothing from the server is ever read as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element.
 * @param {string} tag Its name.
 * @param {object} [props] `class`, `data` (an object), `vars` (CSS variables), `on` (listeners);
 *   true and false for attributes without value; anything else is an attribute.
 * @param {...(Node|string|number|null|false|undefined|Array)} children What it holds.
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "vars") {
      for (const [key, number] of Object.entries(value)) node.style.setProperty(`--${key}`, number);
    } else if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child !== null && child !== undefined && child !== false) {
      node.append(child instanceof Node ? child : String(child));
    }
  }
}

/** One of the drawings of index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A button; the words are its name. */
export function button(words, props = {}, ...children) {
  return el("button", { type: "button", class: "button", ...props }, ...children, words);
}

/** A button that shows a drawing alone; the words are its name all the same. */
export function tool(words, drawing, act, props = {}) {
  const made = button("", { class: "tool", title: words, on: { click: act }, ...props }, icon(drawing));
  made.append(el("span", { class: "unseen" }, words));
  return made;
}

/** A picture of the gallery, with a drawn stand-in when it cannot be read. */
export function picture(address, props = {}) {
  const image = el("img", { src: address, alt: "", loading: "lazy", decoding: "async", ...props });
  image.addEventListener("error", () => {
    const words = image.alt ? `${image.alt}: no picture` : "";
    const stand = el("span", { class: `no-picture ${image.className}` }, icon("picture"));
    if (words) stand.append(el("span", { class: "unseen" }, words));
    image.replaceWith(stand);
  });
  return image;
}

/** The address of a thumbnail of about `size` pixels. */
export function thumbnail(item, size) {
  const base = item.thumbnail || `/api/v1/thumbnail?id=${encodeURIComponent(item.id)}`;
  return `${base}${base.includes("?") ? "&" : "?"}size=${size}`;
}

/** A label as people write it: "012.Dark_spotted_Bunting" reads "Dark spotted Bunting". */
export function labelText(label) {
  if (label === null || label === undefined || label === "") return "no label";
  const words = label
    .replace(/^\d+[._-](?=\D)/, "")
    .replaceAll("_", " ")
    .trim();
  return words || label;
}

/** The hue of one of many labels: neighbours in the list look unlike each other. */
export const hueOfMany = (place) => Math.round(225 + 137.5 * place) % 360;

/** The hue of a codebook, evenly around the circle. */
export const hueOf = (place, places) => Math.round(225 + (360 * place) / Math.max(places, 3)) % 360;

export const whole = (number) => Number(number).toLocaleString("en");
export const plural = (number, one, many = `${one}s`) =>
  `${whole(number)} ${number === 1 ? one : many}`;
export const decimals = (number, digits = 2) =>
  Number(number).toLocaleString("en", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
export const percent = (part) => `${Math.round(100 * part)} %`;
/** How likely a kind is, without a 0 % or 100 % that it is not. */
export const likely = (share) =>
  share < 0.01 ? "under 1 %" : share > 0.99 && share < 1 ? "over 99 %" : percent(share);

/** A value of the metadata as text. */
export function valueText(value) {
  if (value === null || value === undefined) return "–";
  if (value === true) return "yes";
  if (value === false) return "no";
  return String(value);
}

export function bytesText(bytes) {
  const units = ["bytes", "kB", "MB", "GB"];
  let step = 0;
  let value = bytes;
  while (value >= 1000 && step < units.length - 1) {
    value /= 1000;
    step += 1;
  }
  return `${step && value < 10 ? decimals(value, 1) : whole(Math.round(value))} ${units[step]}`;
}
