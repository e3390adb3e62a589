/* The address is the state: what follows # says what is shown, filters and all.

   #/  #/id/<id>  #/code/<hex>  #/upload  #/map  #/codebooks  #/codebooks/<book>/<word>  #/audit/<kind>
   and after "?": label (again and again), f=<field>:<operator>:<value>, where, why=<id of a hit>,
   more=<id> and less=<id> (again and again): images that hits are to be like, or not
*/

/** How a field can be compared: what people read, and the SQL that the gallery reads. */
export const OPERATORS = {
  is: { words: "is", sql: (name, value) => `${name} = ${value}` },
  not: { words: "is not", sql: (name, value) => `${name} != ${value}` },
  least: { words: "at least", sql: (name, value) => `${name} >= ${value}` },
  most: { words: "at most", sql: (name, value) => `${name} <= ${value}` },
  has: { words: "contains", sql: (name, value) => `${name} ILIKE ${anywhere(value)}` },
};

/** A pattern for a text literal anywhere; what would be a wildcard in it is meant as it stands. */
function anywhere(text) {
  return `'%${text.slice(1, -1).replace(/[%_\\]/g, "\\$&")}%'`;
}

/** "text", "number", "truth" or "time", from the name of a column's type. */
export function kindOf(type) {
  const name = String(type).toLowerCase();
  if (name.startsWith("bool")) return "truth";
  if (/^(u?int|float|double|half|decimal|number)/.test(name)) return "number";
  if (/^(date|timestamp|time)/.test(name)) return "time";
  return "text";
}

export const operatorsOf = (kind) =>
  ({ truth: ["is"], number: ["is", "not", "least", "most"], time: ["least", "most"] })[kind] ?? [
    "is",
    "not",
    "has",
  ];

function literal(value, type) {
  const kind = kindOf(type);
  if (kind === "number" && Number.isFinite(Number(value))) return String(Number(value));
  if (kind === "truth") return value === "true" ? "true" : "false";
  const text = `'${value.replaceAll("'", "''")}'`;
  if (kind === "time") return `${String(type).startsWith("date") ? "date" : "timestamp"} ${text}`;
  return text;
}

/** The gallery's expression for the filters of a route, or "". */
export function whereOf(route, fields) {
  const parts = route.fields
    .filter(({ name, operator }) => fields.some((one) => one.name === name) && OPERATORS[operator])
    .map(({ name, operator, value }) => {
      const { type } = fields.find((one) => one.name === name);
      return OPERATORS[operator].sql(name, literal(value, type));
    });
  if (route.where) parts.push(parts.length ? `(${route.where})` : route.where);
  return parts.join(" AND ");
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lone % typed by hand
  }
}

/** Read an address; anything unknown is the start. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const [, view = "", ...rest] = path.split("/");
  const params = new URLSearchParams(query);
  const route = {
    view: "home",
    labels: [...new Set(params.getAll("label"))],
    fields: params.getAll("f").flatMap((text) => {
      const [name, operator, ...value] = text.split(":");
      return value.length ? [{ name, operator, value: value.join(":") }] : [];
    }),
    where: (params.get("where") ?? "").trim(),
    why: params.get("why"),
    more: [...new Set(params.getAll("more"))],
    less: [...new Set(params.getAll("less"))],
  };
  const value = decode(rest.join("/"));
  if (view === "id" && value) return { ...route, view: "search", kind: "id", value };
  if (view === "code" && /^([0-9a-f]{2})+$/i.test(value)) {
    return { ...route, view: "search", kind: "code", value: value.toLowerCase() };
  }
  if (view === "upload") return { ...route, view: "search", kind: "upload", value: "" };
  if (view === "map") return { ...route, view: "map" };
  if (view === "audit") {
    return { ...route, view: "audit", kind: rest[0] || "copies", token: params.get("token") ?? "" };
  }
  if (view === "codebooks") {
    const [book, word] = rest.map(Number);
    const known = rest.length === 2 && Number.isInteger(book) && Number.isInteger(word);
    return {
      ...route,
      view: "codebooks",
      book: known ? book : book || 0,
      word: known ? word : null,
    };
  }
  return route;
}

/** Write an address. */
export function format(route) {
  const params = new URLSearchParams();
  for (const label of route.labels ?? []) params.append("label", label);
  for (const { name, operator, value } of route.fields ?? []) {
    params.append("f", `${name}:${operator}:${value}`);
  }
  if (route.where) params.append("where", route.where);
  if (route.why) params.append("why", route.why);
  for (const id of route.more ?? []) params.append("more", id);
  for (const id of route.less ?? []) params.append("less", id);
  const query = params.size ? `?${params}` : "";
  if (route.view === "search" && route.kind === "upload") return `#/upload${query}`;
  if (route.view === "search") return `#/${route.kind}/${encodePath(route.value)}${query}`;
  if (route.view === "map") return `#/map${query}`;
  if (route.view === "audit") return route.kind === "copies" ? "#/audit" : `#/audit/${route.kind}`;
  if (route.view === "codebooks") {
    return route.word === null || route.word === undefined
      ? `#/codebooks${route.book ? `/${route.book}` : ""}`
      : `#/codebooks/${route.book}/${route.word}`;
  }
  return `#/${query}`;
}

// Ids are paths: their slashes may stay as they are, and the address stays readable.
const encodePath = (text) => text.split("/").map(encodeURIComponent).join("/");

/** The address that searches from an image and keeps the filters. */
export const fromImage = (id, { labels = [], fields = [], where = "" } = {}) =>
  format({ view: "search", kind: "id", value: id, labels, fields, where });

export const hasFilters = (route) =>
  route.labels.length > 0 || route.fields.length > 0 || route.where !== "";
