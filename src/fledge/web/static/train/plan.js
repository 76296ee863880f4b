// The plan: what was chosen and why, and what it will take, before anything is trained.

import { h, redraw, show } from "../dom.js";
import { billions, bytes, count, duration, fixed, short } from "../format.js";
import { control } from "./changes.js";

const shown = (value) => (value === null ? "none" : Array.isArray(value) ? value.map((part) => String(part).split("/").at(-1)).join(", ") : String(value));
const OURS = ["corpus.source"];

/** The choices as a table; a person who changes one plans again with it. */
export class PlanCard {
  constructor(calls) {
    this.calls = calls;
    this.element = h("section", { class: "card stack", "aria-label": "Plan" });
  }

  /** While it is made: what the command has said so far. */
  wait(job, said) {
    const words = job.state === "waiting" && job.ahead ? `Waiting for ${job.ahead}: speeds are measured while nothing else trains.` : "Analysing the text, training a tokenizer, and measuring a few model sizes on this machine…";
    redraw(this.element, ["wait", words, said], () => show(this.element, h("h2", {}, "3. The plan"), h("p", { class: "row busy", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), words),
      said && h("pre", { class: "code log" }, said), h("div", { class: "row" }, h("button", { type: "button", onclick: () => this.calls.onstop(job) }, job.state === "waiting" ? "Leave the queue" : "Stop"))));
  }

  fail(job) {
    redraw(this.element, ["fail", job], () => show(this.element, h("h2", {}, "3. The plan"), h("p", { class: "problem", role: "alert" },
      job.problem ?? (job.state === "killed" ? "The planning was killed. Plan again." : "The planning was stopped. Plan again."))));
  }

  draw(run, plan, settings) {
    redraw(this.element, [run, plan, settings.size], () => {
      const fact = (name, value, note) => h("div", { class: "fact" }, h("span", { class: "small muted" }, name), h("b", { class: "number" }, value), note && h("span", { class: "small muted" }, note));
      const { expected } = plan, counted = Object.entries(plan.counts).sort((a, b) => a[1] - b[1])[0];
      show(this.element, h("h2", {}, "3. The plan"),
        h("div", { class: "forecast" },
          fact("Model", `${billions(plan.parameters)} parameters`, `${count(plan.vocabulary_size)} tokens in the vocabulary${plan.teachers ? `; taught by ${plan.teachers} others of its size` : ""}`),
          fact("Time", duration(plan.seconds), `${count(plan.steps)} steps at ${short(plan.speed)} tokens/s; the rest of ${plan.time} is for preparing, evaluating and the report`),
          fact("Memory", bytes(plan.memory), "while it trains"),
          fact("Quality", expected ? `about ${fixed(expected.bits_per_byte, 2)}` : "–", expected ? `bits per byte; nine times in ten between ${fixed(expected.low, 2)} and ${fixed(expected.high, 2)}. Lower is better: the n-gram baseline (${counted[0]}) reaches ${fixed(counted[1], 2)}` : "the text is too short to say")),
        h("div", { class: "row" }, h("button", { type: "button", class: "primary", onclick: () => this.calls.onstart(run) }, "Start training"),
          h("button", { type: "button", onclick: () => this.calls.ondiscard(run) }, "Discard"), h("span", { class: "small muted" }, `The run will be called ${run}.`)),
        h("details", { open: true }, h("summary", {}, "What was chosen, and why"), h("div", { class: "choices" }, plan.choices.map((choice) => this.choice(choice, settings)))));
    });
  }

  choice({ values, why }, settings) {
    return h("div", { class: "choice" }, h("p", {}, why[0].toUpperCase() + why.slice(1), "."), Object.entries(values).map(([name, value]) => {
      const setting = settings.get(name);
      if (!setting || OURS.includes(name)) return h("p", { class: "row small" }, h("code", {}, name), " ", shown(value));
      return h("div", { class: "planned" }, h("code", { title: setting.help }, name), control(setting, value, (next) => this.calls.onchange(name, next)), h("span", { class: "small muted help" }, setting.help));
    }));
  }
}
