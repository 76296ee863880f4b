// Settings changed by hand: any of them, each with the words that explain it everywhere else.

import { get } from "../api.js";
import { h, notice, show } from "../dom.js";

const asText = (value) => (value === null || value === undefined ? "none" : Array.isArray(value) ? JSON.stringify(value) : String(value));

/** A control for one setting, of its kind. */
export function control(setting, value, onchange) {
  const name = setting.name, label = { "aria-label": name };
  if (setting.kind === "flag" || setting.kind === "choice") {
    const values = setting.kind === "flag" ? ["true", "false"] : [...setting.choices];
    if (!values.includes(asText(value))) values.unshift(asText(value));
    const select = h("select", { ...label, onchange: () => onchange(select.value) }, values.map((text) => h("option", { value: text, selected: text === asText(value) }, text)));
    return select;
  }
  const input = h("input", { type: "text", ...label, spellcheck: "false", inputmode: setting.kind === "number" ? "decimal" : null, onchange: () => onchange(input.value.trim()) });
  input.value = asText(value);
  return input;
}

export class Changes {
  constructor(onchange) {
    this.onchange = onchange;
    this.values = {};
    this.settings = new Map();
    this.search = h("input", { type: "text", list: "setting-names", placeholder: "such as model.layers", "aria-label": "A setting to change", autocomplete: "off", spellcheck: "false",
      onchange: () => this.add(this.search.value.trim()) });
    this.names = h("datalist", { id: "setting-names" });
    this.list = h("div", { class: "changes" });
    this.element = h("details", { class: "change" }, h("summary", {}, "Change a setting"), h("div", { class: "stack" },
      h("p", { class: "small muted" }, "fledge chooses everything. Values that you set here are kept, and the other choices adapt."),
      this.search, this.names, this.list));
  }

  async open(recipe) {
    const answer = await get("/api/training/settings", { recipe });
    this.settings = new Map(answer.settings.map((setting) => [setting.name, setting]));
    show(this.names, answer.settings.map((setting) => h("option", { value: setting.name }, setting.help)));
    if (!this.list.contains(document.activeElement)) this.draw();  // what is being typed stays
  }

  set(values) {
    this.values = { ...values };
    this.draw();
  }

  add(name) {
    if (!name) return;
    const setting = this.settings.get(name);
    if (!setting) { notice(`There is no setting ${name} to change here.`); return; }
    this.search.value = "";
    if (!(name in this.values)) this.change(name, asText(setting.value));
    this.list.querySelector(`[aria-label="${name}"]`)?.focus();
  }

  change(name, value) {
    this.values[name] = value;
    this.draw();
    this.onchange(this.values);
  }

  drop(name) {
    delete this.values[name];
    this.draw();
    this.onchange(this.values);
  }

  draw() {
    const changed = Object.entries(this.values);
    if (changed.length) this.element.open = true;
    show(this.list, changed.map(([name, value]) => {
      const setting = this.settings.get(name) ?? { name, kind: "text", help: "", choices: [] };
      return h("div", { class: "setting" }, h("code", {}, name), control(setting, value, (next) => this.change(name, next)),
        h("button", { type: "button", class: "quiet", "aria-label": `Do not set ${name}`, onclick: () => this.drop(name) }, "✕"), h("p", { class: "small muted" }, setting.help));
    }));
  }
}
