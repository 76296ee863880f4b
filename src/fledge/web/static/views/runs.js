// Runs: every run below the served folders as it is now, and any of them side by side.

import { get, hasToken, save } from "../api.js";
import { Chart, smooth } from "../chart.js";
import { field, h, memory, notice, redraw, segments, show } from "../dom.js";
import { ago, billions, count, duration, fixed, plural, short } from "../format.js";
import { RunData, numbers, samplesOf } from "../rundata.js";
import { compareSettings } from "../settings.js";

const PAUSE = 2000;
const COLOURS = 8;
const AXES = {
  step: { text: "Steps", name: "step", values: (run) => run.columns.step },
  tokens: { text: "Tokens", name: "tokens", values: (run) => run.columns.tokens },
  time: { text: "Time", name: "training time", values: (run) => run.columns.seconds, format: duration },
  flops: { text: "FLOPs", name: "FLOPs", values: (run) => (run.columns.tokens ?? []).map((tokens) => tokens * (run.flops ?? NaN)) },
};

export async function open(place, query) {
  const view = new RunsView(place, query.getAll("run"));
  await view.refresh();
  view.loop();
  return () => view.close();
}

class RunsView {
  constructor(place, asked) {
    this.place = place;
    this.chosen = new Set(asked.length ? asked : memory.get("runs", []));
    this.runs = new Map();
    this.data = new Map();
    this.colours = new Map();
    this.rows = new Map();
    this.groups = new Map();
    this.experiments = [];
    this.reading = Promise.resolve();
    this.options = { axis: "step", logX: false, logY: false, weight: 0.5, ...memory.get("runs.options", {}) };
    this.closed = false;
    this.list = h("div", { class: "card run-list", role: "group", "aria-label": "Runs" });
    this.loss = new Chart("Loss", 340);
    this.speed = new Chart("Tokens per second", 200);
    this.rate = new Chart("Learning rate", 200);
    this.legend = h("div", { class: "legend" });
    this.settings = h("section", { class: "card", "aria-label": "Settings" });
    this.samples = h("section", { class: "card", "aria-label": "Samples" });
    this.skipped = h("p", { class: "small muted" });
    this.silence = h("p", { class: "small problem", role: "status", hidden: true });
    this.problems = h("p", { class: "small problem", role: "status", hidden: true });
    this.build();
  }

