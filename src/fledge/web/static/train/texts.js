// The text to train on: dropped, chosen, pasted, or one that lies in a served folder already; and what it is.

import { get, post, send } from "../api.js";
import { announce, field, h, notice, redraw, show } from "../dom.js";
import { bytes, count, plural } from "../format.js";

const percent = (share) => (share >= 0.1 ? `${(100 * share).toFixed(0)} %` : `${(100 * share).toFixed(1)} %`);

export class Texts {
  constructor(onchange) {
    this.onchange = onchange;
    this.chosen = new Set();
    this.known = [];
    this.answer = null;
    this.picker = h("input", { type: "file", multiple: true, class: "unseen", "aria-label": "Text files", onchange: () => { this.send([...this.picker.files]); this.picker.value = ""; } });
    this.list = h("div", { class: "text-list", role: "group", "aria-label": "Texts" });
    this.status = h("p", { class: "small muted", role: "status" });
    this.pasted = h("textarea", { rows: 5, spellcheck: "false", placeholder: "Paste a text here" });
    this.facts = h("section", { class: "card stack text-facts", "aria-label": "About the text", hidden: true });
    const paste = h("details", {}, h("summary", { class: "small" }, "Or paste a text"), field("Text", this.pasted),
      h("button", { type: "button", onclick: () => this.keepPasted() }, "Use this text"));
    this.element = h("section", { class: "card stack drop", "aria-label": "Text", ondragover: (event) => { event.preventDefault(); this.element.classList.add("over"); },
      ondragleave: () => this.element.classList.remove("over"), ondrop: (event) => this.drop(event) },
      h("h2", {}, "1. Your text"),
      h("div", { class: "row" }, this.choose = h("button", { type: "button", class: "primary", onclick: () => this.picker.click() }, "Choose files"), this.picker,
        h("span", { class: "small muted" }, "or drop them here: plain text or JSON lines")),
      this.status, this.list, paste);
  }

  async open(chosen = []) {
    this.answer = await get("/api/texts");
    this.known = this.answer.texts;
    for (const name of chosen) if (this.known.some((text) => text.name === name)) this.chosen.add(name);
    if (this.answer.note) this.status.textContent = this.answer.note;
    this.choose.disabled = !this.answer.place;
    this.draw();
    if (this.chosen.size) this.look();
  }

  draw() {
    show(this.list, this.known.map((text) => {
      const box = h("input", { type: "checkbox", checked: this.chosen.has(text.name), onchange: () => { this.pick(text.name, box.checked); } });
      return h("label", { class: "check text" }, box, h("span", { class: "name" }, text.corpus ? "The Bible (akjv)" : text.name.replace(/^texts\//, "")),
        text.bytes !== null && h("span", { class: "small muted" }, bytes(text.bytes)));
    }));
  }

  pick(name, wanted) {
    if (wanted) this.chosen.add(name); else this.chosen.delete(name);
    this.look();
  }

  drop(event) {
    event.preventDefault();
    this.element.classList.remove("over");
    const files = [...event.dataTransfer.files], text = event.dataTransfer.getData("text/plain");
    if (files.length) this.send(files);
    else if (text) this.send([new File([text], "dropped.txt")]);
  }

  keepPasted() {
    if (!this.pasted.value.trim()) { this.pasted.focus(); return; }
    this.send([new File([this.pasted.value], "pasted.txt")]);
    this.pasted.value = "";
  }

  /** Each file in parts, one after the other. What was chosen before stays chosen only where it was sent here, too. */
  async send(files) {
    if (!this.sent) this.chosen.clear();
    this.sent = true;
    for (const file of files) {
      try {
        this.chosen.add(await this.sendOne(file));
      } catch (error) {
        notice(error.message);
      }
    }
    this.status.textContent = "";
    this.known = (await get("/api/texts")).texts;
    this.draw();
    this.look();
  }

  async sendOne(file) {
    const { largest, part } = this.answer;
    if (file.size > largest) throw new Error(`${file.name} has ${bytes(file.size)}, and the page takes ${bytes(largest)} at most.`);
    if (!file.size) throw new Error(`${file.name} is empty.`);
    let { upload, text } = await post("/api/texts", { name: file.name, bytes: file.size });
    for (let offset = 0; offset < file.size; offset += part) {
      this.status.textContent = `${file.name}: ${Math.round((100 * offset) / file.size)} %`;
      const answer = await send(`/api/texts/part?${new URLSearchParams({ upload, offset })}`, { method: "POST", content: file.slice(offset, offset + part) });
      ({ text } = await answer.json());
    }
    return text;
  }

  /** What the chosen texts are; asked again when the choice changes. */
  async look() {
    const names = [...this.chosen], key = names.join("\n");
    this.asked = key;
    this.onchange(names);
    this.facts.hidden = !names.length;
    if (!names.length) return;
    show(this.facts, h("h2", {}, "About the text"), h("p", { class: "row busy small muted" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Looking for copies and problems…"));
    this.facts.told = null;
    try {
      const answer = await get(`/api/texts/facts?${names.map((name) => new URLSearchParams({ text: name })).join("&")}`);
      if (this.asked === key) this.drawFacts(answer);
    } catch (error) {
      if (this.asked === key) show(this.facts, h("h2", {}, "About the text"), h("p", { class: "problem" }, error.message));
    }
  }

  drawFacts(facts) {
    redraw(this.facts, facts, () => {
      const line = (name, value) => [h("dt", {}, name), h("dd", { class: "number" }, value)];
      show(this.facts, h("h2", {}, "About the text"), h("dl", {}, line("Size", bytes(facts.bytes)), line("Documents", count(facts.documents)),
        facts.longest !== null && line("Length", `${bytes(facts.shortest)} to ${bytes(facts.longest)}`),
        line("Script", facts.scripts.join(", ")),
        facts.copied !== null && line("Copies", `${percent(facts.copied)} in copied documents, ${percent(facts.repeated)} in repeated passages`)),
        facts.note && h("p", { class: "small muted" }, facts.note),
        facts.warnings.length > 0 && h("ul", { class: "small warnings" }, facts.warnings.map((text) => h("li", {}, text))),
        facts.samples.length > 0 && h("details", { open: true }, h("summary", { class: "small" }, `${plural(facts.samples.length, "sample")} of it`), facts.samples.map((text) => h("pre", { class: "small sample-text" }, text))));
      announce(`${bytes(facts.bytes)} in ${plural(facts.documents, "document")}`);
    });
  }
}
