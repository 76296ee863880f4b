// Requests to the server below the page, and only to it. A problem becomes an Error whose message is a sentence.

const KEY = "fledge.token";

// The token of a server that needs one arrives behind the "#" of the address, which browsers never send anywhere.
const given = new URLSearchParams(location.hash.replace(/^#\/?\??/, "")).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

/** Whether requests need a token, which programs must bring too. */
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** One request; `body` goes as JSON, `content` as the bytes it is. */
export async function send(path, { method = "GET", body, content, signal } = {}) {
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  if (content !== undefined) headers["content-type"] = "application/octet-stream";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? content : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. It was stopped, or the machine is busy.");
  }
  if (!answer.ok) {
    let sentence = `The server answered ${answer.status}.`;
    try { sentence = (await answer.json()).error.message; } catch { /* not ours: the status must do */ }
    throw Object.assign(new Error(sentence), { status: answer.status });
  }
  return answer;
}

const query = (values) => {
  const entries = Object.entries(values ?? {}).filter(([, value]) => value !== undefined);
  return entries.length ? `?${new URLSearchParams(entries)}` : "";
};

/** What came of an answer, unless the connection breaks in the middle of it. */
async function whole(reading) {
  try {
    return await reading;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The connection to the server was lost. The server was stopped, or the network failed.");
  }
}

export const get = async (path, values, signal) => whole((await send(path + query(values), { signal })).json());

export const post = async (path, body, signal) => whole((await send(path, { method: "POST", body, signal })).json());

/** The lines of a streamed answer, each a JSON value, as they come. */
export async function* stream(path, body, signal) {
  const answer = await send(path, { method: "POST", body, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await whole(reader.read());
    if (done) return;  // every line ends: what is left over was cut off
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
  }
}

/** Save what a request answers as a file. */
export async function save(path, name) {
  const address = URL.createObjectURL(await whole((await send(path)).blob()));
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

let library = null;

/** What is served: bundles, tokenizers, recipes. Asked again when `fresh`. */
export async function readLibrary(fresh = false) {
  if (!library || fresh) library = await get("/api/library");
  return library;
}

/** "akjv/checkpoints/step-00000500" as a person says it. */
export const label = (name) => name.replace(/\/checkpoints\/step-0*(\d+)$/, " · step $1").replace(/\/tokenizer$/, "");

/** The same for a bundle of the library, with a mark on the best checkpoint of its run. */
export const title = (bundle) => `${label(bundle.name)}${bundle.best && bundle.run !== null ? " · best" : ""}`;