  build() {
    const { options } = this;
    const check = (name, text) => {
      const box = h("input", { type: "checkbox", checked: options[name], onchange: () => this.set({ [name]: box.checked }) });
      return h("label", { class: "check" }, box, text);
    };
    const value = h("output", {}, fixed(options.weight, 2));
    const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(options.weight),
      oninput: () => { value.textContent = fixed(Number(slider.value), 2); this.set({ weight: Number(slider.value) }); } });
    this.board = h("div", { class: "stack" }, this.problems,
      h("div", { class: "card controls-bar row" },
        segments("Horizontal axis", Object.entries(AXES).map(([key, axis]) => [key, axis.text]), options.axis, (axis) => this.set({ axis })),
        check("logX", "log x"), check("logY", "log y"), field("Smoothing", slider, value)),
      h("div", { class: "charts" },
        h("section", { class: "card wide", "aria-label": "Loss" }, h("div", { class: "row spread" }, h("h2", {}, "Loss, nats per token"), this.legend), this.loss.element),
        h("section", { class: "card", "aria-label": "Throughput" }, h("h3", {}, "Throughput, tokens per second"), this.speed.element),
        h("section", { class: "card", "aria-label": "Learning rate" }, h("h3", {}, "Learning rate"), this.rate.element)),
      this.settings, this.samples);
    this.layout = h("div", { class: "runs-layout" }, h("div", { class: "stack" }, this.silence, this.list, this.skipped), this.board);
    this.heading = h("header", { class: "head" }, h("h1", {}, "Runs"),
      h("p", {}, "All runs in the served folders, updated live. Choose several to compare their curves, settings and samples."));
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    [this.loss, this.speed, this.rate].forEach((chart) => chart.close());
  }

  set(change) {
    Object.assign(this.options, change);
    memory.set("runs.options", this.options);
    this.draw();
  }

  loop() {
    this.timer = setTimeout(async () => {
      if (!document.hidden) await this.refresh();
      if (!this.closed) this.loop();
    }, PAUSE);
  }

  async refresh() {
    let answer;
    try {
      answer = await get("/api/runs");
    } catch (error) {
      if (!this.runs.size) show(this.place, this.heading, h("div", { class: "nothing" }, error.message));
      say(this.silence, `${error.message} Below is what it said last.`);
      return;
    }
    if (this.closed) return;
    say(this.silence, "");
    const first = !this.runs.size;
    this.runs = new Map(answer.runs.map((run) => [run.name, run]));
    this.experiments = answer.experiments;
    this.now = answer.now;
    if (!this.runs.size) {
      show(this.place, this.heading, h("div", { class: "nothing" }, "No run yet. ", h("a", { href: "#/train" }, "Train one"), ", and it appears here."));
      return;
    }
    if (first) {
      this.chosen = new Set([...this.chosen].filter((name) => this.runs.has(name)));
      if (!this.chosen.size) answer.runs.filter((run) => run.state !== "broken" && run.state !== "empty").slice(0, 2).forEach((run) => this.chosen.add(run.name));
      show(this.place, this.heading, this.layout);
    }
    this.drawList();
    const skipped = Object.entries(answer.skipped);
    this.skipped.textContent = skipped.length ? `Left out: ${skipped.map(([name, why]) => `${name} (${why})`).join(", ")}.` : "";
    await this.read();
  }

  /** New rows, settings and samples of the chosen runs, after those that are being read; what did not change is not asked for again. */
  read() {
    this.reading = this.reading.then(async () => {
      const changed = await Promise.all([...this.chosen].map((name) => this.readRun(name)));
      if (changed.some(Boolean) && !this.closed) this.draw();
    });
    return this.reading;
  }

  async readRun(name) {
    const run = this.runs.get(name);
    if (!run) return false;
    if (!this.data.has(name)) this.data.set(name, new RunData(name));
    return this.data.get(name).read(run.updated);
  }

  colour(name) {
    if (!this.colours.has(name)) {
      const taken = new Set([...this.chosen].map((other) => this.colours.get(other)));
      const free = Array.from({ length: COLOURS }, (_, i) => i + 1).find((colour) => !taken.has(colour));
      this.colours.set(name, free ?? 1 + (this.colours.size % COLOURS));
    }
    return this.colours.get(name);
  }

  /** Trials stand below their experiment. A row stays the same element for as long as its run is there: a press or a focus on it
   * outlasts what is new in it. */
  drawList() {
    const runs = [...this.runs.values()];
    const rows = runs.filter((run) => !run.experiment).map((run) => this.row(run));
    for (const experiment of this.experiments) {
      const trials = runs.filter((run) => run.experiment === experiment.name).map((run) => this.row(run));
      rows.push(this.group(experiment, trials));
    }
    if (rows.length === this.list.children.length && rows.every((row, i) => row === this.list.children[i])) return;
    const focused = this.list.querySelector(":focus");
    show(this.list, rows);
    focused?.focus({ preventScroll: true });
  }

  group(experiment, trials) {
    if (!this.groups.has(experiment.name)) {
      const head = h("summary", {}), body = h("div", {});
      this.groups.set(experiment.name, { element: h("details", { class: "experiment", open: trials.length < 12 }, head, body), head, body });
    }
    const { element, head, body } = this.groups.get(experiment.name);
    redraw(head, [experiment, trials.length], () => show(head, h("span", { class: "name" }, experiment.name), h("span", { class: "small muted" }, ` ${plural(trials.length, "trial")}`),
      h("span", { class: "links" }, h("a", { href: `#/experiments?${new URLSearchParams({ experiment: experiment.name })}`, "aria-label": `Open the experiment ${experiment.name}` }, experiment.has_report ? "Report" : "Experiment"))));
    if (trials.length !== body.children.length || trials.some((row, i) => row !== body.children[i])) show(body, trials);
    return element;
  }

  row(run) {
    if (!this.rows.has(run.name)) {
      const box = h("input", { type: "checkbox", "aria-label": `Show ${run.name}`, onchange: () => this.choose(run.name, box.checked) });
      const rest = h("span", { class: "rest" }), links = h("span", { class: "links" });
      this.rows.set(run.name, { element: h("label", {}, box, rest, links), box, rest, links });
    }
    const { element, box, rest, links } = this.rows.get(run.name), chosen = this.chosen.has(run.name);
    element.className = `run${chosen ? ` series-${this.colour(run.name)}` : ""}`;
    element.title = run.problem ?? run.name;
    box.checked = chosen;
    const facts = run.problem ? [h("span", { class: "problem" }, run.problem)] : [
      run.validation_loss !== null && h("span", {}, `validation ${fixed(run.validation_loss)}${run.best_validation_loss < run.validation_loss ? `, lowest ${fixed(run.best_validation_loss)}` : ""}`),
      run.best !== null && h("span", { class: "best", title: "The checkpoint with the lowest validation loss, which stands for the run" }, `★ best: step ${count(stepOf(run.best))}`),
      run.loss !== null && h("span", {}, `loss ${fixed(run.loss)}`),
      run.state === "training" && run.tokens_per_second !== null && h("span", {}, `${short(run.tokens_per_second)} tokens/s`),
      run.parameters !== null && h("span", {}, `${billions(run.parameters)} parameters`),
      run.updated !== null && h("span", {}, ago(this.now - run.updated))];
    show(rest, h("span", { class: "name" }, run.experiment ? run.name.split("/").at(-1) : run.name),
      h("span", { class: `state ${run.state}` }, run.state === "training" ? `training, step ${count(run.step)}` : run.state),
      run.steps && run.step !== null && h("span", { class: "progress", role: "progressbar", "aria-label": "Steps", "aria-valuemin": 0, "aria-valuemax": run.steps, "aria-valuenow": run.step },
        h("i", { style: { width: `${Math.min(100, (100 * run.step) / run.steps)}%` } })),
      h("span", { class: "line2" }, facts));
    const model = run.checkpoints.length > 0;
    redraw(links, [run.checkpoints.length, run.has_report], () => show(links,
      model && h("a", { href: `#/generate?${new URLSearchParams({ bundle: run.name })}`, "aria-label": `Generate with ${run.name}` }, "Generate"),
      run.checkpoints.length > 1 && h("a", { href: `#/learn?${new URLSearchParams({ run: run.name })}`, "aria-label": `See how ${run.name} learned` }, "Learn"),
      run.has_report && this.report(run.name),
      model && this.file(`/api/bundles/download?${new URLSearchParams({ bundle: run.name })}`, `${run.name}.zip`, "Download", `Download the model of ${run.name}`)));
    return element;
  }

  report(run) {
    const path = `/api/runs/report?${new URLSearchParams({ run })}`;
    if (!hasToken()) return h("a", { href: path, target: "_blank", rel: "noopener" }, "Report");
    return this.file(path, "report.html", "Report", `Save the report of ${run}`);
  }

  /** A link brings no token: where one is needed, the file is fetched with it and then saved. */
  file(path, name, words, label) {
    if (!hasToken()) return h("a", { href: path, download: name.replaceAll("/", "-"), "aria-label": label }, words);
    return h("a", { href: "#/runs", "aria-label": label, onclick: (event) => { event.preventDefault(); save(path, name.replaceAll("/", "-")).catch((error) => notice(error.message)); } }, words);
  }

  choose(name, wanted) {
    if (wanted) this.chosen.add(name); else { this.chosen.delete(name); this.colours.delete(name); }
    memory.set("runs", [...this.chosen]);
    this.drawList();
    this.draw();
    this.read();
  }

  draw() {
    const axis = AXES[this.options.axis];
    const shown = [...this.chosen].filter((name) => this.data.has(name) && this.runs.has(name)).map((name) => ({ name, colour: this.colour(name), ...this.data.get(name) }));
    const axes = { x: axis.name, logX: this.options.logX, logY: this.options.logY, formatX: axis.format };
    const line = (run, column, extra) => ({ name: run.name, colour: run.colour, xs: axis.values(run) ?? [], ys: run.columns[column] ?? [], ...extra });
    const loss = shown.flatMap((run) => {
      const raw = line(run, "loss", { thin: true, silent: true });
      const present = raw.ys.map((y, i) => (Number.isFinite(y) && y !== null ? i : -1)).filter((i) => i >= 0);
      const xs = present.map((i) => raw.xs[i]), ys = present.map((i) => raw.ys[i]);
      return [...(this.options.weight ? [raw] : []), { ...raw, name: `${run.name}, training`, xs, ys: smooth(ys, this.options.weight), thin: false, silent: false },
        line(run, "validation_loss", { name: `${run.name}, validation`, dashed: true, dots: true })];
    });
    this.loss.set(loss.map(numbers), axes);
    this.speed.set(shown.map((run) => numbers(line(run, "tokens_per_second"))), { ...axes, logY: false, zero: true });
    this.rate.set(shown.map((run) => numbers(line(run, "learning_rate"))), { ...axes, logY: false, zero: true });
    show(this.legend, h("span", {}, h("i", { class: "full" }), "training"), h("span", {}, h("i", { class: "dash" }), "validation"));
    say(this.problems, shown.filter((run) => run.problem).map((run) => `${run.name}: ${run.problem}`).join(" "));
    compareSettings(this.settings, shown);
    redraw(this.samples, shown.map(({ name, colour, samples }) => [name, colour, samples]), () => this.drawSamples(shown));
  }

  drawSamples(shown) {
    const focused = this.samples.querySelector(":focus");
    const scroll = this.samples.querySelector(".samples")?.scrollTop ?? 0;
    const parts = shown.flatMap((run) => samplesOf(run.samples).map((part) => ({ ...part, run })));
    parts.sort((a, b) => b.step - a.step);
    show(this.samples, h("h2", {}, "Samples"),
      parts.length ? h("div", { class: "samples", tabindex: 0, role: "group", "aria-label": "Samples, the newest first" }, parts.slice(0, 60).map(({ run, step, text }) =>
        h("div", { class: "sample" }, h("span", { class: `small series-${run.colour}` }, `${run.name}, step ${count(step)}`), h("pre", {}, text))))
        : h("p", { class: "muted" }, shown.length ? "Samples appear here during training." : "Choose a run to see what it wrote."));
    const box = this.samples.querySelector(".samples");
    if (box) box.scrollTop = scroll;
    if (focused) box?.focus({ preventScroll: true });
  }
}

const stepOf = (checkpoint) => Number(checkpoint.match(/\d+/));

/** A sentence that is there or not; the same one is not said twice. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}
