// Learn: one prompt, one text and one token, put to every checkpoint of a run; a slider goes through what they said.

import { get, label, post, stream } from "../api.js";
import { Chart } from "../chart.js";
import { announce, field, h, latest, memory, notice, options, segments, show } from "../dom.js";
import { count, plural } from "../format.js";
import { Learned } from "../learn/learned.js";
import { fromBase64 } from "../pieces.js";

const PAUSE = 900;
const WAYS = [["step", "by step"], ["share", "by share of training"]];
const NUMBERS = [["max_tokens", "Tokens at most", 1, 256, 1, 60], ["temperature", "Temperature", 0, 10, 0.05, 0], ["seed", "Seed", 0, undefined, 1, 0]];
const HEADING = ["Learn", "One prompt, one text and one token, put to every checkpoint of a run: what it writes, what surprises it, which words it holds for neighbours. Move the slider to see it learn."];

export async function open(place, query) {
  const heading = h("header", { class: "head" }, h("h1", {}, HEADING[0]), h("p", {}, HEADING[1]));
  const runs = (await get("/api/runs")).runs.filter((run) => run.checkpoints.length).sort((a, b) => (b.checkpoints.length > 1) - (a.checkpoints.length > 1));
  if (!runs.length) {
    show(place, heading, h("div", { class: "nothing" }, "No run has a checkpoint yet. ", h("a", { href: "#/train" }, "Train one"), ", and see how it learns."));
    return undefined;
  }
  const view = new Learn(place, heading, runs, query.get("run"));
  await view.begin();
  return () => view.close();
}

