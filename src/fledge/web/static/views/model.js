// Model: the flow chart of a configuration, what each part of it costs, and sliders that recompute the account at once.

import { post, readLibrary, title } from "../api.js";
import { announce, field, h, latest, notice, options, show } from "../dom.js";
import { billions, bytes, count, short } from "../format.js";

const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));
const SLIDERS = {
  layers: { words: "Layers", values: Array.from({ length: 96 }, (_, i) => i + 1) },
  width: { words: "Width", values: [32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1600, 2048, 2560, 4096, 5120, 8192] },
  heads: { words: "Heads", values: [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 25, 32, 40, 64] },
  context_length: { words: "Context", values: powers(4, 17) },
  vocabulary_size: { words: "Vocabulary", values: [256, 512, 1024, 2048, 4096, 8192, 10000, 16384, 32768, 50257, 65536, 100277, 131072, 200019] },
  batch: { words: "Batch", values: powers(0, 12) },
};
const ARCHITECTURES = ["transformer", "bdh", "rnn", "gru", "lstm"];

export async function open(place) {
  const library = await readLibrary(true);
  const state = { source: "", model: {}, facts: {}, picked: null };
  const sources = [["Recipes", library.recipes.map((name) => [`recipe:${name}`, name])], ["Bundles", library.bundles.map((b) => [`bundle:${b.name}`, title(b)])]].filter(([, list]) => list.length);
  state.source = sources[0][1][0][0];
  const source = options(h("select"), sources, state.source);
  const architecture = options(h("select"), ARCHITECTURES.map((name) => [name, name]), "transformer");
  const sliders = Object.fromEntries(Object.entries(SLIDERS).map(([name, slider]) => [name, makeSlider(name, slider)]));
  const diagram = h("div", { class: "card diagram", role: "group", "aria-label": "Diagram of the model" });
  const numbers = h("div", { class: "big" });
  const bars = h("div", {});
  const part = h("section", { class: "card part", "aria-label": "Chosen part" });
  const problem = h("p", { class: "problem small", role: "alert" });

  function makeSlider(name, { words, values }) {
    const output = h("output");
    const input = h("input", { type: "range", min: "0", max: String(values.length - 1), step: "1" });
    input.addEventListener("input", () => {
      const value = values[Number(input.value)];
      say(value);
      if (name === "layers" || name === "width" || name === "heads") state.model[name] = value; else state.facts[name] = value;
      if (name === "width" || name === "heads") delete state.model.hidden, state.model.hidden = null;
      ask();
    });
    const say = (value) => { output.textContent = count(value); input.setAttribute("aria-valuetext", count(value)); };
    return { element: field(words, input, output), set(value) {
      const nearest = values.reduce((best, v, i) => (Math.abs(Math.log(v / value)) < Math.abs(Math.log(values[best] / value)) ? i : best), 0);
      input.value = String(nearest);
      say(value);
    } };
  }

  const ask = latest(async () => {
    const [kind, name] = [state.source.slice(0, state.source.indexOf(":")), state.source.slice(state.source.indexOf(":") + 1)];
    const asked = `${state.source} ${state.model.architecture ?? ""}`;
    try {
      const start = performance.now();
      const account = await post("/api/account", { [kind]: name, model: state.model, ...state.facts });
      problem.textContent = "";
      state.drawn = asked;
      draw(account);
      performance.measure("account", { start, end: performance.now() });
    } catch (error) {
      if (error.status === 400 || error.status === 404) problem.textContent = error.message; else notice(error.message);
      if (state.drawn !== asked) clear(error.message);  // a slider's step too far leaves the model it began with
    }
  });

  /** Nothing of another model stays beside the name of one that has no account. */
  function clear(message) {
    state.drawn = state.account = null;
    architecture.value = state.model.architecture ?? "";
    show(diagram, h("p", { class: "problem" }, message));
    [numbers, bars, part].forEach((place) => show(place, h("p", { class: "muted" }, "Nothing to account for.")));
  }

  function draw(account) {
    state.account = account;
    const { settings } = account;
    for (const name of ["layers", "width", "heads"]) sliders[name].set(settings[name]);
    for (const name of ["context_length", "vocabulary_size", "batch"]) sliders[name].set(account[name]);
    sliders.heads.element.hidden = !["transformer", "bdh"].includes(settings.architecture);
    if (![...architecture.options].some((option) => option.value === settings.architecture)) architecture.append(h("option", {}, settings.architecture));
    architecture.value = settings.architecture;
    const fact = (value, words, title) => h("div", { title }, h("b", {}, value), h("span", {}, words));
    show(numbers,
      fact(billions(account.parameters), "parameters", count(account.parameters)),
      fact(`${short(account.flops_per_token)}FLOP`, "per token, training", count(account.flops_per_token)),
      fact(`${short(account.forward_flops)}FLOP`, "forward, one window", count(account.forward_flops)),
      fact(bytes(account.memory), `memory to train, batch ${count(account.batch)}`));
    show(bars,
      barGroup("Parameters", Object.entries(account.parameters_by_component), billions),
      barGroup("FLOPs of a forward pass", Object.entries(account.flops_by_component), (value) => `${short(value)}FLOP`),
      barGroup("Memory of a training step", account.memory_parts.map((p) => [p.name, p.bytes]), bytes),
      h("p", { class: "small muted" }, `${bytes(account.bytes_per_window)} for each window, and ${bytes(account.bytes_at_any_batch)} at any batch (${account.precision} activations, ${account.optimizer_title}).`),
      h("p", { class: "small muted" }, "Largest batch: ", Object.entries(account.largest_batch).map(([size, batch], i) => `${i ? " · " : ""}${size} GB: ${batch ? count(batch) : "none"}`).join("")));
    drawDiagram(account);
    pick(state.picked, false);
  }

  function drawDiagram(account) {
    if (!account.diagram) { show(diagram, h("p", { class: "muted" }, "No diagram for this architecture.")); return; }
    const scroll = diagram.scrollTop;
    const drawing = document.importNode(new DOMParser().parseFromString(account.diagram, "image/svg+xml").documentElement, true);
    drawing.setAttribute("role", "group");
    const boxes = [...drawing.querySelectorAll('rect[class^="box-"]')].filter((box) => !box.classList.contains("box-group"));
    boxes.forEach((box, index) => {
      const node = account.nodes[index];
      if (!node) return;
      box.classList.add("pick");
      box.dataset.key = node.key;
      box.setAttribute("tabindex", "0");
      box.setAttribute("role", "button");
      box.setAttribute("aria-label", `${node.title}: ${node.detail}`);
      box.addEventListener("click", () => pick(node.key));
      box.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(node.key); } });
    });
    show(diagram, drawing);
    diagram.scrollTop = scroll;
  }

  function pick(key, speak = true) {
    const { account } = state;
    const node = account.nodes.find((other) => other.key === key);
    state.picked = node ? key : null;
    for (const box of diagram.querySelectorAll(".pick")) box.classList.toggle("active", box.dataset.key === key);
    if (!node) { show(part, h("h2", {}, "A part"), h("p", { class: "muted" }, "Choose a box of the diagram to see its parameters and costs.")); return; }
    const tensors = account.tensors.filter((t) => node.tensors.includes(t.name));
    const products = account.products.filter((p) => node.products.includes(p.name));
    const own = tensors.reduce((sum, t) => sum + t.count, 0), held = tensors.reduce((sum, t) => sum + t.training_bytes, 0);
    const flops = products.reduce((sum, p) => sum + p.flops, 0);
    const share = (value, whole) => (whole ? ` (${((100 * value) / whole).toFixed(1)} %)` : "");
    const rows = [
      ["Parameters", own ? `${count(own)}${share(own, account.parameters)}` : "none"],
      ...tensors.map((t) => ["", h("code", {}, `${t.name}  ${t.shape.join(" × ")}${t.times > 1 ? `, ${t.times} times` : ""}`)]),
      ["Forward", flops ? `${short(flops)}FLOP${share(flops, account.forward_flops)}` : "no matrix product"],
      ...products.map((p) => ["", h("code", {}, `${p.shape}${p.times > 1 ? `, ${count(p.times)} times` : ""}`)]),
      ["Memory", own ? `${bytes(held)}: weights, gradients, ${account.optimizer_title}` : "no weights"],
      ...node.memory.map((name) => account.memory_parts.find((p) => p.name === name)).filter(Boolean).map((p) => ["", `${bytes(p.bytes)}: ${p.name}, in all layers`]),
    ];
    show(part, h("h2", {}, node.title), h("p", { class: "muted small" }, node.detail), h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
    if (speak) announce(`${node.title}: ${[...part.querySelectorAll("dt, dd")].map((cell) => cell.textContent).filter(Boolean).join("; ")}`);
  }

  source.addEventListener("change", () => { Object.assign(state, { source: source.value, model: {}, facts: {}, picked: null }); ask(); });
  architecture.addEventListener("change", () => { state.model = { ...state.model, architecture: architecture.value }; ask(); });

  show(place, h("header", { class: "head" }, h("h1", {}, "Model"), h("p", {}, "See what a model consists of and what it costs. Move a slider to change the model; choose a box to see its share.")),
    h("div", { class: "model-layout" },
      h("form", { class: "card sliders", onsubmit: (event) => event.preventDefault() }, field("Start from", source), field("Architecture", architecture),
        Object.values(sliders).map((slider) => slider.element), problem,
        h("button", { type: "button", onclick: () => { Object.assign(state, { model: {}, facts: {} }); ask(); } }, "Back to the start")),
      diagram,
      h("div", { class: "stack account" }, h("section", { class: "card", "aria-label": "Account" }, numbers), part, h("section", { class: "card", "aria-label": "By component" }, bars))));
  ask();
}

function barGroup(title, entries, format) {
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  return h("div", { class: "bar-group" }, h("h3", {}, title), h("div", { class: "bars" }, [...entries].sort((a, b) => b[1] - a[1]).map(([name, value]) =>
    h("div", { class: "barline" }, h("span", {}, name), h("span", { class: "number" }, `${format(value)} · ${total ? ((100 * value) / total).toFixed(1) : 0} %`),
      h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${total ? (100 * value) / total : 0}%` } }))))));
}
