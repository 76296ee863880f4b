// A text with every token in its colour. What the screen holds comes first, the rest of it in the frames after. A long text
// is cut into blocks that are filled only while they are near the eye, so that a megabyte scrolls as lightly as a line.

import { announce, h, painted } from "./dom.js";
import { hex, inline } from "./pieces.js";

const WHOLE = 6000;
const BLOCK = 1500;
const REST = 2500;  // tokens in a frame, of all texts together
const COLOURS = 6;
const LINES = 22;  // as many as the box is high
const CHARACTER = 8.4;
const MOST_LINES = 600_000;  // higher elements than these the browser would cut off

let texts = 0;

export class Coloured {
  constructor(label, { onpick } = {}) {
    texts++;
    this.onpick = onpick;
    this.active = -1;
    this.tokenized = null;
    this.blocks = [];
    this.columns = 160;
    this.scrolled = false;
    this.element = h("div", {
      class: "coloured", tabindex: 0, role: "group", "aria-label": label,
      "aria-description": "Arrow keys move from token to token, Enter opens one.",
      onkeydown: (event) => this.key(event),
      onpointerover: (event) => this.point(event),
      onpointerleave: () => tip.hide(),
      onblur: () => tip.hide(),
      onscroll: () => { this.scrolled = this.element.scrollTop > 0; },
      onclick: (event) => { const place = this.place(event.target); if (place >= 0) this.pick(place); },
    });
    this.watch = new IntersectionObserver((entries) => entries.forEach((entry) => this.near(entry)), { root: this.element, rootMargin: "1200px" });
    this.resized = new ResizeObserver(([{ contentRect }]) => {
      this.columns = Math.max(10, Math.floor(contentRect.width / CHARACTER));
      this.estimate();
    });
    this.resized.observe(this.element);
  }

  close() {
    texts--;
    [this.tokenized, this.blocks] = [null, []];
    this.watch.disconnect();
    this.resized.disconnect();
    tip.hide();
  }

  clear() {
    this.watch.disconnect();
    [this.tokenized, this.blocks, this.active] = [null, [], -1];
    this.element.replaceChildren();
  }

  /** Resolves when all that will be in the document is painted; to false where another text came first. */
  show(tokenized, signs, asIds = false) {
    const before = this.tokenized?.length <= WHOLE && this.signs === signs && this.asIds === asIds ? this.tokenized : null;
    this.tokenized = tokenized;
    this.signs = signs;
    this.asIds = asIds;
    this.active = -1;
    this.element.classList.toggle("ids", asIds);
    if (tokenized.length > WHOLE) {
      this.watch.disconnect();
      this.cut();
      this.element.replaceChildren(...this.blocks.map((block) => block.element));
      this.estimate();
      this.blocks.forEach((block) => this.watch.observe(block.element));
      const first = this.scrolled ? [] : this.blocks.filter(({ start }) => tokenized.starts[start] < LINES * this.columns);
      first.forEach((block) => this.near({ target: block.element, isIntersecting: true }));
    } else if (!before || !this.mend(before)) {
      this.begin();
    }
    return this.follow(this.blocks[0]);
  }

  /** A fresh element for a fresh text: the browser would compare thousands of tokens with those that stood there before. */
  begin() {
    this.watch.disconnect();
    this.blocks = [];
    const block = this.block(0, this.tokenized.length);
    block.filled = true;
    block.element.append(this.spans(0, block.stop, 0, this.scrolled ? Infinity : LINES));
    this.element.replaceChildren(block.element);
  }

  async follow(block) {
    for (;;) {
      await painted();
      if (block !== this.blocks[0]) return false;
      if (!block.filled || !this.add(block, Math.ceil(REST / texts))) return true;
    }
  }

  /** The next tokens of a block, no more than a number of them; says how many there were. */
  add({ element, start, stop }, most) {
    const from = start + element.children.length, to = Math.min(from + most, stop);
    if (from < to) element.append(this.spans(from, to));
    return to - from;
  }

  /** Typing changes little: the tokens before and after the change keep their elements. False where most would change. */
  mend(before) {
    const { ids } = this.tokenized, [block] = this.blocks, { element } = block, spans = element.children;
    if (spans.length !== before.length) return false;
    const same = Math.min(ids.length, before.length);
    let head = 0, tail = 0;
    while (head < same && ids[head] === before.ids[head]) head++;
    while (tail < same - head && ids[ids.length - 1 - tail] === before.ids[before.length - 1 - tail]) tail++;
    if (2 * (head + tail) < ids.length) return false;
    const range = document.createRange();
    range.setStart(element, head);
    range.setEnd(element, before.length - tail);
    range.deleteContents();
    const first = head ? colourOf(spans[head - 1]) + 1 : 0;
    const after = spans[head];
    const fresh = this.spans(head, ids.length - tail, first);
    const last = fresh.lastChild;
    if (last && after && colourOf(last) === colourOf(after)) last.className = last.className.replace(/c\d/, `c${(colourOf(last) + 3) % COLOURS}`);
    element.insertBefore(fresh, after ?? null);
    block.stop = ids.length;
    return true;
  }

  block(start, stop, lines = 0) {
    const block = { element: h("div", { class: "block" }), start, stop, lines, filled: false };
    block.element.block = this.blocks.push(block) - 1;
    return block;
  }

