// Small helpers over the document: elements from data, never from markup in a string.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name in element && !(element instanceof SVGElement) && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child.nodeType ? child : String(child));
  }
  return element;
}

/** An element: h("p", {class: "muted", onclick}, "text", child). */
export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);

/** The same for SVG. */
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Put new children in the place of the old ones. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Calls `draw` where what it would show, `told`, is not there already: a focus, a selection or a place in the text stays. */
export function redraw(element, told, draw) {
  const key = JSON.stringify(told);
  if (element.told === key) return;
  element.told = key;
  draw();
}

/** Say something to a person who listens to the page instead of looking at it. */
export function announce(text) {
  const live = document.getElementById("live");
  live.textContent = "";
  requestAnimationFrame(() => { live.textContent = text; });
}

/** Resolves when what is in the document now has been painted: in a task after the next frame's. */
export const painted = () => new Promise((resolve) => requestAnimationFrame(() => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); resolve(); };
  port2.postMessage(null);
}));

let hiding = 0;

/** A sentence about something that went wrong, for some seconds. */
export function notice(text) {
  const box = document.getElementById("notice");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, 9000);
}

let numbered = 0;

/** A labelled control: the label is tied to it, and an optional output shows the value. */
export function field(text, control, output) {
  control.id ||= `control-${++numbered}`;
  return h("div", { class: "field" }, h("label", { for: control.id }, text, output ? [" ", output] : null), control);
}

/** A row of buttons of which one is pressed. */
export function segments(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => pick(value) }, text));
  function pick(value) {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(options[index][0] === value)));
    choose(value);
  }
  return h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

/** A selection list; groups are [label, [[value, text], …]], plain options [value, text]. */
export function options(select, entries, chosen) {
  const option = ([value, text]) => h("option", { value, selected: value === chosen }, text);
  show(select, entries.map((entry) =>
    Array.isArray(entry[1]) ? h("optgroup", { label: entry[0] }, entry[1].map(option)) : option(entry)));
  return select;
}

/** Calls `work` with the latest arguments only, one call at a time: typing faster than the server answers skips, never queues. */
export function latest(work, delay = () => 0) {
  let waiting = null, busy = false, timer = 0;
  async function next() {
    if (busy || waiting === null) return;
    const given = waiting;
    waiting = null;
    busy = true;
    try { await work(...given); } finally { busy = false; next(); }
  }
  return (...given) => {
    waiting = given;
    clearTimeout(timer);
    const pause = delay(...given);
    if (pause) timer = setTimeout(next, pause); else next();
  };
}

/** Remembered on this machine between visits. */
export const memory = {
  get(key, otherwise) {
    try { return JSON.parse(localStorage.getItem(`fledge.${key}`)) ?? otherwise; } catch { return otherwise; }
  },
  set(key, value) {
    try { localStorage.setItem(`fledge.${key}`, JSON.stringify(value)); } catch { /* private windows have no storage */ }
  },
};
