// A training as it goes: losses, speed, samples, whether it overfits; and at the end its report.

import { get } from "../api.js";
import { Chart, smooth } from "../chart.js";
import { announce, h, notice, redraw, show } from "../dom.js";
import { count, duration, fixed, plural, short } from "../format.js";
import { reportFrame } from "../report.js";
import { RunData, numbers, samplesOf } from "../rundata.js";

const WORDS = { waiting: "waiting", running: "training", finished: "finished", stopped: "stopped", failed: "failed", killed: "was killed" };

export class Live {
  constructor(run, calls) {
    this.calls = calls;
    this.data = new RunData(run);
    this.loss = new Chart("Loss", 300);
    this.head = h("div", { class: "stack" });
    this.verdict = h("p", { class: "verdict", role: "status", hidden: true });
    this.samples = h("section", { class: "card", "aria-label": "Samples", hidden: true });
    this.log = h("pre", { class: "code log" });
    this.more = h("details", { class: "card", ontoggle: () => this.readLog() }, h("summary", {}, "Output of the commands"), this.log);
    this.report = h("section", { class: "card", "aria-label": "Report", hidden: true });
    this.chart = h("div", {}, h("h3", {}, "Loss, nats per token"), this.loss.element);
    this.element = h("div", { class: "stack" }, h("section", { class: "card stack", "aria-label": "Training" }, this.head, this.chart, this.verdict), this.samples, this.report, this.more);
  }

  close() { this.loss.close(); }

  /** What the server says of the run now, and what is new in its files. */
  async update(standing, summary) {
    this.standing = standing;
    const source = standing.teacher ?? standing.run;
    if (source !== this.data.name) this.data = new RunData(source);
    const fresh = summary ? await this.data.read(summary.updated) : false;
    this.drawHead(standing, summary);
    if (fresh) this.draw();
    this.verdict.hidden = !standing.verdict;
    if (this.verdict.textContent !== (standing.verdict ?? "")) this.verdict.textContent = standing.verdict ?? "";
    const done = summary?.has_report && standing.job?.state !== "running";
    this.report.hidden = !done;
    if (done) redraw(this.report, [standing.run, standing.job?.ended ?? 0], () => show(this.report, h("h2", {}, "Report"), reportFrame({ run: standing.run }, `Report of ${standing.run}`, standing.job?.ended ?? "")));
    if (this.more.open) this.readLog();
  }

  drawHead({ run, job, plan, asked, trained, steps, teacher }, summary) {
    const step = this.data.last("step") ?? 0, speed = this.data.last("tokens_per_second"), seconds = this.data.last("seconds");
    const state = job?.state ?? (summary?.state === "training" ? "running" : "stopped"), running = state === "running", active = running || state === "waiting";
    const left = running && step > 0 && steps ? (seconds / step) * (steps - step) : NaN;
    const facts = [state === "waiting" ? (job.ahead ? `${plural(job.ahead, "training")} before it` : "starts now") : null,
      teacher ? `teacher ${teacher.split("/").at(-1)} of ${plan?.teachers}, then the model` : null, steps ? `step ${count(step)} of ${count(steps)}` : null, Number.isFinite(left) && step < steps ? `about ${duration(left)} left` : null,
      running && !step ? "preparing" : null, running && steps && step >= steps && !teacher ? "writing the report" : null, running && speed ? `${short(speed)} tokens/s` : null,
      this.data.last("loss") !== undefined ? `loss ${fixed(this.data.last("loss"))}` : null, this.data.last("validation_loss") !== undefined ? `validation ${fixed(this.data.last("validation_loss"))}` : null].filter(Boolean);
    if (this.said !== state) { if (this.said) announce(`${run}: ${WORDS[state]}`); this.said = state; }
    const complete = steps && step >= steps && !teacher, { calls } = this;
    redraw(this.head, [run, state, facts, job?.problem, trained, summary?.has_report], () => show(this.head,
      h("div", { class: "row spread" }, h("h2", {}, run), h("span", { class: `state ${running ? "training" : state}` }, WORDS[state])),
      steps ? h("div", { class: "progress wide", role: "progressbar", "aria-label": "Steps", "aria-valuemin": 0, "aria-valuemax": steps, "aria-valuenow": step }, h("i", { style: { width: `${Math.min(100, (100 * step) / steps)}%` } })) : null,
      h("p", { class: "small muted number" }, facts.join(" · ")),
      job?.problem ? h("p", { class: "problem", role: "alert" }, job.problem) : null,
      state === "killed" ? h("p", { class: "problem" }, "The process was killed. Its checkpoints are complete: you can resume.") : null,
      h("div", { class: "row" },
        trained && !active && h("a", { class: "button primary", href: `#/generate?${new URLSearchParams({ bundle: run })}` }, "Generate text"),
        active && job && h("button", { type: "button", onclick: () => calls.stop(job) }, state === "waiting" ? "Leave the queue" : "Stop"),
        !active && !complete && h("button", { type: "button", class: trained ? null : "primary", onclick: () => calls.goOn(run) }, "Go on"),
        !active && (complete || state === "finished") && h("button", { type: "button", onclick: () => calls.longer(run, plan) }, plan ? "Train for twice the time" : "Train for twice the steps"),
        (plan || asked) && !active && h("button", { type: "button", onclick: () => calls.again(plan ?? asked) }, "Start again with a change"),
        trained && h("a", { href: `#/learn?${new URLSearchParams({ run })}` }, "See how it learned"),
        trained && !active && h("a", { href: `#/inside?${new URLSearchParams({ bundle: run })}` }, "Look inside"))));
  }

  draw() {
    const { columns } = this.data, xs = columns.step ?? [];
    const present = (columns.loss ?? []).map((y, i) => (Number.isFinite(y) && y !== null ? i : -1)).filter((i) => i >= 0);
    const raw = numbers({ name: "training", colour: 1, xs: present.map((i) => xs[i]), ys: present.map((i) => columns.loss[i]) });
    this.loss.set([{ ...raw, thin: true, silent: true }, { ...raw, ys: smooth(raw.ys, 0.6) },
      numbers({ name: "validation", colour: 2, xs, ys: columns.validation_loss ?? [], dashed: true, dots: true })], { x: "step" });
    const samples = samplesOf(this.data.samples).reverse();
    this.samples.hidden = !samples.length;
    redraw(this.samples, samples, () => show(this.samples, h("h2", {}, "Samples"), h("div", { class: "samples", tabindex: 0, role: "group", "aria-label": "Samples, the newest first" },
      samples.slice(0, 30).map(({ step, text }) => h("div", { class: "sample" }, h("span", { class: "small muted" }, `step ${count(step)}`), h("pre", {}, text))))));
  }

  async readLog() {
    const job = this.standing?.job;
    if (!this.more.open) return;
    if (!job) { this.log.textContent = "This run was not started from the page."; return; }
    try {
      const { text } = await get("/api/training/log", { job: job.id });
      if (this.log.textContent === text) return;
      const end = this.log.scrollTop + this.log.clientHeight > this.log.scrollHeight - 20;
      this.log.textContent = text;
      if (end) this.log.scrollTop = this.log.scrollHeight;
    } catch (error) { notice(error.message); }
  }
}
