// Tokens: a text in up to four tokenizers side by side, with the story of any word in it.

import { label, post, readLibrary } from "../api.js";
import { Coloured } from "../coloured.js";
import { h, latest, memory, notice, options, painted, segments, show } from "../dom.js";
import { count, fixed, plural } from "../format.js";
import { Tokenized } from "../pieces.js";
import { Story } from "../story.js";
import { Writing } from "../writing.js";

const MOST = 4;
const LARGE = 30_000;
const EXAMPLES = [
  ["egg, Egg,  egg", "egg Egg  egg eggs\n“Egg,” said the egg: an egg is an Egg."],
  ["therefore", "therefore, wherefore, thereof, before the forest"],
  ["Languages", "naïve café · 鸡蛋在篮子里 · Ελληνικά · 안녕하세요 · नमस्ते · 🥚🐣🐥 👩‍👩‍👧"],
  ["Invisible", "a\u00a0b\u200bc\td\r\ne\u2009f \u202eg"],
  ["Code", "def egg(n: int) -> list[int]:\n    return [n * 0x1F for n in range(1000)]\n"],
];

export async function open(place) {
  const library = distinct(await readLibrary(true));
  const state = {
    text: memory.get("text", EXAMPLES[0][1]),
    chosen: memory.get("tokenizers", []).filter((name) => library.tokenizers.some((t) => t.name === name)),
    signs: memory.get("signs", true),
    ids: false,
  };
  if (!library.tokenizers.length) {
    show(place, heading(), h("div", { class: "nothing" }, "There is no tokenizer here yet. ",
      h("code", {}, "fledge tokenizer train TEXT"), " makes one; then open it with ", h("code", {}, "fledge serve FOLDER"), "."));
    return;
  }
  if (!state.chosen.length) state.chosen = first(library, 2);

  const writing = new Writing(state.text, (text) => {
    state.text = text;
    if (text.length < 100_000) memory.set("text", text);
    update(text);
  });
  const sizes = h("span", { class: "small muted", id: "sizes", role: "status" });
  const panels = h("div", { class: "panels" });
  const add = h("button", { type: "button", onclick: () => { state.chosen.push(unused()); build(state.chosen.length === MOST ? MOST - 1 : null); } }, "Add a tokenizer");
  const story = new Story();
  let shown = [];

  const unused = () => library.tokenizers.map((t) => t.name).find((name) => !state.chosen.includes(name)) ?? library.tokenizers[0].name;

  /** Panels for what is chosen; the focus, where it was on what is gone, goes to the panel of a number. */
  function build(focused = null) {
    shown.forEach((panel) => panel.coloured.close());
    shown = state.chosen.map((name, index) => panelFor(name, index));
    show(panels, shown.map((panel) => panel.element));
    add.hidden = state.chosen.length >= MOST;
    if (focused !== null) shown[Math.min(focused, shown.length - 1)].select.focus({ preventScroll: true });
    memory.set("tokenizers", state.chosen);
    update(state.text);
  }

  function panelFor(name, index) {
    const select = options(h("select", { "aria-label": `Tokenizer ${index + 1}` }), grouped(library), name);
    select.addEventListener("change", () => { state.chosen[index] = select.value; build(index); });
    const facts = h("div", { class: "facts" });
    const coloured = new Coloured(`Tokens of ${label(name)}`, { onpick: (token) => story.tell(name, wordAround(panel.tokenized, token), panel.tokenized.bytes(token)) });
    const remove = state.chosen.length > 1 && h("button", {
      type: "button", class: "quiet", "aria-label": `Remove ${label(name)}`, title: "Remove", onclick: () => { state.chosen.splice(index, 1); build(index); },
    }, "✕");
    const element = h("article", { class: "card panel", "aria-label": label(name) }, h("div", { class: "row" }, select, remove), facts, coloured.element);
    const panel = { element, select, coloured, facts, tokenized: null };
    return panel;
  }

  function draw() {
    for (const panel of shown) if (panel.tokenized) panel.coloured.show(panel.tokenized, state.signs, state.ids);
  }

  const update = latest(async (text) => {
    const asked = shown;
    const start = performance.now();
    try {
      const answer = await post("/api/tokens", { text, tokenizers: [...state.chosen] });
      if (asked !== shown) return;
      sizes.textContent = `${plural(answer.characters, "character")}, ${plural(answer.bytes, "byte")} as UTF-8`;
      // Two measures: until all that the screen holds is painted, and until all of the text is.
      painted().then(() => measure("colour", start, answer.bytes));
      const whole = Promise.all(answer.results.map((result, index) => fill(shown[index], result)));
      whole.then((done) => done.every(Boolean) && measure("colour-all", start, answer.bytes));
      void panels.offsetHeight;  // laid out now, and not only when the next frame is due
    } catch (error) {
      notice(error.message);
    }
  }, (text) => (text.length > LARGE ? 250 : 0));

  function fill(panel, result) {
    if (result.error) {
      panel.tokenized = null;
      show(panel.facts, h("span", { class: "problem" }, result.error.message));
      panel.coloured.clear();
      return;
    }
    panel.tokenized = new Tokenized(result);
    const fact = (value, words) => h("span", {}, h("b", {}, value), ` ${words}`);
    show(panel.facts, fact(count(result.ids.length), result.ids.length === 1 ? "token" : "tokens"),
      fact(result.bytes_per_token === null ? "–" : fixed(result.bytes_per_token, 2), "bytes per token"),
      h("span", { title: "Kind and vocabulary" }, `${result.kind}, ${count(result.vocabulary_size)} ids`),
      result.exact ? null : h("span", { class: "problem" }, "does not spell the text exactly"));
    return panel.coloured.show(panel.tokenized, state.signs, state.ids);
  }

  const signs = h("input", { type: "checkbox", checked: state.signs, onchange: () => { state.signs = signs.checked; memory.set("signs", state.signs); draw(); } });

  show(place, heading(),
    writing.element,
    h("div", { class: "row examples" }, EXAMPLES.map(([name, text]) =>
      h("button", { type: "button", class: "chip", onclick: () => writing.change(text) }, name))),
    h("div", { class: "row" },
      h("label", { class: "check" }, signs, "Show invisible characters"),
      segments("Show tokens as", [[false, "Text"], [true, "Ids"]], false, (ids) => { state.ids = ids; draw(); }),
      add, sizes),
    panels, story.element);
  build();
  story.offer(state.chosen[0], library);
  return () => { shown.forEach((panel) => panel.coloured.close()); story.close(); };
}

