// API: what programs can ask this server, from its own OpenAPI document.

import { get, hasToken } from "../api.js";
import { h, show } from "../dom.js";

export async function open(place) {
  const document_ = await get("/openapi.json");
  const models = (await get("/v1/models")).data;
  const name = models[0]?.id ?? "BUNDLE";
  const base = location.origin;
  const groups = new Map();
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), { path, method, operation }]);
    }
  }
  const secret = hasToken();
  const bearer = secret ? " -H 'authorization: Bearer TOKEN'" : "";
  const curl = `curl -N ${base}/v1/completions -H 'content-type: application/json'${bearer} \\\n  -d '{"model": "${name}", "prompt": "In the beginning", "max_tokens": 40, "stream": true}'`;
  const python = `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key="${secret ? "TOKEN" : "none"}")\nfor chunk in client.completions.create(model="${name}", prompt="In the beginning", max_tokens=40, stream=True):\n    print(chunk.choices[0].text, end="", flush=True)`;
  // A link brings no token: where one is needed, it opens the document that was fetched with it.
  const copy = secret ? URL.createObjectURL(new Blob([JSON.stringify(document_, null, 2)], { type: "application/json" })) : null;
  show(place,
    h("header", { class: "head" }, h("h1", {}, "API"), h("p", {}, "Programs can do everything that this page does. The API is described at ",
      h("a", copy ? { href: copy, target: "_blank" } : { href: "/openapi.json" }, "/openapi.json"), "."),
      secret && h("p", {}, "Below, TOKEN stands for the server’s token, the text after “#token=” in the address that the server printed.")),
    h("div", { class: "stack" },
      h("section", { class: "card" }, h("h2", {}, "A completion from the shell"), h("pre", { class: "code", tabindex: 0 }, curl)),
      h("section", { class: "card" }, h("h2", {}, "The same with the openai package"), h("pre", { class: "code", tabindex: 0 }, python)),
      [...groups].map(([tag, entries]) => h("section", { class: "card" }, h("h2", {}, tag[0].toUpperCase() + tag.slice(1)), entries.map(({ path, method, operation }) =>
        h("div", { class: "endpoint" }, h("b", {}, method.toUpperCase()), h("code", {}, path), h("p", {}, operation.description ?? operation.summary)))))));
  return () => { if (copy) URL.revokeObjectURL(copy); };
}