  /** Blocks end where a line does, if one does near enough; a text of one line gets breaks between blocks. */
  cut() {
    const { tokenized } = this;
    this.blocks = [];
    for (let start = 0; start < tokenized.length;) {
      let stop = Math.min(start + BLOCK, tokenized.length);
      const limit = Math.min(start + 2 * BLOCK, tokenized.length);
      for (let i = stop; i < limit; i++) {
        if (tokenized.bytes(i - 1).at(-1) === 10) { stop = i; break; }
      }
      let lines = 0;
      for (let i = start; i < stop; i++) if (tokenized.bytes(i).at(-1) === 10) lines++;
      this.block(start, stop, lines);
      start = stop;
    }
  }

  estimate() {
    if (!this.blocks.length) return;
    const { columns } = this;
    const lines = this.blocks.map(({ start, stop, lines }) => Math.max(lines, (this.tokenized.starts[stop] - this.tokenized.starts[start]) / columns * 1.25 + 1));
    const scale = Math.min(1, MOST_LINES / lines.reduce((sum, value) => sum + value, 0));
    this.blocks.forEach((block, i) => { if (!block.filled) block.element.style.setProperty("min-height", `${Math.ceil(lines[i] * scale) * 1.75}em`); });
  }

  near({ target, isIntersecting }) {
    const block = this.blocks[target.block];
    if (!block || block.element !== target || block.filled === isIntersecting) return;
    if (isIntersecting) {
      block.filled = true;
      this.add(block, Infinity);
      target.style.removeProperty("min-height");
    } else {
      target.style.setProperty("min-height", `${target.offsetHeight}px`);
      block.filled = false;
      target.replaceChildren();
    }
  }

  /** Elements for the tokens from `start` to `stop`, or for so many lines of them. */
  spans(start, stop, colour = start, lines = Infinity) {
    const { tokenized, signs, asIds, columns } = this;
    const fragment = document.createDocumentFragment();
    for (let i = start, used = 0; i < stop && used < lines * columns; i++) {
      const look = tokenized.look(i, signs), ends = tokenized.bytes(i).at(-1) === 10;
      const text = !asIds ? look.text : ends ? `${tokenized.ids[i]}\n` : `${tokenized.ids[i]}`;
      const span = document.createElement("span");
      span.className = `t c${colour++ % COLOURS}${look.raw ? " raw" : ""}`;
      span.textContent = text;
      fragment.append(span);
      used += text.length;
      if (ends) used = Math.ceil(used / columns) * columns;
    }
    return fragment;
  }

  place(node) {
    if (!node?.classList?.contains("t")) return -1;
    return this.blocks[node.parentElement.block].start + Array.prototype.indexOf.call(node.parentElement.children, node);
  }

  span(place) {
    const block = this.blocks.find((b) => b.start <= place && place < b.stop);
    if (!block.filled) this.near({ target: block.element, isIntersecting: true });
    this.add(block, Infinity);
    return block.element.children[place - block.start];
  }

  point(event) {
    const place = this.place(event.target);
    if (place >= 0) tip.show(this.describe(place), event.target);
    else tip.hide();
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && this.active >= 0) this.pick(this.active);
    else if (event.key === "Escape") tip.hide();
    else if (event.key in steps && this.tokenized?.length) {
      event.preventDefault();
      this.move(Math.max(0, Math.min(this.tokenized.length - 1, this.active + steps[event.key])));
    }
  }

  move(place) {
    this.element.querySelector(".t.active")?.classList.remove("active");
    this.active = place;
    const span = this.span(place);
    span.classList.add("active");
    span.scrollIntoView({ block: "nearest" });
    tip.show(this.describe(place), span);
    const bytes = this.tokenized.bytes(place);
    announce(`Token ${place + 1} of ${this.tokenized.length}: ${inline(bytes)}, id ${this.tokenized.ids[place]}, bytes ${hex(bytes)}`);
  }

  pick(place) {
    this.element.querySelector(".t.active")?.classList.remove("active");
    this.active = place;
    this.span(place)?.classList.add("active");
    this.onpick?.(place);
  }

  describe(place) {
    const bytes = this.tokenized.bytes(place);
    return [
      h("b", { class: "mono" }, inline(bytes)),
      h("span", {}, "id ", h("b", { class: "number" }, this.tokenized.ids[place])),
      h("span", { class: "mono" }, hex(bytes)),
      h("span", { class: "muted" }, `token ${place + 1}, byte ${this.tokenized.starts[place]}`),
    ];
  }
}

const colourOf = (span) => Number(span.className[3]);

/** One small card for all panels, beside what it explains. */
export const tip = {
  element: null,
  show(children, beside) {
    this.element ??= document.body.appendChild(h("div", { class: "tip", role: "tooltip" }));
    this.element.replaceChildren(...children);
    this.element.hidden = false;
    const place = beside.getClientRects()[0] ?? beside.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8));
    const above = place.top - height - 8;
    this.element.style.left = `${left}px`;
    this.element.style.top = `${above > 8 ? above : place.bottom + 8}px`;
  },
  hide() { if (this.element) this.element.hidden = true; },
};
