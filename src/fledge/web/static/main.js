// The shell: which view is open, the theme, and where the focus goes. Each view loads when it is first opened.

import { readLibrary } from "./api.js";
import { h, memory, show } from "./dom.js";

const VIEWS = ["train", "tokens", "runs", "generate", "inside", "learn", "experiments", "model", "api"];
const THEMES = { auto: ["◐", "as the system"], light: ["○", "light"], dark: ["●", "dark"] };

const main = document.getElementById("main");
let close = () => {};
let opened = null;
let openings = 0;

/** Where there is no model yet, one is trained first. */
async function first() {
  return (await readLibrary().catch(() => null))?.bundles.length === 0 ? "train" : "tokens";
}

async function open() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const asked = location.hash, view = VIEWS.includes(name) ? name : await first();
  if (location.hash !== asked) return;
  for (const link of document.querySelectorAll(".views a")) {
    if (link.getAttribute("href") === `#/${view}`) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollTo({ left: link.offsetLeft - link.parentElement.clientWidth / 2 });  // a phone's bar holds more than it shows
    } else link.removeAttribute("aria-current");
  }
  if (view === opened) return;
  const opening = ++openings;  // whoever moves on before the view is whole has begun another
  opened = view;
  close();
  close = () => {};
  document.title = `${view === "api" ? "API" : view[0].toUpperCase() + view.slice(1)} · fledge workshop`;
  try {
    const module = await import(`./views/${view}.js`);
    if (opening !== openings) return;
    const place = h("section", { class: `view ${view}-view`, "aria-label": view });
    show(main, place);
    const closer = (await module.open(place, new URLSearchParams(query))) ?? (() => {});
    if (opening !== openings) { closer(); return; }
    close = closer;
  } catch (error) {
    if (opening !== openings) return;
    opened = null;
    show(main, h("div", { class: "nothing" }, error.message));
  }
  if (opening > 1) main.focus({ preventScroll: true });
  if (opening > 1) scrollTo(0, 0);
}

function setTheme(theme) {
  const [glyph, words] = THEMES[theme];
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = glyph;
  button.setAttribute("aria-label", `Colours: ${words}`);
  button.title = `Colours: ${words}`;
  memory.set("theme", theme);
}

document.getElementById("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(memory.get("theme", "auto")) + 1) % names.length]);
});
// "#main" would otherwise be taken for the name of a view.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
setTheme(memory.get("theme", "auto") in THEMES ? memory.get("theme", "auto") : "auto");
// A link to the view that failed changes no address: it tries again.
document.querySelector(".views").addEventListener("click", (event) => { if (event.target.closest("a")?.hash === location.hash) open(); });
// A token is taken when the page begins, also one that comes to a page that is open.
addEventListener("hashchange", () => (new URLSearchParams(location.hash.slice(1)).has("token") ? location.reload() : open()));
open();
