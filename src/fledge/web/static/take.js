// One text in the making: tokens as they come, shaded by how unsure the model was, with the roads not taken at each.

import { label, stream } from "./api.js";
import { announce, h, memory, show } from "./dom.js";
import { count, plural, short } from "./format.js";
import { fromBase64, inline, readable } from "./pieces.js";
import { Sources } from "./sources.js";

const ENDS = { end: "the end token was generated", stop: "a stop text was reached", length: "the maximum length was reached" };
const LONGEST = 4;  // bytes of a character
const percent = (logprob) => { const p = 100 * Math.exp(logprob); return p >= 10 ? `${p.toFixed(0)} %` : p >= 0.1 ? `${p.toFixed(1)} %` : "< 0.1 %"; };

export class Take {
  constructor(bundle, { onbranch }) {
    this.bundle = bundle;
    this.onbranch = onbranch;
    this.history = [];
    this.running = null;
    this.written = h("div", { class: "written", tabindex: 0, role: "group", "aria-label": `Text by ${label(bundle)}`,
      "aria-description": "Arrow keys move from token to token and show its alternatives.", onkeydown: (event) => this.key(event),
      onclick: (event) => { const place = event.target.closest(".g")?.place; if (place !== undefined) this.look(place); } });
    this.status = h("p", { class: "take-status", role: "status" });
    this.past = h("div", { class: "history", role: "group", "aria-label": "Takes" });
    this.roads = h("div", { class: "alternatives", hidden: true });
    this.sources = new Sources(bundle);
    this.element = h("article", { class: "card", "aria-label": label(bundle) },
      h("div", { class: "row spread" }, h("h2", {}, label(bundle)), this.past,
        h("button", { type: "button", class: "chip", onclick: () => this.inside() }, "Look inside")), this.written, this.status, this.roads, this.sources.element);
  }

  stop() { this.running?.abort(); }

  /** The text as it is now, with all that happens in the model as it reads it. */
  inside() {
    const bytes = (this.shown?.tokens ?? []).flatMap((token) => [...fromBase64(token.bytes)]);
    memory.set("inside", { ...memory.get("inside", {}), bundle: this.bundle, text: (this.shown?.request.prompt ?? "") + new TextDecoder().decode(new Uint8Array(bytes)) });
    location.hash = "#/inside";
  }

  /** Go on from a prompt and, for a branch, from the tokens kept of an earlier take. */
  async write(request, kept = []) {
    this.stop();
    const running = this.running = new AbortController();
    const take = { request, tokens: [...kept], kept: kept.length, status: "", ended: false, caret: h("span", { class: "caret", "aria-hidden": "true" }) };
    this.history.push(take);
    const branched = this.roads.contains(document.activeElement);
    this.choose(take);
    if (branched) {  // the button that had the focus is gone: the arrow keys go on from the place of the branch
      this.spanAt(kept.length - 1)?.classList.add("active");
      this.written.focus({ preventScroll: true });
    }
    this.say(take, "Waiting for the model…");
    const started = performance.now();
    let said = -Infinity, note = "";
    try {
      const body = { ...request, bundle: this.bundle, prefix: kept.map((token) => token.id) };
      for await (const event of stream("/api/generate", body, running.signal)) {
        if (event.event === "start") {
          note = event.note ? ` ${event.note}` : "";
          if (event.ahead) this.say(take, `${plural(event.ahead, "text")} ahead in the queue…`);
        } else if (event.event === "tokens") {
          for (const token of event.tokens) this.add(take, token);
          const now = performance.now(), made = take.tokens.length - take.kept;
          if (now - said < 1000) continue;  // who listens to the page would hear nothing else
          said = now;
          this.say(take, `${plural(made, "token")}, ${short(made / ((now - started) / 1000), 2)} tokens/s`);
        } else if (event.event === "end") {
          if (event.note) note = ` ${event.note}`;
          this.finish(take, `${plural(event.count, "token")} in ${event.seconds.toFixed(1)} s (${short(event.count / event.seconds, 2)} tokens/s): ${ENDS[event.stopped]}.${note}`);
          announce(`${label(this.bundle)}: ${event.text}`);
        } else {
          this.finish(take, event.message);
        }
      }
      if (!take.ended) this.finish(take, "The server closed the stream too early.");
    } catch (error) {
      this.finish(take, error.name === "AbortError" ? `Stopped after ${plural(take.tokens.length - take.kept, "token")}.` : error.message);
    }
    if (this.running === running) this.running = null;
  }

  /** How a take stands: shown where the take is. */
  say(take, status) {
    take.status = status;
    if (this.shown === take) this.status.textContent = status;
  }

