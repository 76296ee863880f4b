// Inside: what happens in a model as it reads a text, token by token, layer by layer.

import { get, post, readLibrary, title } from "../api.js";
import { announce, field, h, latest, memory, notice, options, show } from "../dom.js";
import { count, plural } from "../format.js";
import { asPicture, paint } from "../pictures.js";
import { fromBase64, inline, readable } from "../pieces.js";

const percent = (logprob) => { const p = 100 * Math.exp(logprob); return p >= 10 ? `${p.toFixed(0)} %` : p >= 0.1 ? `${p.toFixed(1)} %` : "< 0.1 %"; };
const LONGEST = 20_000;

export async function open(place, query) {
  const library = await readLibrary(true);
  const heading = h("header", { class: "head" }, h("h1", {}, "Inside"),
    h("p", {}, "See what happens in a model while it reads a text. The stronger a token’s shade, the less the model expected it. Point at a token to see what each head attends to, and what each layer would predict next."));
  if (!library.bundles.length) {
    show(place, heading, h("div", { class: "nothing" }, "There is no model here yet. ", h("code", {}, "fledge demo"), " trains one in a few minutes."));
    return undefined;
  }
  const view = new Inside(place, heading, library, query);
  await view.begin();
  return () => view.close();
}

class Inside {
  constructor(place, heading, library, query) {
    const saved = memory.get("inside", {});
    const choices = library.bundles.map((bundle) => [bundle.name, title(bundle)]).reverse();
    const wanted = query.get("bundle") ?? saved.bundle;
    this.bundle = options(h("select"), choices, choices.some(([name]) => name === wanted) ? wanted : choices[0][0]);
    this.text = h("textarea", { rows: 3, spellcheck: "false", maxlength: String(LONGEST) });
    this.text.value = (saved.text ?? "").slice(0, LONGEST);
    this.paragraphs = h("input", { type: "checkbox", checked: saved.paragraphs ?? false });
    this.go = h("button", { type: "submit", class: "primary" }, "Look");
    this.form = h("form", { class: "card inside-form", onsubmit: (event) => { event.preventDefault(); this.look(); } },
      field("Text", this.text),
      h("div", { class: "row" }, field("Bundle", this.bundle), h("label", { class: "check" }, this.paragraphs, "each paragraph is a document of its own"), this.go));
    this.text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit(); });
    this.status = h("p", { class: "small muted", role: "status" });
    this.result = h("div", { class: "inside-layout", hidden: true });
    this.chosen = 0;
    this.head = { layer: 0, head: 0 };
    this.askToken = latest((number) => this.readToken(number), () => 60);
    this.repaint = () => this.seen && this.drawPictures();
    this.colours = new MutationObserver(this.repaint);
    this.colours.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", this.repaint);
    show(place, heading, this.form, this.status, this.result);
  }

  async begin() {
    if (!this.text.value) {
      const own = await get("/api/bundles/sampling", { bundle: this.bundle.value }).catch(() => null);
      this.text.value = own?.passage || own?.prompt || "In the beginning God created the heaven and the earth.";
    }
    await this.look();
  }

  close() {
    this.colours.disconnect();
    this.scheme.removeEventListener("change", this.repaint);
  }

  async look() {
    memory.set("inside", { bundle: this.bundle.value, text: this.text.value, paragraphs: this.paragraphs.checked });
    this.go.disabled = true;
    this.status.textContent = "The model reads…";
    const began = performance.now();
    try {
      this.seen = await post("/api/inside", { bundle: this.bundle.value, text: this.text.value, paragraphs: this.paragraphs.checked });
    } catch (error) {
      this.status.textContent = error.message;
      this.result.hidden = true;
      return;
    } finally {
      this.go.disabled = false;
    }
    const known = this.seen.tokens.filter((token) => token.logprob !== null);
    const mean = known.reduce((sum, token) => sum - token.logprob, 0) / (known.length || 1);
    this.status.textContent = `${plural(this.seen.tokens.length, "token")} in ${((performance.now() - began) / 1000).toFixed(2)} s; ${known.length ? `${mean.toFixed(2)} nats each on average` : "one token, which nothing told of"}. ${this.seen.note ?? ""}`;
    this.head = { layer: this.seen.heads.length - 1, head: 0 };
    this.large = null;
    this.draw();
    performance.measure("look", { start: began, end: performance.now() });
    await Promise.all([this.readHead(), this.choose(this.seen.tokens.length - 1)]);
  }

  draw() {
    const { seen } = this;
    this.spans = seen.tokens.map((token, number) => {
      const { text, raw } = readable(fromBase64(token.bytes));
      const told = token.logprob === null ? "nothing before it" : percent(token.logprob);
      const span = h("span", { class: raw ? "g raw" : "g", title: told, style: { "--doubt": String(Math.min(1, -(token.logprob ?? 0) / 5)) } }, text);
      span.number = number;
      return span;
    });
    const parts = this.spans.flatMap((span, i) => (i && seen.tokens[i].document !== seen.tokens[i - 1].document ? [h("hr", { title: "Another document" }), span] : [span]));
    const pick = (event) => { const number = event.target.closest(".g")?.number; if (number !== undefined) this.choose(number); };
    this.looked = h("div", { class: "looked", tabindex: 0, role: "group", "aria-label": "Tokens of the text", "aria-description": "Arrow keys walk from token to token.",
      onpointerover: pick, onclick: pick, onpointerleave: () => this.looked.classList.remove("attending"), onkeydown: (event) => this.key(event) }, parts);
    this.lens = h("section", { class: "card", "aria-label": "Layers" });
    this.neurons = h("section", { class: "card", "aria-label": "Neurons", hidden: !seen.neurons.length });
    this.big = h("canvas", { class: "large-head", role: "img" });
    this.big.addEventListener("pointermove", (event) => this.point(event));
    this.caption = h("p", { class: "small muted" });
    this.grid = h("div", { class: "head-grid", role: "group", "aria-label": "Heads" });
    this.strips = h("div", { class: "strips" });
    const attention = seen.heads.length > 0;
    show(this.result,
      h("div", { class: "stack" }, h("section", { class: "card" }, this.looked), this.lens, this.neurons),
      h("div", { class: "stack" },
        attention && h("section", { class: "card", "aria-label": "Attention" }, h("h2", {}, seen.architecture === "bdh" ? "Scores of each head" : "Attention of each head"),
          h("p", { class: "small muted" }, "Each row of pictures is a layer. In a picture, rows are attending tokens and columns are the tokens they attend to. The chosen picture is enlarged."), this.grid, this.caption, this.big),
        h("section", { class: "card", "aria-label": "Over the text", hidden: !(seen.lens || seen.gates.length || seen.neurons.length) }, h("h2", {}, "Over the text"), this.strips)));
    this.result.hidden = false;
    this.drawPictures();
  }

  drawPictures() {
    const { seen } = this;
    show(this.grid, seen.heads.map((heads, layer) => h("div", { class: "head-row" }, h("span", { class: "small muted" }, String(layer + 1)), heads.map((picture, head) => {
      const canvas = h("canvas");
      paint(canvas, picture);
      return h("button", { type: "button", "aria-label": `Layer ${layer + 1}, head ${head + 1}`, "aria-pressed": String(layer === this.head.layer && head === this.head.head),
        onclick: () => { this.head = { layer, head }; this.press(); this.readHead(); } }, canvas);
    }))));
    const strip = (name, picture, height) => { const canvas = h("canvas", { class: "strip", role: "img", "aria-label": name }); paint(canvas, picture); canvas.style.setProperty("height", height); return [h("span", { class: "small muted" }, name), canvas]; };
    show(this.strips,
      seen.lens ? strip("probability of the next token, by layer", asPicture(seen.lens.map((line) => line.map((value) => (value === null ? 0 : Math.exp(value))))), `${0.7 * seen.lens.length}rem`) : null,
      seen.gates.map((gate) => strip(`${gate.name}, layer ${gate.layer + 1}`, gate.picture, "3.5rem")),
      seen.neurons.length ? [strip("active neurons", asPicture(seen.neurons.map((layer) => layer.share)), `${0.8 * seen.neurons.length}rem`),
        strip("let through", asPicture(seen.neurons.map((layer) => layer.gated_share)), `${0.8 * seen.neurons.length}rem`)] : null);
    this.bare = null;
    this.drawLarge();
  }

  press() {
    this.grid.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", String(button.getAttribute("aria-label") === `Layer ${this.head.layer + 1}, head ${this.head.head + 1}`)));
  }

  async readHead() {
    if (!this.seen.heads.length) return;
    const { layer, head } = this.head;
    try {
      const large = await get("/api/inside/head", { look: this.seen.look, layer, head });
      if (layer !== this.head.layer || head !== this.head.head) return;
      this.large = { ...large, data: fromBase64(large.data) };
      this.bare = null;
    } catch (error) { notice(error.message); return; }
    this.caption.textContent = `Layer ${layer + 1}, head ${head + 1}`;
    this.drawLarge();
    this.shade();
  }

  /** The head at its full size, the borders of documents and the chosen row on it. */
  drawLarge() {
    if (!this.large) return;
    if (!this.bare) paint(this.bare = document.createElement("canvas"), this.large);  // once; pointing only copies it
    const drawing = this.big.getContext("2d"), size = this.big.width = this.big.height = this.large.columns;
    drawing.drawImage(this.bare, 0, 0);
    drawing.fillStyle = getComputedStyle(this.big).color;
    this.seen.tokens.forEach((token, i) => { if (i && token.document !== this.seen.tokens[i - 1].document) { drawing.globalAlpha = 0.35; drawing.fillRect(0, i, size, 0.3); drawing.fillRect(i, 0, 0.3, size); } });
    drawing.globalAlpha = 0.25;
    drawing.fillRect(0, this.chosen, this.chosen + 1, 1);
    drawing.globalAlpha = 1;
    this.grid.style.setProperty("--row", this.chosen / size);
    this.big.setAttribute("aria-label", `Layer ${this.head.layer + 1}, head ${this.head.head + 1}: attention`);
  }

  point(event) {
    const box = this.big.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.seen.tokens.length);
    if (row >= 0 && row < this.seen.tokens.length) this.choose(row);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(this.spans.length - 1, this.chosen + step)));
    this.spans[this.chosen].scrollIntoView({ block: "nearest" });
    const token = this.seen.tokens[this.chosen];
    announce(`Token ${this.chosen + 1}: ${inline(fromBase64(token.bytes))}${token.logprob === null ? "" : `, probability ${percent(token.logprob)}`}`);
  }

  async choose(number) {
    if (this.chosen === number && this.spans[number].classList.contains("active")) return;
    this.spans[this.chosen]?.classList.remove("active");
    this.chosen = number;
    this.spans[number].classList.add("active");
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => { this.shade(); this.drawLarge(); });
    this.askToken(number);
  }

  /** The text in the shades of what the chosen token looks at in the enlarged head. */
  shade() {
    if (!this.large) return;
    const { data, columns } = this.large, from = this.chosen * columns;
    this.spans.forEach((span, i) => {
      const weight = i <= this.chosen ? (data[from + i] / 255).toFixed(2) : "0.00";
      if (weight !== span.weight) span.style.setProperty("--weight", span.weight = weight);  // most are 0 and stay so
    });
    this.looked.classList.toggle("attending", this.looked.matches(":hover, :focus"));
  }

  async readToken(number) {
    let found;
    try {
      found = await get("/api/inside/token", { look: this.seen.look, place: number });
    } catch (error) { notice(error.message); return; }
    if (found.place !== this.chosen) return;
    const came = this.seen.tokens[number + 1], name = inline(fromBase64(this.seen.tokens[number].bytes));
    const comes = found.layers.at(-1).next_logprob !== null;
    show(this.lens, h("h2", {}, `After “${name}” (token ${count(number + 1)})`),
      h("p", { class: "small muted" }, "What each layer would predict next if it were the last.", comes ? ` The next token was “${inline(fromBase64(came.bytes))}”.` : ""),
      h("div", { class: "scroll" }, h("table", { class: "lens" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Layer"), h("th", { scope: "col" }, "Likeliest"), comes && h("th", { scope: "col", class: "number" }, "What came"))),
        h("tbody", {}, found.layers.map((layer, i) => h("tr", {}, h("td", {}, i ? String(i) : "before"),
          h("td", {}, layer.likeliest.slice(0, 4).map((each) => [h("code", { title: percent(each.logprob), style: { "--chance": String(Math.exp(each.logprob)) } }, inline(fromBase64(each.bytes))), " "])),
          comes && h("td", { class: "number" }, percent(layer.next_logprob))))))));
    if (!this.seen.neurons.length) return;
    show(this.neurons, h("h2", {}, "Strongest neurons here"),
      found.neurons.map((layer, i) => h("p", { class: "small" }, `Layer ${i + 1}: `, layer.length ? layer.slice(0, 6).map((each) => `${each.neuron} of head ${each.head + 1} (${each.value.toPrecision(2)})`).join(", ") : "none fires",
        h("span", { class: "muted" }, `; ${(100 * this.seen.neurons[i].share[number]).toFixed(1)} % fire. Grown most: ${this.seen.neurons[i].grown.map((each) => each[0]).join(", ")}`))));
  }
}
