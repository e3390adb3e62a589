/* A picture of points on a canvas: pan, zoom, pinch, hover, and keys that step from point to point.
   Points (x, y of any scale) in; events "hover", "choose" and "view" out. */

const MARGIN = 0.08; // of the plot, around all points
const NEAR = 14; // pixels from the pointer to a point
const FARTHEST = 60; // times the first zoom
const TURN = Math.PI * (3 - Math.sqrt(5)); // each next of a stack, as seeds in a sunflower
const SEED = 3.6; // pixels between the points of a stack at the first zoom
const WIDEST = 30; // pixels from the middle of a stack to its edge
const THUMBS = 36; // so few points in sight are drawn as pictures

export class Plot extends EventTarget {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Array<{id: string, x: number, y: number, group: number}>} points
   * @param {object} look `colour(group)`, `ink()`, and `image(point)`: the address of a picture.
   */
  constructor(canvas, points, look) {
    super();
    this.canvas = canvas;
    this.points = points;
    this.look = look;
    this.lit = null; // the group that stands out
    this.current = null; // the point under the pointer or the keys
    this.scale = 1;
    this.shift = { x: 0, y: 0 };
    this.pictures = new Map();
    this.#frame();
    this.#listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(canvas);
    this.life = new AbortController();
    const { signal } = this.life;
    addEventListener("themechange", () => this.draw(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), {
      signal,
    });
  }

  stop() {
    this.observer.disconnect();
    this.life.abort();
  }

  #frame() {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of this.points) {
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [low, high] = [Math.min(low, y), Math.max(high, y)];
    }
    const [width, height] = [right - left || 1, high - low || 1];
    // From the middle: an axis along which nothing varies has its points in the middle too.
    this.box = {
      left: (left + right - width) / 2,
      low: (low + high - height) / 2,
      width,
      height,
    };
    this.#spread();
  }

  /** Images of one code have one place: lay them side by side, or all but one would be hidden. */
  #spread() {
    const stacks = new Map();
    for (const point of this.points) {
      const key = `${point.x.toPrecision(5)} ${point.y.toPrecision(5)}`;
      if (stacks.has(key)) stacks.get(key).push(point);
      else stacks.set(key, [point]);
    }
    for (const stack of stacks.values()) {
      const gap = Math.min(SEED, WIDEST / Math.sqrt(stack.length));
      stack.forEach((point, place) => {
        const far = place === 0 ? 0 : gap * Math.sqrt(place + 0.5);
        point.dx = far * Math.cos(place * TURN);
        point.dy = far * Math.sin(place * TURN);
      });
    }
  }

  /** Where a point lies on the canvas, in CSS pixels. */
  place(point) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const room = 1 - 2 * MARGIN;
    const unit = Math.min((width * room) / this.box.width, (height * room) / this.box.height);
    const x = (point.x - this.box.left - this.box.width / 2) * unit + point.dx;
    const y = (point.y - this.box.low - this.box.height / 2) * -unit + point.dy;
    return {
      x: width / 2 + (x + this.shift.x) * this.scale,
      y: height / 2 + (y + this.shift.y) * this.scale,
    };
  }

  inSight(point) {
    const { x, y } = this.place(point);
    return x >= 0 && y >= 0 && x <= this.canvas.clientWidth && y <= this.canvas.clientHeight;
  }

  /** The points in sight, nearest to the middle first. */
  seen(most) {
    const [cx, cy] = [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2];
    return this.points
      .filter((point) => (this.lit === null || point.group === this.lit) && this.inSight(point))
      .map((point) => ({ point, at: this.place(point) }))
      .sort((a, b) => Math.hypot(a.at.x - cx, a.at.y - cy) - Math.hypot(b.at.x - cx, b.at.y - cy))
      .slice(0, most)
      .map(({ point }) => point);
  }

  zoom(factor, at = null) {
    const next = Math.min(FARTHEST, Math.max(1, this.scale * factor));
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const [x, y] = at ? [at.x - width / 2, at.y - height / 2] : [0, 0];
    // What lies under the pointer stays there.
    this.shift.x += x / next - x / this.scale;
    this.shift.y += y / next - y / this.scale;
    this.scale = next;
    if (next === 1) this.shift = { x: 0, y: 0 };
    this.#moved();
  }

  pan(dx, dy) {
    this.shift.x += dx / this.scale;
    this.shift.y += dy / this.scale;
    this.#moved();
  }

  fit() {
    this.scale = 1;
    this.shift = { x: 0, y: 0 };
    this.#moved();
  }

  light(group) {
    this.lit = group;
    this.#moved();
  }

  #moved() {
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.dispatchEvent(new Event("view")), 150);
  }

  draw() {
    const { canvas } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    if (
      canvas.width !== Math.round(width * ratio) ||
      canvas.height !== Math.round(height * ratio)
    ) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const brush = canvas.getContext("2d");
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    brush.clearRect(0, 0, width, height);
    const shown = this.points.filter((point) => this.inSight(point));
    if (this.scale > 1.5 && shown.length <= THUMBS) this.#drawPictures(brush, shown);
    else this.#drawDots(brush, shown);
    if (this.current) this.#drawRing(brush, this.current);
  }

  #drawDots(brush, shown) {
    const size =
      Math.max(2, Math.min(5, 70 / Math.sqrt(this.points.length))) + Math.log2(this.scale) / 2;
    const back = shown.filter((point) => this.lit !== null && point.group !== this.lit);
    const front = shown.filter((point) => this.lit === null || point.group === this.lit);
    for (const [points, alpha] of [
      [back, 0.12],
      [front, 0.8],
    ]) {
      brush.globalAlpha = alpha;
      for (const point of points) {
        const { x, y } = this.place(point);
        brush.fillStyle = this.look.colour(point.group);
        brush.beginPath();
        brush.arc(x, y, size, 0, 2 * Math.PI);
        brush.fill();
      }
    }
    brush.globalAlpha = 1;
  }

  #drawPictures(brush, shown) {
    const side = 60;
    for (const point of shown) {
      const { x, y } = this.place(point);
      const image = this.#image(point);
      brush.globalAlpha = this.lit === null || point.group === this.lit ? 1 : 0.25;
      brush.fillStyle = this.look.colour(point.group);
      brush.fillRect(x - side / 2 - 2, y - side / 2 - 2, side + 4, side + 4);
      if (image.complete && image.naturalWidth)
        brush.drawImage(image, x - side / 2, y - side / 2, side, side);
    }
    brush.globalAlpha = 1;
  }

  #image(point) {
    let image = this.pictures.get(point.id);
    if (!image) {
      image = new Image();
      image.addEventListener("load", () => this.draw());
      image.src = this.look.image(point);
      this.pictures.set(point.id, image);
    }
    return image;
  }

  #drawRing(brush, point) {
    const { x, y } = this.place(point);
    brush.strokeStyle = this.look.ink();
    brush.lineWidth = 2.5;
    brush.beginPath();
    brush.arc(x, y, 9, 0, 2 * Math.PI);
    brush.stroke();
  }

  /** The nearest point within reach of a place on the canvas, or null. */
  near({ x, y }, reach = NEAR) {
    let best = null;
    let least = reach;
    for (const point of this.points) {
      if (this.lit !== null && point.group !== this.lit) continue;
      const at = this.place(point);
      const distance = Math.hypot(at.x - x, at.y - y);
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  point(point) {
    if (point === this.current) return;
    this.current = point;
    this.draw();
    this.dispatchEvent(new CustomEvent("hover", { detail: point }));
  }

  /** The next point in a direction, by distance and by how far it lies off the way. */
  #towards(dx, dy) {
    if (!this.current || !this.inSight(this.current)) return this.seen(1)[0] ?? null;
    const from = this.place(this.current);
    let best = null;
    let least = Infinity;
    for (const point of this.points) {
      if (point === this.current || !this.inSight(point)) continue;
      if (this.lit !== null && point.group !== this.lit) continue;
      const at = this.place(point);
      const along = (at.x - from.x) * dx + (at.y - from.y) * dy;
      const off = Math.abs((at.x - from.x) * dy - (at.y - from.y) * dx);
      if (along <= 0.5) continue;
      const cost = along + 3 * off;
      if (cost < least) [best, least] = [point, cost];
    }
    return best ?? this.current;
  }

  #listen() {
    const { canvas } = this;
    const fingers = new Map();
    let moved = 0;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, at(event));
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = at(event);
      const before = fingers.get(event.pointerId);
      if (!before) {
        this.point(this.near(now));
        return;
      }
      const [dx, dy] = [now.x - before.x, now.y - before.y];
      moved += Math.hypot(dx, dy);
      if (fingers.size === 2) {
        const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
        const apart = (a) => Math.hypot(a.x - other.x, a.y - other.y) || 1;
        this.zoom(apart(now) / apart(before), {
          x: (now.x + other.x) / 2,
          y: (now.y + other.y) / 2,
        });
      } else if (moved > 4) this.pan(dx, dy);
      fingers.set(event.pointerId, now);
    });
    const up = (event) => {
      if (!fingers.delete(event.pointerId) || moved > 4 || event.type !== "pointerup") return;
      const touch = event.pointerType !== "mouse";
      const found = this.near(at(event), touch ? 2 * NEAR : NEAR);
      // A finger cannot hover: its first tap shows the point, the second opens it.
      if (found && (!touch || found === this.current)) this.#choose(found);
      else this.point(found);
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => fingers.size || this.point(null));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * 0.0016), at(event));
      },
      { passive: false },
    );
    canvas.addEventListener("dblclick", (event) => this.zoom(2, at(event)));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    const way = ways[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (way && event.shiftKey) this.pan(-60 * way[0], -60 * way[1]);
    else if (way) this.point(this.#towards(...way));
    else if (event.key === "+" || event.key === "=")
      this.zoom(1.5, this.current && this.place(this.current));
    else if (event.key === "-") this.zoom(1 / 1.5, this.current && this.place(this.current));
    else if (event.key === "0") this.fit();
    else if (event.key === "Enter" && this.current) this.#choose(this.current);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #choose(point) {
    this.dispatchEvent(new CustomEvent("choose", { detail: point }));
  }
}
