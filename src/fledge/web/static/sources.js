// What of a text stands word for word in the training text: underlined in the text, each with its passage.

import { get, post } from "./api.js";
import { h, notice, show } from "./dom.js";
import { count, plural } from "./format.js";

const words = (text, most) => { const line = text.replace(/\s+/g, " ").trim(); return line.length > most ? `${line.slice(0, most)}…` : line; };

/** Below a text: its copied stretches. `mark` is called for each token of one. */
export class Sources {
  constructor(bundle) {
    this.bundle = bundle;
    this.element = h("section", { class: "sources", "aria-label": "Sources", hidden: true });
  }

  hide() {
    this.element.hidden = true;
    this.asked = null;
  }

  /** Look for the stretches of a take once; what was found stays with it. */
  async look(take, mark) {
    this.asked = take;
    const ids = take.tokens.map((token) => token.id);
    if (!ids.length) return;
    if (!take.sources) {
      try {
        ({ sources: take.sources, note: take.unknown } = await post("/api/sources", { bundle: this.bundle, ids }));
      } catch (error) {
        take.sources = [];
        take.unknown = error.message;
      }
    }
    if (this.asked !== take) return;
    take.sources.forEach((source, number) => { for (let i = 0; i < source.length; i++) mark(source.start + i, number); });
    this.draw(take, ids.length);
  }

  draw(take, length) {
    const { sources, unknown } = take, copied = new Set(sources.flatMap((source) => Array.from({ length: source.length }, (_, i) => source.start + i))).size;
    this.passage = h("div", { class: "passage", hidden: true, tabindex: -1 });
    show(this.element, unknown ? h("details", { class: "small muted" }, h("summary", {}, "Sources unknown"), unknown)
      : !sources.length ? h("p", { class: "small muted" }, "No passage of 20 tokens or more occurs in the training text.")
      : [h("h3", {}, "Sources"), h("p", { class: "small muted" }, `${count(copied)} of ${plural(length, "token")} (${Math.round((100 * copied) / length)} %) also occur word for word in the training text and are underlined.`),
        h("ol", {}, sources.map((source, number) => h("li", {}, h("button", { type: "button", class: "quiet", onclick: () => this.open(take, number) }, `“${words(source.text, 60)}”`),
          h("span", { class: "small muted" }, ` ${plural(source.length, "token")}, document ${count(source.document + 1)}`)))), this.passage]);
    this.element.hidden = false;
  }

  /** The passage of the training text around a stretch. */
  async open(take, number) {
    const source = take.sources[number];
    let found;
    try {
      found = await get("/api/sources/passage", { bundle: this.bundle, document: source.document, place: source.place, length: source.length });
    } catch (error) { notice(error.message); return; }
    show(this.passage, h("p", { class: "small muted" }, `Document ${count(found.document + 1)} of ${count(found.documents)} of the training text`),
      h("blockquote", {}, found.begins ? "" : "… ", found.before, h("mark", {}, found.text), found.after, found.ends ? "" : " …"));
    this.passage.hidden = false;
    this.passage.focus({ preventScroll: true });
    this.passage.scrollIntoView({ block: "nearest" });
  }
}