class Learn {
  constructor(place, heading, runs, asked) {
    const saved = memory.get("learn", {}), choices = runs.map((run) => [run.name, `${run.name} · ${plural(run.checkpoints.length, "checkpoint")}`]);
    const known = (name) => (choices.some(([value]) => value === name) ? name : undefined);
    this.runs = runs;
    this.shown = [];
    this.way = saved.way ?? "step";
    this.first = options(h("select"), choices, known(asked) ?? known(saved.first) ?? choices[0][0]);
    this.second = options(h("select"), [["", "nobody"], ...choices], known(saved.second) ?? "");
    this.prompt = h("textarea", { rows: 2, spellcheck: "false", maxlength: "20000", placeholder: "Empty: begin a new text" });
    this.text = h("textarea", { rows: 2, spellcheck: "false", maxlength: "20000", placeholder: "Empty: no loss is told" });
    this.numbers = Object.fromEntries(NUMBERS.map(([name, , min, max, step, usual]) => [name, h("input", { type: "number", min: String(min), max: max === undefined ? null : String(max), step: String(step), value: String(saved[name] ?? usual) })]));
    this.written = saved;
    this.go = h("button", { type: "submit", class: "primary" }, "Replay");
    this.halt = h("button", { type: "button", disabled: true, onclick: () => this.running?.abort() }, "Stop");
    this.form = h("form", { class: "card learn-form", noValidate: true, onsubmit: (event) => { event.preventDefault(); this.replay(); } },
      h("div", { class: "pair" }, field("Run", this.first), field("Beside it", this.second)),
      h("div", { class: "pair" }, field("Prompt that each goes on from", this.prompt), field("Text that each reads, loss by token", this.text)),
      h("div", { class: "row" }, NUMBERS.map(([name, words]) => field(words, this.numbers[name])), h("div", { class: "row level" }, this.go, this.halt)));
    this.form.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit(); });
    this.status = h("p", { class: "small muted", role: "status" });
    this.first.addEventListener("change", () => this.suggest());
    this.slider = h("input", { type: "range", min: "0", max: "0", step: "1", value: "0", "aria-label": "Checkpoint", oninput: () => { this.stay(); this.move(Number(this.slider.value)); } });
    this.where = h("output", { class: "number" });
    const button = (sign, name, to) => h("button", { type: "button", "aria-label": name, onclick: () => { this.stay(); this.move(to()); } }, sign);
    this.playing = h("button", { type: "button", onclick: () => (this.timer ? this.stay() : this.play()) }, "Play");
    this.ways = h("div");
    this.bar = h("section", { class: "card learn-bar", "aria-label": "Checkpoints" },
      h("div", { class: "row spread" }, h("div", { class: "row" }, button("‹", "Checkpoint before", () => this.at - 1), this.playing, button("›", "Checkpoint after", () => this.at + 1), this.where), this.ways), this.slider);
    this.chart = new Chart("Loss by checkpoint", 190);
    this.curves = h("section", { class: "card", "aria-label": "Loss" }, h("div", { class: "row spread" }, h("h3", {}, "Loss, nats per token"),
      h("div", { class: "legend" }, h("span", {}, h("i", { class: "full" }), "the text above"), h("span", {}, h("i", { class: "dash" }), "validation"))), this.chart.element);
    this.panes = h("div", { class: "learn-panes" });
    this.result = h("div", { class: "stack", hidden: true }, this.bar, this.panes, this.curves);
    this.askNearest = latest((offset) => this.nearest(offset), () => 150);
    this.repaint = () => this.shown.forEach((learned) => learned.paint());
    this.colours = new MutationObserver(this.repaint);
    this.colours.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", this.repaint);
    show(place, heading, h("div", { class: "stack" }, this.form, this.status, this.result));
  }

  async begin() {
    await this.suggest(true);
    this.replay();
  }

  close() {
    this.running?.abort();
    this.looking?.abort();
    this.stay();
    this.chart.close();
    this.colours.disconnect();
    this.scheme.removeEventListener("change", this.repaint);
  }

  /** A prompt and a text of the run's own, held out from it, wherever the person has not written something else. */
  async suggest(first = false) {
    const wanted = this.first.value, own = this.own ?? {};
    const found = await get("/api/bundles/sampling", { bundle: wanted }).catch(() => null);
    if (!found || this.first.value !== wanted) return;
    this.own = { prompt: found.prompt || "In the beginning", text: found.passage || "In the beginning God created the heaven and the earth." };
    for (const name of ["prompt", "text"]) {
      if (first && this.written[name] !== undefined) this[name].value = this.written[name];
      else if (first || this[name].value === own[name]) this[name].value = this.own[name];
    }
  }

  request() {
    const values = { prompt: this.prompt.value, text: this.text.value };
    for (const [name, , , , , usual] of NUMBERS) values[name] = this.numbers[name].value === "" ? usual : Number(this.numbers[name].value);
    return values;
  }

  remember() {
    const changed = Object.fromEntries(["prompt", "text"].filter((name) => this[name].value !== this.own?.[name]).map((name) => [name, this[name].value]));
    const { max_tokens, temperature, seed } = this.request();
    memory.set("learn", { first: this.first.value, second: this.second.value, way: this.way, max_tokens, temperature, seed, ...changed });
  }

  async replay() {
    if ([...this.form.elements].some((control) => control.validity.badInput && !control.reportValidity())) return;
    this.remember();
    this.running?.abort();
    this.looking?.abort();
    this.stay();
    const running = this.running = new AbortController(), began = performance.now(), asked = this.request();
    const names = [...new Set([this.first.value, this.second.value].filter(Boolean))];
    this.shown = names.map((name, i) => new Learned(name, i + 1, { onchoose: (offset) => this.choose(offset), ongo: (step, learned) => { this.stay(); this.goTo(step, learned); } }));
    this.following = true;
    this.values = null;
    this.go.disabled = true;
    this.halt.disabled = false;
    this.result.hidden = true;
    this.status.textContent = "The first checkpoint is asked…";
    const failed = [];
    const run = async (learned) => {
      try {
        const token = asked.text ? await this.longest(learned.run, asked.text) : undefined;
        for await (const event of stream("/api/learn", { run: learned.run, ...asked, token }, running.signal)) {
          if (running !== this.running) return;
          if (event.event === "start") { learned.start(event, asked.prompt, token); this.begun(); }
          else if (event.event === "checkpoint") { learned.tell(event); this.came(learned); }
          else if (event.event === "error") throw new Error(event.message);
        }
      } catch (error) {
        if (error.name !== "AbortError") failed.push(names.length > 1 ? `${label(learned.run)}: ${error.message}` : error.message);
        if (running !== this.running || learned.begun) return;
        this.shown = this.shown.filter((each) => each !== learned);  // the other one does not wait for it
        this.begun();
      }
    };
    await Promise.all(this.shown.map(run));
    if (running !== this.running) return;
    this.running = null;
    this.go.disabled = false;
    this.halt.disabled = true;
    const told = this.shown.reduce((sum, learned) => sum + learned.told.size, 0), notes = [...new Set(this.shown.flatMap((learned) => learned.notes))];
    this.status.textContent = failed.length ? failed.join(" ") : `${plural(told, "checkpoint")} in ${((performance.now() - began) / 1000).toFixed(1)} s. ${notes.join(" ")}`;
    performance.measure("replay", { start: began, end: performance.now() });
    this.stay();
    if (this.values) this.draw();
  }

  /** The id of the longest token of a text: the one whose neighbours are shown first. */
  async longest(run, text) {
    const tokenizer = `${run}/checkpoints/${this.runs.find((each) => each.name === run).checkpoints[0]}`;
    const found = (await post("/api/tokens", { text: text.slice(0, 2000), tokenizers: [tokenizer] }).catch(() => null))?.results[0];
    if (!found?.pieces) return undefined;
    return Number(Object.entries(found.pieces).sort(([, a], [, b]) => fromBase64(b).length - fromBase64(a).length)[0]?.[0]);
  }

  begun() {
    if (!this.shown.length || !this.shown.every((learned) => learned.begun)) return;
    show(this.ways, this.shown.length > 1 ? segments("Side by side", WAYS, this.way, (way) => { this.way = way; this.remember(); this.place(); }) : null);
    show(this.panes, this.shown.map((learned) => learned.element));
    this.result.hidden = false;
    this.place();
  }

  /** The places of the slider: where any of the runs has a checkpoint. */
  place() {
    const before = this.at !== undefined && this.values ? this.at / Math.max(1, this.values.length - 1) : 0;
    this.values = [...new Set(this.shown.flatMap((learned) => learned.steps.map((step) => this.along(learned, step))))].sort((a, b) => a - b);
    this.slider.max = String(this.values.length - 1);
    this.move(this.following ? 0 : Math.round(before * (this.values.length - 1)));
  }

  /** Where a step lies on the slider: the step itself, or its share of the training in thousandths. */
  along(learned, step) { return this.way === "share" && this.shown.length > 1 ? Math.round((1000 * step) / learned.total) : step; }

  /** A checkpoint answered: until a person takes the slider it stands at the newest that all have told of. */
  came(learned) {
    if (!this.values) return;  // the other run has not begun
    this.status.textContent = `${plural(this.shown.reduce((sum, each) => sum + each.told.size, 0), "checkpoint")} of ${count(this.shown.reduce((sum, each) => sum + each.steps.length, 0))}…`;
    if (!this.following) { if (learned.step === learned.newest) this.draw(); return; }
    const reached = Math.min(...this.shown.map((each) => (each.newest === null ? -Infinity : each.newest === each.steps.at(-1) ? Infinity : this.along(each, each.newest))));
    const now = this.values.findLastIndex((value) => value <= reached);
    if (now >= 0) this.move(now); else this.draw();
  }

  goTo(step, learned) { this.move(this.values.indexOf(this.along(learned, step))); }

  move(to) {
    this.at = Math.max(0, Math.min(this.values.length - 1, to));
    this.slider.value = String(this.at);
    const value = this.values[this.at];
    for (const learned of this.shown) learned.choose(learned.steps.findLast((step) => this.along(learned, step) <= value) ?? learned.steps[0]);
    this.draw();
  }

  draw() {
    const [one] = this.shown, value = this.values[this.at], shared = this.shown.length > 1 && this.way === "share";
    const words = shared ? `${(value / 10).toFixed(1).replace(/\.0$/, "")} % of the training` : this.shown.length > 1 ? `step ${count(value)}` : `step ${count(value)} of ${count(one.total)}`;
    this.where.textContent = words;
    this.slider.setAttribute("aria-valuetext", [words, ...this.shown.map((learned) => learned.words)].join("; "));
    this.shown.forEach((learned) => learned.draw());
    const several = this.shown.length > 1, axis = (learned) => (step) => this.along(learned, step) / (shared ? 10 : 1);
    this.chart.set(this.shown.flatMap((learned) => learned.curves(axis(learned), several)), { x: shared ? "share of the training, %" : "step", mark: shared ? value / 10 : value });
  }

  /** The slider is the person's from here on. */
  stay() {
    clearInterval(this.timer);
    this.timer = 0;
    this.following = false;
    this.playing.textContent = "Play";
  }

  play() {
    const next = (to) => {
      this.move(to);
      if (this.at < this.values.length - 1) return;
      this.stay();
      announce(this.slider.getAttribute("aria-valuetext"));
    };
    this.stay();
    this.playing.textContent = "Pause";
    this.timer = setInterval(() => next(this.at + 1), PAUSE);
    next(this.at === this.values.length - 1 ? 0 : this.at + 1);
  }

  /** A place in the text, in bytes, was chosen: each run shows the neighbours of the token that it has there. */
  choose(offset) {
    this.shown.forEach((learned) => learned.pick(offset));
    this.draw();
    announce(this.shown.map((learned) => learned.story).filter(Boolean).join("; "));
    this.askNearest(offset);
  }

  async nearest() {
    this.looking?.abort();
    const looking = this.looking = new AbortController();
    await Promise.all(this.shown.filter((learned) => learned.lacking).map(async (learned) => {
      const token = learned.token;
      try {
        for await (const event of stream("/api/learn", { run: learned.run, max_tokens: 0, token }, looking.signal)) {
          if (event.event === "checkpoint" && learned.token === token) { learned.keepNearest(event, token); if (event.step === learned.step) learned.drawNearest(); }
          if (event.event === "error") throw new Error(event.message);
        }
      } catch (error) { if (error.name !== "AbortError") notice(error.message); }
    }));
    this.draw();
  }
}
