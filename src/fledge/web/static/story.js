// The story of a word: its merges replayed one by one, and what its characters are.

import { label, post } from "./api.js";
import { announce, field, h, latest, options, show } from "./dom.js";
import { count, plural } from "./format.js";
import { fromBase64, hex, inline } from "./pieces.js";

export class Story {
  constructor() {
    this.word = h("input", { type: "text", maxlength: "200", spellcheck: "false", autocomplete: "off" });
    this.tokenizer = h("select");
    this.bytes = h("input", { type: "text", maxlength: "1000", spellcheck: "false", autocomplete: "off", placeholder: "E2 82 AC" });
    this.replay = h("div", { class: "replay" });
    this.facts = h("div", { class: "scroll" });
    this.merge = latest(() => this.readMerges());
    this.look = latest((asked) => this.readFacts(asked));
    this.word.addEventListener("input", () => { this.set(this.word.value); this.changed(); });
    this.tokenizer.addEventListener("change", () => this.merge());
    this.bytes.addEventListener("input", () => (this.bytes.value.trim() ? this.look({ hex: this.bytes.value }) : this.changed()));
    this.timer = 0;
    this.element = h("div", { class: "details" },
      h("section", { class: "card", "aria-label": "Merges of a word" }, h("h2", {}, "Merges of a word"),
        h("div", { class: "row" }, field("Word", this.word), field("Tokenizer", this.tokenizer)), this.replay),
      h("section", { class: "card", "aria-label": "Characters and bytes" }, h("h2", {}, "Characters and bytes"),
        field("Or enter bytes in hexadecimal to see why they do not decode", this.bytes), this.facts));
  }

  close() { clearInterval(this.timer); }

  offer(name, library) {
    options(this.tokenizer, library.tokenizers.map((t) => [t.name, label(t.name)]), name);
    this.set(" therefore");
    this.changed();
  }

  /** The word is kept beside its field, since a field of one line holds no line's end. */
  set(word) {
    this.text = this.word.value = word;
    this.word.placeholder = inline(new TextEncoder().encode(word));
  }

  /** Called when a token was chosen: its word is replayed, and the bytes of the token itself are looked at. */
  tell(tokenizer, word, bytes) {
    this.tokenizer.value = tokenizer;
    this.set(word);
    this.bytes.value = hex(bytes);
    this.merge();
    this.look({ hex: this.bytes.value });
    this.element.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }

  changed() {
    this.bytes.value = "";
    this.merge();
    this.look({ text: this.text });
  }

  async readMerges() {
    clearInterval(this.timer);
    if (!this.text || !this.tokenizer.value) { show(this.replay); return; }
    try {
      const { steps, ids, note } = await post("/api/merges", { tokenizer: this.tokenizer.value, text: this.text });
      if (note) show(this.replay, h("p", { class: "muted small" }, note), this.pieces(steps[0]));
      else this.play(steps, ids);
    } catch (error) {
      show(this.replay, h("p", { class: "muted" }, error.message));
    }
  }

  pieces(step) {
    return h("div", { class: "pieces", role: "list", "aria-label": "Pieces" }, step.pieces.map((piece, index) =>
      h("span", { class: index === step.position ? "piece made" : "piece", role: "listitem" }, inline(fromBase64(piece)))));
  }

  play(steps, ids) {
    let now = steps.length - 1;
    const last = now;
    const pieces = h("div");
    const line = h("p", { class: "small muted" });
    const slider = h("input", { type: "range", min: "0", max: String(last), value: String(last), "aria-label": "Step", oninput: () => go(Number(slider.value)) });
    const button = (text, name, to) => h("button", { type: "button", "aria-label": name, onclick: () => { stop(); go(to()); } }, text);
    const playing = h("button", { type: "button", onclick: () => (this.timer ? stop() : start()) }, "Play");
    const stop = () => { clearInterval(this.timer); this.timer = 0; playing.textContent = "Play"; };
    const start = () => {
      playing.textContent = "Pause";
      go(now === last ? 0 : now);
      this.timer = setInterval(() => (now < last ? go(now + 1) : stop()), 700);
    };
    const go = (to) => {
      now = Math.max(0, Math.min(last, to));
      slider.value = String(now);
      const step = steps[now];
      show(pieces, this.pieces(step));
      line.textContent = now === 0 ? `Every byte alone: ${plural(step.pieces.length, "piece")}.`
        : `Step ${now} of ${last}: merge number ${count(step.rank + 1)} makes “${inline(fromBase64(step.pieces[step.position]))}”. ${plural(step.pieces.length, "piece")} left${now === last ? `, with ${ids.length === 1 ? "id" : "ids"} ${ids.join(", ")}` : ""}.`;
      slider.setAttribute("aria-valuetext", line.textContent);
      if (!this.timer) announce(line.textContent);
    };
    show(this.replay,
      h("div", { class: "row controls" }, button("«", "First step", () => 0), button("‹", "Step back", () => now - 1), playing,
        button("›", "Step forward", () => now + 1), button("»", "Last step", () => last), slider), pieces, line);
    this.timer = 0;
    go(last);
  }

  async readFacts(asked) {
    try {
      const facts = await post("/api/unicode", asked);
      show(this.facts,
        h("p", { class: "small muted" }, `${plural(facts.code_points, "code point")}, ${plural(facts.utf8_bytes, "byte")} in UTF-8, ${facts.utf16_bytes} in UTF-16`,
          facts.composed ? "" : "; not in composed normal form (NFC)"),
        facts.flaws.map((flaw) => h("p", { class: "problem small" }, `Byte ${flaw.start}: ${flaw.reason}.`)),
        h("table", {}, h("thead", {}, h("tr", {}, ["", "Code point", "Name", "UTF-8"].map((text) => h("th", { scope: "col" }, text)))),
          h("tbody", {}, facts.characters.map((c) => h("tr", {},
            h("td", { class: "glyph-cell" }, c.note ? "" : c.character), h("td", {}, h("code", {}, c.code_point)),
            h("td", {}, c.name.toLowerCase(), c.note ? h("span", { class: "muted" }, ` · ${c.note}`) : null), h("td", {}, h("code", {}, c.utf8)))))));
    } catch (error) {
      show(this.facts, h("p", { class: "problem small" }, error.message));
    }
  }
}