  finish(take, status) {
    take.ended = true;
    take.caret.remove();
    this.say(take, status);
    this.drawHistory();
    if (this.shown === take) this.source(take);
  }

  /** Underline what stands in the training text, once the text is there. */
  source(take) {
    this.sources.look(take, (place, number) => {
      const span = this.spanAt(place);
      span?.classList.add("copied");
      if (span) span.source = number;
    });
  }

  /** Show a take: the one being written, or an earlier one to compare with or branch from. */
  choose(take) {
    this.shown = take;
    this.roads.hidden = true;
    this.sources.hide();
    show(this.written, take.request.prompt ? h("span", { class: "prompt" }, take.request.prompt) : null, !take.ended && take.caret);
    this.partial = [];
    take.tokens.forEach((token, place) => this.draw(take, token, place));
    this.say(take, take.status);
    this.drawHistory();
    if (take.ended) this.source(take);
  }

  drawHistory() {
    const focused = this.past.contains(document.activeElement);
    show(this.past, this.history.length < 2 ? [] : this.history.slice(-8).map((take) => h("button", {
      type: "button", class: "chip", "aria-pressed": String(take === this.shown), onclick: () => this.choose(take),
    }, `Take ${this.history.indexOf(take) + 1}`)));
    if (focused) this.past.querySelector('[aria-pressed="true"]')?.focus({ preventScroll: true });
  }

  add(take, token) {
    take.tokens.push(token);
    if (this.shown === take) this.draw(take, token, take.tokens.length - 1);
  }

  /** A character that several tokens share appears with the last of them; until then each shows its bytes. */
  draw(take, token, place) {
    const bytes = fromBase64(token.bytes);
    const span = h("span", { class: place < take.kept ? "g kept" : "g", title: `${percent(token.logprob)}`, style: { "--doubt": String(Math.min(1, -token.logprob / 5)) } });
    span.place = place;
    const { text, raw } = readable(bytes);
    span.textContent = text;
    if (raw) span.classList.add("raw");
    // What came before a token of whole characters can't be completed any more, nor what lies back more than a character's bytes.
    this.partial = raw ? [...this.partial, { span, bytes }].slice(-LONGEST) : [];
    this.join();
    if (take.ended) this.written.append(span); else take.caret.before(span);
  }

  join() {
    for (let from = 0; from < this.partial.length - 1; from++) {
      const parts = this.partial.slice(from);
      const { text, raw } = readable(new Uint8Array(parts.flatMap((part) => [...part.bytes])));
      if (raw) continue;
      parts.forEach((part, i) => { part.span.textContent = i === parts.length - 1 ? text : "\u200b"; part.span.classList.remove("raw"); });
      this.partial = [];
    }
  }

  spanAt(place) { return this.written.querySelectorAll(".g")[place]; }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.shown?.tokens.length) return;
    event.preventDefault();
    const now = this.written.querySelector(".g.active")?.place ?? (step > 0 ? -1 : this.shown.tokens.length);
    this.look(Math.max(0, Math.min(this.shown.tokens.length - 1, now + step)));
  }

  /** The likeliest tokens at a place; each is a road that can be taken from here. */
  look(place) {
    const take = this.shown, token = take.tokens[place];
    this.written.querySelectorAll(".g.active").forEach((span) => span.classList.remove("active"));
    this.spanAt(place).classList.add("active");
    const others = token.alternatives.some((other) => other.id === token.id) ? [...token.alternatives] : [token, ...token.alternatives];
    others.sort((a, b) => b.logprob - a.logprob);
    show(this.roads, h("h3", {}, `Token ${count(place + 1)}: alternatives`), others.map((other) => {
      const name = inline(fromBase64(other.bytes));
      return h("div", { class: other.id === token.id ? "alternative chosen" : "alternative" }, h("code", { title: `id ${other.id}` }, name),
        h("span", { class: "bar" }, h("i", { style: { width: `${100 * Math.exp(other.logprob)}%` } })),
        h("span", { class: "number small" }, percent(other.logprob)),
        h("button", { type: "button", "aria-label": other.id === token.id ? `Go on from ${name} again` : `Branch with ${name}`, onclick: () => this.onbranch(this, take, place, other) }, other.id === token.id ? "again" : "branch"));
    }));
    this.roads.hidden = false;
    if (this.spanAt(place).source !== undefined) this.sources.open(take, this.spanAt(place).source);
    announce(`Token ${place + 1}: ${inline(fromBase64(token.bytes))}, probability ${percent(token.logprob)}`);
  }
}
