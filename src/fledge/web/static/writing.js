// Where a text is typed or pasted. A browser needs 10 µs to lay out each line of a field, so one of very many lines shows
// its beginning only, and keeps the rest.

import { h } from "./dom.js";
import { count } from "./format.js";

const LARGE = 30_000;
const LINES = 50_000;
const SHOWN = 1000;

export class Writing {
  constructor(text, onchange) {
    this.onchange = onchange;
    this.input = h("textarea", { id: "text", rows: 4, spellcheck: "false", autocomplete: "off", maxlength: "2000000", placeholder: "Type or paste any text…",
      oninput: () => { this.text = this.input.value; onchange(this.text); },
      onpaste: (event) => this.take(event, event.clipboardData),
      ondrop: (event) => this.take(event, event.dataTransfer) });
    this.words = h("span", { class: "small muted" });
    this.note = h("p", { class: "row", role: "status" }, this.words,
      h("button", { type: "button", class: "chip", onclick: () => { this.change(""); this.input.focus(); } }, "Empty the field"));
    this.element = h("div", { class: "input" }, h("label", { for: "text" }, "Text"), this.input, this.note);
    this.set(text);
  }

  set(text) {
    this.text = text;
    const end = endOfLine(text, LINES) === -1 ? -1 : endOfLine(text, SHOWN);
    this.input.value = end === -1 ? text : text.slice(0, end);
    this.input.readOnly = end !== -1;
    this.note.hidden = end === -1;
    if (end !== -1) this.words.textContent = `Only the first ${count(SHOWN)} lines are shown here; the tokens below are of the whole text.`;
  }

  change(text) {
    this.set(text);
    this.onchange(text);
  }

  /** The browser's own pasting lays a megabyte out line by line, and freezes. */
  take(event, data) {
    const text = data?.getData("text/plain") ?? "", { input } = this;
    if (!input.readOnly && text.length + this.text.length < LARGE) return;
    event.preventDefault();
    if (input.readOnly) { this.change(text); return; }
    const [from, to] = [input.selectionStart, input.selectionEnd];
    const whole = input.value.slice(0, from) + text + input.value.slice(to);
    if (endOfLine(whole, LINES) !== -1) { this.change(whole); return; }
    input.setRangeText(text, from, to, "end");
    input.dispatchEvent(new Event("input"));
  }
}

/** Where the line of a number ends; -1 where there are not so many. */
function endOfLine(text, number) {
  let end = -1;
  for (let line = 0; line < number; line++) {
    end = text.indexOf("\n", end + 1);
    if (end === -1) return -1;
  }
  return end;
}
