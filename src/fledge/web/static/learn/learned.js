// What the checkpoints of one run said, and the pane that shows one of them: its text, its losses, a token's neighbours.

import { label } from "../api.js";
import { h, redraw, show } from "../dom.js";
import { count, fixed } from "../format.js";
import { asPicture, paint } from "../pictures.js";
import { fromBase64, inline, looks } from "../pieces.js";

const percent = (logprob) => { const p = 100 * Math.exp(logprob); return p >= 10 ? `${p.toFixed(0)} %` : p >= 0.1 ? `${p.toFixed(1)} %` : "< 0.1 %"; };
const doubt = (logprob) => String(Math.min(1, -(logprob ?? 0) / 5));
const ENDS = { end: "The text came to its end.", stop: "A stop text was reached." };

export class Learned {
  constructor(run, colour, { onchoose, ongo }) {
    Object.assign(this, { run, colour, onchoose, ongo, begun: false, steps: [], told: new Map(), nearest: new Map(), newest: null, step: null, place: -1, notes: [] });
    this.facts = h("p", { class: "small muted number" });
    this.problem = h("p", { class: "small problem", hidden: true });
    this.written = h("div", { class: "written learned-text" });
    this.ended = h("p", { class: "small muted" });
    this.reading = h("div", { class: "looked", tabindex: 0, role: "group", "aria-label": `Text read by ${label(run)}`, "aria-description": "Arrow keys walk from token to token.",
      onclick: (event) => { const place = event.target.closest(".g")?.place; if (place !== undefined) this.chosen(place); }, onkeydown: (event) => this.key(event) });
    this.story = "";
    this.line = h("p", { class: "small" });
    this.picture = h("canvas", { class: "strip", role: "img", "aria-label": "Probability of each token, a row for each checkpoint" });
    this.marker = h("i", { class: "marker", "aria-hidden": "true" });
    this.history = h("div", { class: "learned-picture", onclick: (event) => this.point(event) }, this.picture, this.marker);
    this.neighbours = h("div", { class: "neighbours" });
    this.read = h("section", { class: "stack read", "aria-label": "What surprises it" }, h("h3", {}, "What surprises it"), this.reading, this.line, this.history,
      h("p", { class: "small muted" }, "In the picture a row is a checkpoint, the newest at the bottom, and a column a token: the deeper, the surer the model was of it. Choose a token for its neighbours, a row for its checkpoint."));
    this.near = h("section", { class: "stack near", "aria-label": "Nearest words" }, this.nearestHead = h("h3", {}), this.neighbours);
    this.writes = h("section", { class: "stack writes", "aria-label": "What it writes" }, h("h3", {}, "What it writes"), this.written, this.ended);
    this.element = h("article", { class: "card stack learned", "aria-label": label(run) },
      h("div", {}, h("h2", {}, h("i", { class: `key series-${colour}` }), label(run)), this.facts), this.problem, h("div", { class: "learned-parts" }, this.writes, this.read, this.near));
  }

  start(event, prompt, token) {
    this.begun = true;
    this.prompt = prompt;
    this.steps = event.checkpoints.map((each) => each.step);
    this.validation = event.checkpoints.map((each) => each.validation_loss);
    this.total = event.steps ?? this.steps.at(-1);
    this.pieces = event.tokens.map((each) => fromBase64(each.bytes));
    this.ids = event.tokens.map((each) => each.id);
    this.offsets = this.pieces.reduce((all, bytes) => [...all, all.at(-1) + bytes.length], [0]);
    this.place = this.ids.indexOf(token);
    this.notes = [event.note, event.left_out ? `${count(event.left_out)} more checkpoints lie between these.` : "", this.steps.length < 2 ? `${label(this.run)} kept one checkpoint: training.keep_every keeps more on the way.` : ""].filter(Boolean);
    this.read.hidden = this.near.hidden = !this.ids.length;
    const shown = looks(this.pieces);
    this.spans = shown.map(({ text, raw }, place) => Object.assign(h("span", { class: raw ? "g raw" : "g" }, text), { place }));
    show(this.reading, this.spans);
  }

  tell(event) {
    this.told.set(event.step, event);
    this.newest = event.step;
    if (event.nearest) this.keepNearest(event, this.token);
    this.paint();
  }

  keepNearest({ step, nearest }, token) { this.nearest.set(`${token} ${step}`, nearest); }

  get token() { return this.ids[this.place]; }

  /** Whether neighbours of the chosen token are still to be asked for. */
  get lacking() { return this.token !== undefined && this.steps.some((step) => !this.nearest.has(`${this.token} ${step}`)); }

  get words() {
    const loss = this.loss(this.told.get(this.step)), at = this.validation[this.steps.indexOf(this.step)];
    return [`step ${count(this.step)}`, this.total && this.step <= this.total ? `${Math.round((100 * this.step) / this.total)} %` : null, at !== null ? `validation loss ${fixed(at)}` : null, loss !== null ? `this text ${fixed(loss)}` : null].filter(Boolean).join(" · ");
  }

