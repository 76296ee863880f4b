// A report inside the page: a document of its own in a frame, without scripts.

import { hasToken, save } from "./api.js";
import { h, notice } from "./dom.js";

/** The report of a `run` or of an `experiment`; where the server needs a token, which a frame can't bring, a button that saves it. */
export function reportFrame(values, title, stamp = "") {
  const path = `/api/${"run" in values ? "runs" : "experiments"}/report?${new URLSearchParams(values)}`;
  if (hasToken()) return h("button", { type: "button", onclick: () => save(path, "report.html").catch((error) => notice(error.message)) }, "Save the report");
  return h("iframe", { class: "report", title, sandbox: "", src: stamp ? `${path}&stamp=${stamp}` : path });
}
