"use strict";
// Requests, copies of them, and the state of the server.

// Arguments of the openai package; other fields go into extra_body.
const PACKAGE = new Set(["model", "messages", "prompt", "stream", "stream_options", "max_tokens", "temperature",
  "max_completion_tokens", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop",
  "response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "echo"]);
const EXAMPLES = {
  chat: ["Explain in three sentences what a GPU does.", "Write a Python function that tests for palindromes.",
    "Compare three planets in a table.", "Translate into French: Where is the station?"],
  text: ["The capital of France is", "def fibonacci(n):", "Once upon a time"],
};

const $ = id => document.getElementById(id);
let running = null;   // The AbortController of the running request.
let latest = null;    // The body sent last.

const address = path => new URL(path, location.href.split(/[?#]/)[0]);

function say(text) { $("status").textContent = text; }

// ---- A request

function makeBody(text) {
  const given = parameters();
  if (!given) return null;
  const model = $("name-field").hidden ? {} : { model: $("name").value };
  if (mode() === "text") return { ...model, prompt: text, ...given };
  const system = $("system").value ? [{ role: "system", content: $("system").value }] : [];
  const before = turns.map(each => each.message);
  return { ...model, messages: [...system, ...before, { role: "user", content: text }], ...given };
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw { message: "The connection was closed before the text was complete." };
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw parsed.error;
      yield parsed;
    }
  }
}

async function errorOf(response) {
  const unknown = { message: `The server answered HTTP ${response.status} without an error message.` };
  let error = unknown;
  try { error = (await response.json()).error ?? unknown; } catch { /* No JSON. */ }
  return response.status === 401 ? { ...error, param: "key" } : error;
}

// Streams into the turn. Returns the finish reason; throws {code, message, param} or an AbortError.
async function stream(body, signal, answer) {
  const options = { include_usage: true, continuous_usage_stats: true };
  const sent = JSON.stringify({ ...body, stream: true, stream_options: options });
  const path = body.messages ? PATHS.chat : PATHS.text;
  const response = await fetch(address(path), { method: "POST", headers: headers(), body: sent, signal });
  if (!response.ok) throw await errorOf(response);
  let reason = null;
  for await (const { choices: [choice] = [], usage } of eventsOf(response)) {
    if (!choice) continue;
    if (answer.meter.first === null) say("Streaming.");
    answer.meter.count(usage);
    answer.add(choice.delta ?? { content: choice.text });
    answer.draw();
    reason = choice.finish_reason ?? reason;
  }
  return reason;
}

function setRunning(controller) {
  const { activeElement } = document;
  running = controller;
  $("ask").classList.toggle("running", Boolean(controller));
  $("send").hidden = Boolean(controller);
  $("stop").hidden = !controller;
  if (controller && activeElement === $("send")) $("stop").focus();
  if (!controller && activeElement === $("stop")) $("prompt").focus();
}

// Sends the text of the prompt's field.
async function send() {
  if (running || !api) return;
  unfail();
  const text = $("prompt").value;
  if (!text) { say(""); fail({ message: "Write a prompt first.", param: "prompt" }); return; }
  if (await ask(text, mode() === "chat" ? null : turns[0])) return;
  $("prompt").value ||= text;
}

// Asks for the answer of a turn again.
function again(answer) {
  const question = turns[turns.indexOf(answer) - 1];
  if (question) ask(question.text, question);
}

// Sends a text in place of this turn and all after it, or after all. Returns whether there was anything to show.
async function ask(text, from) {
  if (running || !api) return false;
  unfail();
  const isChat = mode() === "chat", removed = cut(from), body = makeBody(text);
  if (!body) { show(...removed); return false; }
  if (NARROW.matches) openSettings(false);
  latest = body;
  const question = new Question(text, isChat), answer = new Answer(isChat);
  answer.meter = new Meter();
  show(question, answer);
  if (isChat && !from) $("prompt").value = "";
  answer.element.setAttribute("aria-busy", "true");
  setRunning(new AbortController());
  say("Waiting for the first token.");
  let reason = null, error = null;
  try { reason = await stream(body, running.signal, answer); } catch (caught) { error = caught; }
  await answer.finish();
  answer.show();
  answer.element.removeAttribute("aria-busy");
  const isShown = !answer.isEmpty || Boolean(reason);
  if (!isShown && answer.element.isConnected) {
    cut(question);
    show(...removed);
  }
  setRunning(null);
  if (!error) say(`Done: ${REASONS[reason] ?? reason}, after ${time(answer.meter.last - answer.meter.start)}.`);
  else if (error.name === "AbortError") say("Stopped.");
  else {
    say("");
    fail(error instanceof Error ? { message: `The server can't be reached (${error.message}).` } : error);
    checkReady();
  }
  return isShown;
}

// ---- Copies

async function copyText(text, name) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // The clipboard is only available on localhost and https.
    const box = element("textarea", { value: text });
    const { activeElement } = document;
    document.body.append(box);
    box.select();
    const isDone = document.execCommand("copy");
    box.remove();
    activeElement?.focus();
    if (!isDone) { fail({ message: "This browser does not let the page copy." }); return; }
  }
  say(`Copied ${name}.`);
}

function toCopy() {
  unfail();
  const text = $("prompt").value;
  const body = api && (text || !latest ? makeBody(text) : latest);
  return body && { ...body, stream: true };
}

function asCurl(body) {
  const quoted = text => `'${text.replaceAll("'", `'\\''`)}'`;
  const key = $("key-field").hidden ? "" : ` \\\n  -H "Authorization: Bearer $OPENAI_API_KEY"`;
  const path = body.messages ? PATHS.chat : PATHS.text;
  return `curl -sN ${quoted(address(path).href)} \\\n  -H "Content-Type: application/json"${key} \\\n  -d ${quoted(JSON.stringify(body))}\n`;
}

function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
}

function asPython(body) {
  const isChat = Boolean(body.messages);
  const all = Object.entries({ model: modelName(), ...body });
  const named = all.filter(([name]) => PACKAGE.has(name));
  const extra = all.filter(([name]) => !PACKAGE.has(name));
  if (extra.length) named.push(["extra_body", Object.fromEntries(extra)]);
  const key = $("key-field").hidden ? `"none"` : `os.environ["OPENAI_API_KEY"]`;
  return `${$("key-field").hidden ? "" : "import os\n\n"}from openai import OpenAI

client = OpenAI(base_url=${literal(address("v1").href)}, api_key=${key})
events = client.${isChat ? "chat.completions" : "completions"}.create(
${named.map(([name, value]) => `    ${name}=${literal(value)},`).join("\n")}
)
for event in events:
    for choice in event.choices:
        print(choice.${isChat ? "delta.content or \"\"" : "text"}, end="", flush=True)
print()
`;
}

function copy(make, name) {
  const body = toCopy();
  if (body) copyText(make(body), `as ${name}`);
}

// ---- The server

function modelName() { return $("name").value || $("model").dataset.name || ""; }

async function loadModels() {
  if (!$("key-field").hidden && !$("key").value) return;
  const response = await fetch(address("v1/models"), { headers: headers() });
  if (!response.ok) { fail(await errorOf(response)); return; }
  unfail();
  const { data } = await response.json();
  $("name").replaceChildren(...data.map(({ id }) => element("option", { value: id, textContent: id })));
  $("name-field").hidden = data.length < 2;
  $("model").dataset.name = data[0].id;
  longest = data[0].max_model_len;
  $("model").textContent = `${data[0].id}, up to ${longest.toLocaleString("en")} tokens`;
  drawParameters();
}

let nextCheck = null;
async function checkReady() {
  clearTimeout(nextCheck);
  let state = "unreachable";
  try { state = (await fetch(address("ready"))).ok ? "ready" : "starting"; } catch { /* Not reachable. */ }
  $("state").className = state;
  $("state").textContent = state === "unreachable" ? "not reachable" : state;
  if (state !== "ready") nextCheck = setTimeout(checkReady, 2000);
}

function changeMode() {
  const isChat = mode() === "chat";
  $("system-field").hidden = !isChat;
  $("prompt-label").textContent = isChat ? "Message" : "Prompt";
  $("prompt").placeholder = isChat ? "Write a message" : "Write the begin of a text";
  $("clear").textContent = isChat ? "New chat" : "Clear";
  $("examples").replaceChildren(...EXAMPLES[mode()].map(text => element("button", { type: "button", textContent: text })));
  running?.abort();
  cut(turns[0]);
  drawParameters();
}

async function start() {
  openSettings(!NARROW.matches);
  $("base").textContent = address("v1").href;
  checkReady();
  try {
    api = await (await fetch(address("openapi.json"))).json();
    const chat = api.paths["/" + PATHS.chat], texts = api.paths["/" + PATHS.text];
    if (!texts) return fail({ message: "This model makes embeddings: send its inputs to v1/embeddings." });
    $("mode-field").hidden = !chat;
    $(chat ? "mode-chat" : "mode-text").checked = true;
    $("key-field").hidden = !texts.post.security;
    if (texts.post.security && NARROW.matches) openSettings(true);
    changeMode();
    await loadModels();
  } catch (error) {
    fail({ message: `The server can't be reached (${error.message}); load the page again.` });
  }
}

