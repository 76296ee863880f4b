// Experiments: sweeps, ablations and comparisons below the served folders, live while they run, with their reports.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { announce, h, memory, notice, redraw, show } from "../dom.js";
import { ago, count, fixed, plural } from "../format.js";
import { reportFrame } from "../report.js";

const PAUSE = 2000;
const COLOURS = 8;
const KINDS = { sweep: "sweep", ablate: "ablation", compare: "comparison" };
const UNITS = { validation_loss: "nats per token", bits_per_byte: "bits per byte" };
const SIGNS = { complete: "●", diverged: "✕", pruned: "◐", running: "◌", stopped: "‖", waiting: "○" };
const MOST_ROWS = 200;

export async function open(place, query) {
  const view = new Experiments(place, query.get("experiment"));
  await view.refresh();
  view.loop();
  return () => view.close();
}

class Experiments {
  constructor(place, asked) {
    this.place = place;
    this.chosen = asked ?? memory.get("experiment", null);
    this.list = h("div", { class: "card run-list experiment-list", role: "group", "aria-label": "Experiments" });
    this.silence = h("p", { class: "small problem", role: "status", hidden: true });
    this.head = h("section", { class: "card stack", "aria-label": "Experiment" });
    this.best = new Chart("Loss of each trial", 240);
    this.curves = new Chart("Validation loss", 240);
    this.landscape = new Chart("Loss by setting", 240);
    this.land = h("section", { class: "card", "aria-label": "Loss by setting" }, this.landHead = h("h3"), this.landscape.element);
    this.charts = h("div", { class: "charts" }, this.land,
      h("section", { class: "card", "aria-label": "Trials in the order in which they ended" }, this.bestHead = h("h3"), this.best.element),
      h("section", { class: "card wide", "aria-label": "Curves" }, h("h3", {}, "Validation loss of the best arms, and of those under way"), this.curves.element));
    this.arms = h("section", { class: "card", "aria-label": "Arms" });
    this.report = h("section", { class: "card", "aria-label": "Report", hidden: true });
    this.board = h("div", { class: "stack" }, this.head, this.charts, this.arms, this.report);
    this.layout = h("div", { class: "runs-layout" }, h("div", { class: "stack" }, this.silence, this.list), this.board);
    this.heading = h("header", { class: "head" }, h("h1", {}, "Experiments"),
      h("p", {}, "Sweeps, ablations and comparisons below the served folders, live while they run. One that was stopped or killed goes on with the command that began it."));
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    [this.landscape, this.best, this.curves].forEach((chart) => chart.close());
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
      answer = await get("/api/experiments");
    } catch (error) {
      if (!this.found) show(this.place, this.heading, h("div", { class: "nothing" }, error.message));
      this.silence.hidden = false;
      this.silence.textContent = `${error.message} Below is what it said last.`;
      return;
    }
    if (this.closed) return;
    this.silence.hidden = true;
    const first = !this.found?.length;
    [this.found, this.now] = [answer.experiments, answer.now];
    if (!this.found.length) {
      show(this.place, this.heading, h("div", { class: "nothing" }, "No experiment yet. ", h("code", {}, "fledge sweep akjv-demo --over optimizer.learning_rate=1e-4..1e-1:log:8"), " begins one, and it appears here."));
      return;
    }
    if (first) show(this.place, this.heading, this.layout);
    if (!this.found.some((each) => each.name === this.chosen)) this.chosen = this.found[0].name;
    this.drawList();
    await this.read();
  }

  /** The chosen experiment, where something of it is new. */
  async read() {
    const summary = this.found.find((each) => each.name === this.chosen), key = JSON.stringify(summary);
    if (this.key === key) return;
    let answer = { summary, arms: [] };
    if (summary.state !== "broken") {
      try { answer = await get("/api/experiments/one", { experiment: summary.name }); } catch (error) { notice(error.message); return; }
    }
    if (this.closed || this.chosen !== summary.name) return;
    if (this.said && this.said.name === summary.name && this.said.state !== summary.state) announce(`${summary.name}: ${summary.state}`);
    this.said = summary;
    this.key = key;
    this.draw(answer);
  }

  choose(name) {
    this.chosen = name;
    memory.set("experiment", name);
    this.drawList();
    this.read();
  }

  drawList() {
    redraw(this.list, [this.found.map((each) => [each.name, each.state, each.ended, each.best, each.best_loss, this.since(each)]), this.chosen], () => {
      const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.name : null;
      show(this.list, this.found.map((each) => h("button", { type: "button", class: "run experiment-row", "aria-pressed": String(each.name === this.chosen), dataset: { name: each.name }, title: each.problem ?? each.question, onclick: () => this.choose(each.name) },
        h("span", { class: "name" }, each.name), state(each.state),
        each.trials !== null && bar(each), h("span", { class: "line2" }, each.problem ? h("span", { class: "problem" }, each.problem) : [h("span", {}, KINDS[each.kind]), h("span", {}, `${count(each.ended)} of ${plural(each.trials, "trial")}`),
          each.best !== null && h("span", { class: "best" }, `★ ${each.best}: ${fixed(each.best_loss)}`), h("span", {}, this.since(each))]))));
      if (focused !== null) [...this.list.children].find((row) => row.dataset.name === focused)?.focus({ preventScroll: true });
    });
  }

  since(summary) { return summary.updated === null ? "" : ago(this.now - summary.updated); }

  draw({ summary, recipe, steps, seeds, budget, arms }) {
    const broken = summary.state === "broken";
    [this.charts, this.arms].forEach((part) => { part.hidden = broken; });
    const going = arms.flatMap((arm) => arm.trials).filter((trial) => trial.state === "running");
    show(this.head, h("div", { class: "row spread" }, h("h2", {}, summary.question || summary.name), state(summary.state)),
      broken ? h("p", { class: "problem" }, summary.problem) : [
        bar(summary), h("p", { class: "small muted number" }, [`${KINDS[summary.kind]} of ${recipe}`, `${count(summary.ended)} of ${plural(summary.trials, "trial")} ended`, steps ? `${count(steps)} steps each` : "", plural(seeds.length, "seed"), budget && `budget ${budget}`].filter(Boolean).join(" · ")),
        going.length ? h("p", { class: "small number" }, "Under way: ", going.map((trial) => `${trial.arm}, seed ${trial.seed}${trial.step !== null && trial.steps ? ` (step ${count(trial.step)} of ${count(trial.steps)})` : ""}`).join("; ")) : null,
        summary.state === "stopped" ? h("p", { class: "small" }, "It is not at work. The command that began it goes on with what is left: trials that ended are not run again.") : null,
        summary.answer ? h("p", { class: "verdict" }, summary.answer)
          : summary.best !== null ? h("p", { class: "verdict" }, `Best so far: ${summary.best}, ${fixed(summary.best_loss, 4)} ${UNITS[summary.metric]}. More may come.`) : null]);
    if (broken) { this.report.hidden = true; return; }
    const ranked = arms.filter((arm) => arm.mean !== null).sort((a, b) => a.mean - b.mean), shown = [...ranked.slice(0, 5), ...arms.filter((arm) => arm.trials.some((trial) => trial.state === "running") && !ranked.slice(0, 5).includes(arm))].slice(0, COLOURS);
    this.colours = new Map(shown.sort((a, b) => arms.indexOf(a) - arms.indexOf(b)).map((arm, i) => [arm.name, i + 1]));
    this.drawLandscape(arms, summary);
    this.drawTrials(arms.flatMap((arm) => arm.trials), summary);
    const line = (trial) => ({ name: seeds.length > 1 ? `${trial.arm}, seed ${trial.seed}` : trial.arm, colour: this.colours.get(trial.arm), xs: trial.curve.map(([step]) => step), ys: trial.curve.map(([, loss]) => loss), dots: true, thin: trial.seed !== seeds[0] && trial.state !== "running", dashed: trial.state === "running" });
    this.curves.set(shown.flatMap((arm) => arm.trials.filter((trial) => trial.curve.length).map(line)), { x: "step" });
    this.drawArms(arms, summary);
    const done = summary.has_report && summary.state === "done", stamp = summary.updated ?? 0;
    this.report.hidden = !done;
    if (done) redraw(this.report, [summary.name, stamp], () => show(this.report, h("h2", {}, "Report"), reportFrame({ experiment: summary.name }, `Report of ${summary.name}`, stamp)));
  }

  /** The mean loss of a sweep's points against its first setting, where that is a number; a line for each value of the others. */
  drawLandscape(arms, summary) {
    const lines = new Map();
    let key = "";
    for (const arm of summary.kind === "sweep" ? arms.filter((each) => each.mean !== null) : []) {
      const [[name, value], ...others] = arm.name.split(" ").map((part) => part.split("="));
      if (!Number.isFinite(Number(value))) continue;
      key = name;
      const rest = others.map((part) => part.join("=")).join(" ");
      lines.set(rest, [...(lines.get(rest) ?? []), [Number(value), arm.mean]]);
    }
    this.land.hidden = !lines.size;
    const values = [...lines.values()].flat().map(([value]) => value), low = Math.min(...values);
    show(this.landHead, `Loss by ${key.replaceAll("_", " ")}, ${UNITS[summary.metric]}`);
    this.landscape.set([...lines].slice(0, COLOURS).map(([name, points], i) => {
      points.sort(([a], [b]) => a - b);
      return { name: name || "loss", colour: i + 1, xs: points.map(([value]) => value), ys: points.map(([, loss]) => loss), dots: true };
    }), { x: key.replaceAll("_", " "), logX: low > 0 && Math.max(...values) > 20 * low });
  }

  /** Every trial that ran to its end, in the order in which they ended, and the least loss so far. */
  drawTrials(trials, summary) {
    const ended = trials.filter((trial) => trial.state === "complete" && trial.loss !== null).sort((a, b) => a.ended - b.ended);
    const xs = ended.map((_, i) => i + 1), least = ended.reduce((all, trial) => [...all, Math.min(all.at(-1) ?? Infinity, trial.loss)], []);
    const stairs = (values, place) => values.flatMap((value, i) => (i ? [place ? value : values[i - 1], value] : [value]));
    show(this.bestHead, `Loss of each trial, ${UNITS[summary.metric]}`);
    this.best.set([{ name: "least so far", colour: 2, xs: stairs(xs, true), ys: stairs(least, false) }, { name: "trial", colour: 1, xs, ys: ended.map((trial) => trial.loss), loose: true }], { x: "trials that ran to their end", formatX: (value) => (Number.isInteger(value) ? count(value) : "") });
  }

  drawArms(arms, summary) {
    const ranked = summary.kind === "ablate" ? arms : [...arms].sort((a, b) => (a.mean ?? Infinity) - (b.mean ?? Infinity));
    const several = arms.some((arm) => arm.trials.length > 1);
    show(this.arms, h("div", { class: "row spread" }, h("h2", {}, summary.kind === "sweep" ? "Points" : "Arms"), h("span", { class: "small muted" }, Object.entries(SIGNS).map(([name, sign]) => `${sign} ${name}`).join("  "))),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, summary.kind === "sweep" ? "Point" : "Arm"), h("th", { scope: "col", class: "number" }, UNITS[summary.metric]), h("th", { scope: "col" }, several ? "Trials, by seed" : "Trial"))),
        h("tbody", {}, ranked.slice(0, MOST_ROWS).map((arm) => h("tr", { class: arm.name === summary.best ? "strong" : null },
          h("td", {}, this.colours.has(arm.name) ? h("i", { class: `key series-${this.colours.get(arm.name)}` }) : null, " ", arm.name === summary.best ? `★ ${arm.name}` : arm.name, summary.kind !== "sweep" && arm.changes.length ? h("div", { class: "small muted" }, h("code", {}, arm.changes.join(" "))) : null),
          h("td", { class: "number mean" }, arm.mean === null ? "–" : `${fixed(arm.mean, 4)}${arm.half_width === null ? "" : ` ± ${fixed(arm.half_width, 4)}`}`),
          h("td", {}, h("div", { class: "trials" }, arm.trials.map((trial) => this.trial(trial))))))))),
      ranked.length > MOST_ROWS ? h("p", { class: "small muted" }, `The first ${MOST_ROWS} of ${count(ranked.length)}; the report has all.`) : null);
  }

  trial(trial) {
    const words = [SIGNS[trial.state], trial.state === "complete" ? fixed(trial.loss, 3) : trial.state === "running" && trial.steps ? `${Math.round((100 * (trial.step ?? 0)) / trial.steps)} %` : trial.state];
    const title = `seed ${trial.seed}: ${trial.state}${trial.step !== null ? ` at step ${count(trial.step)}` : ""}${trial.why ? `; ${trial.why}` : ""}`;
    if (!trial.run) return h("span", { class: `trial ${trial.state}`, title }, words.join(" "));
    return h("a", { class: `trial ${trial.state}`, href: `#/runs?${new URLSearchParams({ run: trial.run })}`, title, "aria-label": `Run of ${trial.arm}, ${title}` }, words.join(" "));
  }
}

const state = (name) => h("span", { class: `state ${name === "running" ? "training" : name === "done" ? "finished" : name}` }, name);

const bar = ({ ended, trials }) => h("div", { class: "progress wide", role: "progressbar", "aria-label": "Trials", "aria-valuemin": 0, "aria-valuemax": trials, "aria-valuenow": ended }, h("i", { style: { width: `${Math.min(100, (100 * ended) / trials)}%` } }));
