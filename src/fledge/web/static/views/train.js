// Train: a text and a time become a plan, the plan a run; and a run is watched, stopped, gone on with and reported.

import { get, post, readLibrary, title } from "../api.js";
import { field, h, memory, notice, options, redraw, segments, show } from "../dom.js";
import { ago, plural } from "../format.js";
import { Changes } from "../train/changes.js";
import { Live } from "../train/live.js";
import { PlanCard } from "../train/plan.js";
import { Texts } from "../train/texts.js";

const PAUSE = 1500;
const TIMES = [[60, "1 minute"], [120, "2 minutes"], [300, "5 minutes"], [600, "10 minutes"], [1200, "20 minutes"], [1800, "half an hour"], [3600, "1 hour"], [7200, "2 hours"], [14400, "4 hours"], [28800, "8 hours"], [86400, "a day"]];
const STATES = { waiting: "waits", running: "trains", finished: "finished", stopped: "stopped", failed: "failed", killed: "killed" };
const WAYS = [["plan", "A plan for me"], ["recipe", "A recipe"], ["bundle", "A trained model"]];
const SECONDS = { s: 1, m: 60, h: 3600, d: 86400 };
const seconds = (text) => [...text.matchAll(/([\d.]+)([smhd])/g)].reduce((sum, [, number, unit]) => sum + Number(number) * SECONDS[unit], 0);

export async function open(place, query) {
  const view = new Train(place, query.get("run"));
  await view.begin();
  return () => view.close();
}

const hint = (text) => h("p", { class: "small muted" }, text);

class Train {
  constructor(place, run) {
    this.run = run;
    this.live = null;
    this.way = "plan";
    this.texts = new Texts(() => this.drawGo());
    this.changes = new Changes(() => this.drawGo());
    this.plan = new PlanCard({ onstart: (name) => this.ask("start", { run: name }), onchange: (name, value) => this.replan({ [name]: value }), ondiscard: (name) => this.discard(name), onstop: (job) => this.ask("stop", { job: job.id }) });
    const words = h("output", {}, "");
    this.time = h("input", { type: "range", min: "0", max: String(TIMES.length - 1), step: "1", value: String(memory.get("train.time", 3)), oninput: () => { tell(); memory.set("train.time", Number(this.time.value)); } });
    const tell = () => { words.textContent = TIMES[this.time.value][1]; this.time.setAttribute("aria-valuetext", TIMES[this.time.value][1]); };
    tell();
    this.recipe = h("select", { onchange: () => this.changes.open(this.recipe.value) });
    this.bundle = h("select");
    this.begins = segments("Begin with", WAYS, "plan", (way) => this.choose(way));
    this.ways = h("div", { class: "stack" });
    this.timed = field("All of it may take", this.time, words);
    this.go = h("button", { type: "button", class: "primary", onclick: () => this.submit() }, "Plan");
    this.queue = h("section", { class: "card", "aria-label": "Trainings", hidden: true });
    this.right = h("div", { class: "stack" });
    this.setup = h("div", { class: "stack" }, this.texts.element, h("section", { class: "card stack", "aria-label": "Time" }, h("h2", {}, "2. Your time"),
      this.begins, this.ways, this.changes.element, h("div", { class: "row" }, this.go)), this.queue);
    this.welcome = h("div", { class: "nothing" }, "Choose a text and a time. Before training starts, you see what fledge would choose, why, and what it costs.");
    show(place, h("header", { class: "head" }, h("h1", {}, "Train"), h("p", {}, "Train a language model on your own text, on this machine. Nothing leaves the machine, and training continues when you close the page.")),
      h("div", { class: "train-layout" }, this.setup, h("div", { class: "stack" }, this.right, this.texts.facts)));
    show(this.right, this.welcome);
  }

  async begin() {
    this.choose("plan");
    const [library] = await Promise.all([readLibrary(true), this.texts.open(), this.changes.open()]);
    options(this.recipe, library.recipes.map((name) => [name, name]), "akjv-demo");
    options(this.bundle, library.bundles.map((bundle) => [bundle.name, title(bundle)]).reverse());
    this.bundles = library.bundles.length;
    await this.refresh();
    this.loop();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.live?.close();
  }

  loop() {
    this.timer = setTimeout(async () => {
      if (!document.hidden) await this.refresh();
      if (!this.closed) this.loop();
    }, PAUSE);
  }

  choose(way) {
    this.way = way;
    show(this.ways, way === "plan" ? this.timed : way === "recipe" ? [field("Recipe", this.recipe), hint("Trains on the text above, or on the recipe’s own if there is none.")]
      : [field("Model", this.bundle), hint("Trains its weights further, on the text above or on its own.")]);
    if (way !== "bundle" && this.changes.settings.size) this.changes.open(way === "recipe" ? this.recipe.value : undefined);
    this.drawGo();
  }

  drawGo() {
    const text = this.texts.chosen.size > 0;
    this.go.textContent = this.way === "plan" ? "Plan" : "Start training";
    this.go.disabled = !this.texts.answer?.place || (this.way === "plan" && !text) || (this.way === "bundle" && !this.bundles);
  }

  async submit() {
    const texts = [...this.texts.chosen], set = this.changes.values;
    if (this.way !== "plan") { await this.ask("train", { [this.way]: this[this.way].value, texts, set }); return; }
    const { job, plan, run } = this.standing ?? {}, replaced = plan && job?.kind === "plan" && !["waiting", "running"].includes(job.state) ? run : null;
    await this.ask("plan", { texts, seconds: TIMES[this.time.value][0], set, run: replaced });
  }