$("ask").addEventListener("submit", event => { event.preventDefault(); send(); });
$("log").addEventListener("scroll", noticeScrolling);
$("stop").addEventListener("click", () => running?.abort());
$("examples").addEventListener("click", ({ target }) => {
  if (target.type !== "button") return;
  $("prompt").value = target.textContent;
  send();
});
$("clear").addEventListener("click", () => {
  running?.abort();
  cut(turns[0]);
  unfail();
  say("");
  $("prompt").value = "";
  $("prompt").focus();
});
$("curl").addEventListener("click", () => copy(asCurl, "curl"));
$("python").addEventListener("click", () => copy(asPython, "Python"));
$("toggle").addEventListener("click", () => openSettings($("settings").hidden));
// A browser that keeps the page for the way back would go on reading.
addEventListener("pagehide", () => running?.abort());
NARROW.addEventListener("change", () => openSettings(!NARROW.matches));
$("key").addEventListener("change", () => loadModels().catch(checkReady));
$("mode-field").addEventListener("change", changeMode);
$("settings").addEventListener("input", ({ target }) => { if (target.dataset.kind) drafts[target.name] = target.value; });
document.addEventListener("keydown", event => {
  if (event.isComposing) return;
  const { key, target } = event;
  if (key === "Escape" && running) running.abort();
  else if (key === "Escape" && NARROW.matches && !$("settings").hidden) { openSettings(false); $("toggle").focus(); }
  else if (key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
  else if (key === "Enter" && target === $("prompt") && !event.shiftKey && !matchMedia("(pointer: coarse)").matches) {
    event.preventDefault();
    send();
  }
});
start();
