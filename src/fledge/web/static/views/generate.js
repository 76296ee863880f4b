// Generate: a prompt, a strategy, one or two bundles; the same seed gives the same text.

import { get, readLibrary, title } from "../api.js";
import { field, h, memory, options, show } from "../dom.js";
import { Take } from "../take.js";

const WORDS = { max_tokens: "Maximum tokens", top_k: "Top-k", top_p: "Top-p", min_p: "Min-p" };
const words = (name) => WORDS[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

/** An input for each number that the server takes with a request; an empty field leaves a filter out. */
function makeNumbers(properties) {
  const made = {};
  for (const [name, property] of Object.entries(properties)) {
    const kind = [property, ...(property.anyOf ?? [])].find(({ type }) => type === "number" || type === "integer");
    if (!kind || name === "seed" || name === "alternatives") continue;
    const step = kind.type === "integer" ? 1 : kind.maximum === 1 ? 0.01 : 0.05;
    const usual = property.default ?? "";
    made[name] = h("input", { type: "number", min: String(kind.minimum ?? step), max: kind.maximum === undefined ? null : String(kind.maximum), step: String(step), placeholder: usual === "" ? "off" : "" });
    made[name].value = usual;
  }
  return made;
}

export async function open(place, query) {
  const library = await readLibrary(true);
  const heading = h("header", { class: "head" }, h("h1", {}, "Generate"),
    h("p", {}, "Continue a prompt with a trained model. The stronger a token’s shade, the less probable it was. Choose a token to see its alternatives and to branch."));
  if (!library.bundles.length) {
    show(place, heading, h("div", { class: "nothing" }, "There is no model here yet. ", h("code", {}, "fledge demo"), " trains one in a few minutes."));
    return;
  }
  const saved = memory.get("generate", {});
  const choices = library.bundles.map((bundle) => [bundle.name, title(bundle)]).reverse();
  const known = (name, otherwise) => (choices.some(([value]) => value === name) ? name : otherwise);
  const asked = query.get("bundle"), ofRun = library.bundles.find((bundle) => bundle.run === asked && bundle.best)?.name;
  const first = options(h("select"), choices, known(ofRun ?? asked, known(saved.first, choices[0][0])));
  const second = options(h("select"), [["", "nobody"], ...choices], known(saved.second, ""));
  const prompt = h("textarea", { rows: 4, spellcheck: "false", maxlength: "100000", placeholder: "Empty: begin a new text" });
  const numbers = makeNumbers((await get("/openapi.json")).components.schemas.GenerateRequest.properties);
  const { temperature, max_tokens, ...filters } = numbers;
  const seed = h("input", { type: "number", min: "0", step: "1" });
  seed.value = saved.seed ?? 0;
  const stop = h("input", { type: "text", placeholder: "texts, with | between" });
  const inputs = { prompt, stop, ...numbers }, changed = saved.changed ?? {};
  for (const [name, input] of Object.entries(inputs)) {
    input.value = changed[name] ?? input.value;
    input.addEventListener("input", () => { if (input.value === String(own[name] ?? "")) delete changed[name]; else changed[name] = input.value; remember(); });
  }
  const takes = h("div", { class: "takes" });
  const go = h("button", { type: "submit", class: "primary" }, "Generate");
  const halt = h("button", { type: "button", disabled: true, onclick: () => shown.forEach((take) => take.stop()) }, "Stop");
  let shown = [];

  function request() {
    const values = { prompt: prompt.value, seed: Math.max(0, Math.round(Number(seed.value) || 0)), stop: stop.value ? stop.value.split("|").filter(Boolean) : [], alternatives: 8 };
    for (const [name, input] of Object.entries(numbers)) if (input.value !== "") values[name] = Number(input.value);
    return values;
  }

  /** The bundle's own settings and prompt, wherever the person has not written something else. */
  let own = {};
  async function suggest() {
    const wanted = first.value;
    const found = await get("/api/bundles/sampling", { bundle: wanted }).catch(() => null);
    if (!found || first.value !== wanted) return;
    own = { ...found, stop: found.stop.join("|"), max_tokens: Math.min(found.max_tokens, 8192) };
    for (const [name, input] of Object.entries(inputs)) if (!(name in changed)) input.value = own[name] ?? "";
  }

  function remember() {
    memory.set("generate", { changed, first: first.value, second: second.value, seed: seed.value });
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
    field("Bundle", first), field("Beside it", second), field("Prompt", prompt), h("div", { class: "row" }, go, halt),
    h("div", { class: "pair" }, Object.entries({ temperature, max_tokens }).map(([name, input]) => field(words(name), input)), field("Seed", seed),
      h("button", { type: "button", class: "level", onclick: () => { seed.value = Math.floor(Math.random() * 1e6); } }, "New seed")),
    h("details", { open: innerWidth > 860 }, h("summary", {}, "Filters and stops"), h("div", { class: "stack" },
      h("div", { class: "pair" }, Object.entries(filters).map(([name, input]) => field(words(name), input))), field("Stop at", stop))));
  prompt.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); });
  [first, second].forEach((select) => select.addEventListener("change", () => { panes(); remember(); if (select === first) suggest(); }));

  show(place, heading, h("div", { class: "generate-layout" }, form, h("div", { class: "stack" },
    h("div", { class: "row spread" }, h("span", { class: "scale" }, "sure", h("i", { "aria-hidden": "true" }), "unsure"),
      h("span", { class: "small muted" }, "Ctrl+Enter in the prompt generates")), takes)));
  panes();
  await suggest();
  return () => shown.forEach((take) => take.stop());
}
