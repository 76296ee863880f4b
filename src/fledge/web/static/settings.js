// Settings of several runs as one table: by default only what differs between them.

import { h, memory, redraw, show } from "./dom.js";

const text = (value) => (value === null || value === undefined ? "–" : Array.isArray(value) ? value.join(", ") || "–" : String(value));

export function compareSettings(place, runs) {
  const told = runs.map(({ name, colour, settings }) => [name, colour, settings]);
  redraw(place, [told, memory.get("settings.all", false)], () => draw(place, runs));
}

function draw(place, runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort();
  const told = runs.filter((run) => Object.keys(run.settings).length);  // a run without settings differs in none
  const differs = (name) => new Set(told.map((run) => text(run.settings[name]))).size > 1;
  const several = runs.length > 1;
  const all = memory.get("settings.all", false) || !several;
  const shown = all ? names : names.filter(differs);
  const box = h("input", { type: "checkbox", checked: all, onchange: () => { memory.set("settings.all", box.checked); compareSettings(place, runs); } });
  const focused = place.querySelector("input")?.matches(":focus");
  const open = place.querySelector("details")?.open ?? several;
  const table = h("div", { class: "scroll" }, h("table", { class: "compare" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), runs.map((run) => h("th", { scope: "col", class: `series-${run.colour}` }, run.name)))),
    h("tbody", {}, shown.map((name) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)),
      runs.map((run) => h("td", { class: several && all && differs(name) ? "differs" : null }, text(run.settings[name]))))))));
  show(place, h("div", { class: "row spread" }, h("h2", {}, "Settings"), several && h("label", { class: "check small" }, box, "all, not only what differs")),
    !runs.length ? h("p", { class: "muted" }, "Choose a run to see its settings.")
      : several ? (shown.length ? table : h("p", { class: "muted" }, "These runs have the same settings."))
      : h("details", { open }, h("summary", {}, `All ${names.length} settings of ${runs[0].name}`), table));
  if (focused) box.focus({ preventScroll: true });
}