  /** The mean loss of the text at a checkpoint. */
  loss(event) {
    const known = (event?.logprobs ?? []).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum - value, 0) / known.length : null;
  }

  curves(along, several) {
    const name = several ? `${label(this.run)}, ` : "", text = this.steps.map((step) => this.loss(this.told.get(step)) ?? NaN);
    return [{ name: `${name}this text`, colour: this.colour, xs: this.steps.map(along), ys: text, dots: true },
      { name: `${name}validation`, colour: this.colour, xs: this.steps.map(along), ys: this.validation.map((value) => value ?? NaN), dashed: true }];
  }

  choose(step) { this.step = step; }

  chosen(place) { this.onchoose(this.offsets[place]); }

  /** The token that holds a byte of the text. */
  pick(offset) { this.place = Math.max(0, this.offsets.findLastIndex((start, place) => place < this.ids.length && start <= offset)); }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    this.chosen(Math.max(0, Math.min(this.ids.length - 1, this.place + by)));
    this.spans[this.place].scrollIntoView({ block: "nearest" });
  }

  point(event) {
    const box = this.picture.getBoundingClientRect(), row = Math.floor(((event.clientY - box.top) / box.height) * this.steps.length);
    if (row >= 0 && row < this.steps.length) this.ongo(this.steps[row], this);
  }

  /** All checkpoints at once: how likely each found each token. */
  paint() {
    if (this.begun && this.ids.length) paint(this.picture, asPicture(this.steps.map((step) => (this.told.get(step)?.logprobs ?? this.ids.map(() => null)).map((value) => (value === null ? 0 : Math.exp(value))))));
  }

  draw() {
    const event = this.told.get(this.step), row = this.steps.indexOf(this.step);
    this.facts.textContent = event ? this.words : `${this.words} · not asked yet`;
    this.problem.hidden = !event?.problem;
    this.problem.textContent = event?.problem ?? "";
    redraw(this.written, [this.step, Boolean(event)], () => this.drawWritten(event));
    this.ended.textContent = ENDS[event?.written?.stopped] ?? "";
    this.spans.forEach((span, place) => {
      const logprob = event?.logprobs?.[place] ?? null;
      span.style.setProperty("--doubt", doubt(logprob));
      span.title = logprob === null ? "" : percent(logprob);
      span.classList.toggle("active", place === this.place);
    });
    this.marker.style.setProperty("top", `${(100 * row) / this.steps.length}%`);
    this.marker.style.setProperty("height", `${100 / this.steps.length}%`);
    this.picture.style.setProperty("height", `${Math.min(14, Math.max(3, 0.9 * this.steps.length))}rem`);
    this.tellStory();
    this.drawNearest();
  }

  drawWritten(event) {
    const tokens = event?.written?.tokens ?? [], shown = looks(tokens.map((token) => fromBase64(token.bytes)));
    show(this.written, h("span", { class: "prompt" }, this.prompt), tokens.map((token, place) => h("span", { class: shown[place].raw ? "g raw" : "g", title: percent(token.logprob), style: { "--doubt": doubt(token.logprob) } }, shown[place].text)));
  }

  /** How the chosen token became likelier over the checkpoints, in a line. */
  tellStory() {
    const known = this.steps.map((step) => [step, this.told.get(step)?.logprobs?.[this.place] ?? null]).filter(([, value]) => value !== null);
    this.story = "";
    if (this.place >= 0 && this.place < this.ids.length) {
      const name = `“${inline(this.pieces[this.place])}”`, now = this.told.get(this.step)?.logprobs?.[this.place] ?? null;
      this.story = !known.length ? `${name} stands first: nothing told of it.` : `${name}: ${percent(known[0][1])} at step ${count(known[0][0])}${now !== null && this.step !== known[0][0] && this.step !== known.at(-1)[0] ? `, ${percent(now)} here` : ""}${known.length > 1 ? `, ${percent(known.at(-1)[1])} at step ${count(known.at(-1)[0])}` : ""}.`;
    }
    this.line.textContent = this.story;
  }

  drawNearest() {
    const found = this.nearest.get(`${this.token} ${this.step}`), before = this.nearest.get(`${this.token} ${this.steps[this.steps.indexOf(this.step) - 1]}`);
    redraw(this.neighbours, [this.token, this.step, found, before], () => {
      const old = new Set((before ?? found ?? []).map((each) => each.id));
      show(this.nearestHead, this.token === undefined ? "" : [`Nearest to “${inline(this.pieces[this.place])}” `, h("span", { class: "small muted" }, "by the cosine of their embeddings; in colour what is new here")]);
      show(this.neighbours, found ? found.map((each) => h("div", { class: old.has(each.id) ? "neighbour" : "neighbour fresh" }, h("code", { title: `id ${each.id}` }, inline(fromBase64(each.bytes))),
        h("span", { class: "bar" }, h("i", { style: { width: `${100 * Math.max(0, each.cosine)}%` } })), h("span", { class: "number small" }, fixed(each.cosine, 2)),
        old.has(each.id) ? null : h("span", { class: "unseen" }, "new here"))) : h("p", { class: "small muted" }, "Not known yet."));
    });
  }
}