  /** The plan that is shown, with a choice changed: also one that was made on another page, for what is set up there. */
  async replan(change) {
    if (this.own !== this.run) this.setUp(this.standing.plan);
    this.changes.set({ ...this.changes.values, ...change });
    await this.submit();
  }

  /** A request that begins or changes a training, which is then the one that is shown. */
  async ask(what, values) {
    this.go.disabled = true;
    try {
      const job = await post(`/api/training/${what}`, values);
      if (what === "plan") this.own = job.run;
      this.show(job.run);
      await this.refresh();
      if (innerWidth <= 960) this.right.scrollIntoView({ block: "start" });
    } catch (error) {
      notice(error.message);
    } finally {
      this.drawGo();
    }
  }

  async discard(run) {
    try { await post("/api/training/discard", { run }); } catch (error) { notice(error.message); return; }
    this.show(null);
    await this.refresh();
  }

  show(run) {
    this.run = run;
    this.fresh = false;
    this.live?.close();
    this.live = null;
    this.standing = null;
    if (run) return;
    show(this.right, this.welcome);
    this.texts.facts.hidden = !this.texts.chosen.size;
  }

  /** The queue, and of the run that is shown how it stands. */
  async refresh() {
    let jobs, runs;
    try {
      [{ jobs, now: this.now }, { runs }] = await Promise.all([get("/api/training"), get("/api/runs")]);
    } catch (error) { notice(error.message); return; }
    if (this.closed) return;
    this.drawQueue(jobs);
    if (!this.run) {
      if (this.fresh) return;  // something new is being set up
      const active = jobs.findLast((job) => job.state === "running") ?? jobs.findLast((job) => job.state === "waiting");
      if (!active) return;
      this.show(active.run);
    }
    const asked = this.run;
    let standing;
    try { standing = await get("/api/training/run", { run: asked }); } catch (error) {
      if (error.status === 404) this.show(null); else notice(error.message);
      return;
    }
    if (asked !== this.run || this.closed) return;
    this.standing = standing;
    this.texts.facts.hidden = !this.texts.chosen.size || standing.trained;
    const { job } = standing, summary = runs.find((each) => each.name === (standing.teacher ?? standing.run));
    if (job?.kind === "plan" && !standing.trained) {
      if (this.right.firstChild !== this.plan.element) show(this.right, this.plan.element);
      if (["waiting", "running"].includes(job.state)) {
        const { text } = await get("/api/training/log", { job: job.id }).catch(() => ({ text: "" }));
        this.plan.wait(job, text.replace(/^\$.*\n/, ""));
      }
      else if (standing.plan && job.state === "finished") this.plan.draw(standing.run, standing.plan, this.changes.settings);
      else this.plan.fail(job);
      return;
    }
    if (!this.live) {
      this.live = new Live(standing.run, { stop: (each) => this.ask("stop", { job: each.id }), goOn: (run) => this.ask("go-on", { run }),
        longer: (run, plan) => this.ask("go-on", plan ? { run, seconds: 2 * seconds(plan.time) } : { run, twice: true }), again: (asked) => this.again(asked) });
      show(this.right, this.live.element);
    }
    await this.live.update(standing, summary);
  }

  /** What a training was asked for with: its text, its changes, and its time, recipe or model. */
  setUp(asked) {
    const wanted = asked.recipe ? "recipe" : asked.bundle ? "bundle" : "plan";
    this.begins.children[WAYS.findIndex(([way]) => way === wanted)].click();
    this.texts.chosen = new Set(asked.texts);
    this.texts.draw();
    this.texts.look();
    this.changes.set(Object.fromEntries(Object.entries(asked.set).map(([name, value]) => [name, String(value)])));
    if (wanted !== "plan") { this[wanted].value = asked[wanted]; return; }
    const off = ([time]) => Math.abs(time - seconds(asked.time));
    this.time.value = TIMES.reduce((best, entry, i) => (off(entry) < off(TIMES[best]) ? i : best), 0);
    this.time.dispatchEvent(new Event("input"));
  }

  /** The same once more, for a person to change something of. */
  again(asked) {
    this.setUp(asked);
    this.changes.element.open = true;
    this.show(null);
    this.fresh = true;
    this.changes.search.focus();
    this.setup.scrollIntoView({ block: "start" });
  }

  drawQueue(jobs) {
    this.queue.hidden = !jobs.length;
    const latest = jobs.filter((job, i) => jobs.findIndex((other) => other.run === job.run) === i).slice(0, 12);
    redraw(this.queue, [latest.map((job) => [job.id, job.state, job.ahead, job.run]), this.run], () => show(this.queue, h("h2", {}, "Trainings"), h("ul", { class: "queue" }, latest.map((job) =>
      h("li", {}, h("button", { type: "button", class: "quiet", "aria-pressed": String(job.run === this.run), onclick: () => { this.show(job.run); this.refresh(); } }, job.run),
        h("span", { class: `state ${job.state === "running" ? "training" : job.state}` }, job.kind === "plan" ? (job.state === "running" ? "is planned" : job.state === "finished" ? "planned" : STATES[job.state]) : STATES[job.state],
          job.state === "waiting" && job.ahead ? `, ${plural(job.ahead, "training")} before it` : "", job.ended ? ` · ${ago(this.now - job.ended)}` : ""))))));
  }
}