const measure = (name, start, bytes) => performance.measure(name, { start, end: performance.now(), detail: { bytes } });

const heading = () => h("header", { class: "head" }, h("h1", {}, "Tokens"),
  h("p", {}, "A model reads tokens instead of letters. Each colour is one token. Point at a token for its id and bytes; choose it for its merges."));

/** All checkpoints of a run have one tokenizer: its own folder where there is one, else the newest checkpoint stands for it. */
function distinct(library) {
  const names = new Set(library.tokenizers.map((t) => t.name));
  const newest = new Map(library.bundles.map((bundle) => [bundle.run ?? bundle.name, bundle.name]));
  const spare = new Set(library.bundles.filter((b) => b.run && (names.has(`${b.run}/tokenizer`) || newest.get(b.run) !== b.name)).map((b) => b.name));
  return { ...library, tokenizers: library.tokenizers.filter((t) => !spare.has(t.name)) };
}

/** Two to begin with: one of a run and one that came as a file, if there are both. */
function first(library, number) {
  const ofRun = (t) => t.source === "bundle" || t.name.endsWith("/tokenizer");
  const names = (list) => list.map((t) => t.name);
  const [runs, own] = [names(library.tokenizers.filter(ofRun)), names(library.tokenizers.filter((t) => !ofRun(t)))];
  return [...runs.slice(0, 1), ...own, ...runs.slice(1)].slice(0, number);
}

const grouped = (library) => {
  const ofRun = (t) => t.source === "bundle" || t.name.endsWith("/tokenizer");
  const group = (wanted) => library.tokenizers.filter((t) => ofRun(t) === wanted).map((t) => [t.name, label(t.name)]);
  return [["Tokenizers", group(false)], ["Of runs and bundles", group(true)]].filter(([, entries]) => entries.length);
};

/** The bytes from the last space or line end before a token to the next one after it: the word it belongs to. */
function wordAround(tokenized, place) {
  const gap = (byte) => byte === 32 || byte === 10 || byte === 9 || byte === 13;
  let from = place, to = place + 1;
  while (from > 0 && place - from < 20 && !gap(tokenized.bytes(from)[0]) && !gap(tokenized.bytes(from - 1).at(-1))) from--;
  while (to < tokenized.length && to - place < 20 && !gap(tokenized.bytes(to)[0]) && !gap(tokenized.bytes(to - 1).at(-1))) to++;
  const parts = [];
  for (let i = from; i < to; i++) parts.push(...tokenized.bytes(i));
  return new TextDecoder().decode(new Uint8Array(parts)).slice(0, 200);
}
