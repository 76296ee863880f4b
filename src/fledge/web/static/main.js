// The shell: which view is open, the theme, and where the focus goes. Each view loads when it is first opened.

import { h, memory, show } from "./dom.js";

const VIEWS = ["tokens", "runs", "generate", "model", "api"];
const THEMES = { auto: ["◐", "as the system"], light: ["○", "light"], dark: ["●", "dark"] };

const main = document.getElementById("main");
let close = () => {};
let opened = null;

async function open() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const view = VIEWS.includes(name) ? name : "tokens";
  for (const link of document.querySelectorAll(".views a")) {
    if (link.getAttribute("href") === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === opened) return;
  const first = opened === null;
  opened = view;
  close();
  close = () => {};
  document.title = `${view === "api" ? "API" : view[0].toUpperCase() + view.slice(1)} · fledge workshop`;
  try {
    const module = await import(`./views/${view}.js`);
    if (opened !== view) return;
    const place = h("section", { class: `view ${view}-view`, "aria-label": view });
    show(main, place);
    close = (await module.open(place, new URLSearchParams(query))) ?? (() => {});
  } catch (error) {
    show(main, h("div", { class: "nothing" }, error.message));
  }
  if (!first) main.focus({ preventScroll: true });
  if (!first) scrollTo(0, 0);
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
addEventListener("hashchange", open);
open();
