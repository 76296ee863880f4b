// Generate: a prompt, a strategy, one or two bundles; the same seed gives the same text.

import { label, readLibrary } from "../api.js";
import { field, h, memory, options, show } from "../dom.js";
import { Take } from "../take.js";

const NUMBERS = [
  // name, words, smallest, largest, step, usual; an empty field leaves the filter out
  ["temperature", "Temperature", 0, 10, 0.05, 0.8],
  ["max_tokens", "Tokens at most", 1, 8192, 1, 128],
  ["top_k", "Top-k", 1, undefined, 1, ""],
  ["top_p", "Top-p", 0.01, 1, 0.01, ""],
  ["min_p", "Min-p", 0.01, 1, 0.01, ""],
  ["repetition_penalty", "Repetition penalty", 1, 10, 0.05, 1],
];

export async function open(place) {
  const library = await readLibrary(true);
  const heading = h("header", { class: "head" }, h("h1", {}, "Generate"),
    h("p", {}, "Let a bundle go on from a prompt. The deeper a token’s shade, the less sure the model was; choose one to see what else could have stood there, and branch."));
  if (!library.bundles.length) {
    show(place, heading, h("div", { class: "nothing" }, "There is no bundle here yet. ", h("code", {}, "fledge demo"), " trains one in a few minutes."));
    return;
  }
  const saved = memory.get("generate", {});
  const choices = library.bundles.map((bundle) => [bundle.name, label(bundle.name)]).reverse();
  const known = (name, otherwise) => (choices.some(([value]) => value === name) ? name : otherwise);
  const first = options(h("select"), choices, known(saved.first, choices[0][0]));
  const second = options(h("select"), [["", "nobody"], ...choices], known(saved.second, ""));
  const prompt = h("textarea", { rows: 4, spellcheck: "false", maxlength: "100000", placeholder: "Empty: begin a new text" });
  prompt.value = saved.prompt ?? "In the beginning";
  const numbers = Object.fromEntries(NUMBERS.map(([name, , min, max, step, usual]) => {
    const input = h("input", { type: "number", min: String(min), max: max === undefined ? null : String(max), step: String(step), placeholder: usual === "" ? "off" : "" });
    input.value = saved[name] ?? usual;
    return [name, input];
  }));
  const seed = h("input", { type: "number", min: "0", step: "1" });
  seed.value = saved.seed ?? 0;
  const stop = h("input", { type: "text", placeholder: "texts, with | between" });
  stop.value = saved.stop ?? "";
  const takes = h("div", { class: "takes" });
  const go = h("button", { type: "submit", class: "primary" }, "Generate");
  const halt = h("button", { type: "button", disabled: true, onclick: () => shown.forEach((take) => take.stop()) }, "Stop");
  let shown = [];

  function request() {
    const values = { prompt: prompt.value, seed: Math.max(0, Math.round(Number(seed.value) || 0)), stop: stop.value ? stop.value.split("|").filter(Boolean) : [], alternatives: 8 };
    for (const [name, input] of Object.entries(numbers)) if (input.value !== "") values[name] = Number(input.value);
    return values;
  }

  function remember() {
    const plain = Object.fromEntries(Object.entries(numbers).map(([name, input]) => [name, input.value]));
    memory.set("generate", { ...plain, first: first.value, second: second.value, prompt: prompt.value, seed: seed.value, stop: stop.value });
  }

  /** A pane per chosen bundle; the takes of a bundle that stays chosen stay too. */
  function panes() {
    const wanted = [first.value, second.value].filter(Boolean);
    shown.slice(wanted.length).forEach((take) => take.stop());
    shown = wanted.map((name, index) => (shown[index]?.bundle === name ? shown[index] : (shown[index]?.stop(), new Take(name, { onbranch: branch }))));
    show(takes, shown.map((take) => take.element));
  }

  async function run(jobs) {
    remember();
    go.disabled = true;
    halt.disabled = false;
    await Promise.all(jobs());
    if (shown.every((take) => !take.running)) { go.disabled = false; halt.disabled = true; }
  }

  function branch(take, from, at, token) {
    const kept = [...from.tokens.slice(0, at), { ...token, alternatives: from.tokens[at].alternatives }];
    run(() => [take.write({ ...from.request, seed: request().seed }, kept)]);
  }

  function submit(event) {
    event.preventDefault();
    if (go.disabled || [...form.elements].some((control) => control.validity.badInput && !control.reportValidity())) return;
    run(() => shown.map((take) => take.write(request())));
  }

  // The steps are those of the arrow keys; any value may be typed, and the server says what it does not take.
  const form = h("form", { class: "card", noValidate: true, onsubmit: submit },
    field("Bundle", first), field("Beside it", second), field("Prompt", prompt),
    h("div", { class: "pair" }, NUMBERS.slice(0, 2).map(([name, words]) => field(words, numbers[name])), field("Seed", seed),
      h("button", { type: "button", class: "level", onclick: () => { seed.value = Math.floor(Math.random() * 1e6); } }, "New seed")),
    h("details", { open: innerWidth > 860 }, h("summary", {}, "Filters and stops"), h("div", { class: "stack" },
      h("div", { class: "pair" }, NUMBERS.slice(2).map(([name, words]) => field(words, numbers[name]))), field("Stop at", stop))),
    h("div", { class: "row" }, go, halt));
  prompt.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); });
  [first, second].forEach((select) => select.addEventListener("change", () => { panes(); remember(); }));

  show(place, heading, h("div", { class: "generate-layout" }, form, h("div", { class: "stack" },
    h("div", { class: "row spread" }, h("span", { class: "scale" }, "sure", h("i", { "aria-hidden": "true" }), "unsure"),
      h("span", { class: "small muted" }, "Ctrl+Enter in the prompt generates")), takes)));
  panes();
  return () => shown.forEach((take) => take.stop());
}
