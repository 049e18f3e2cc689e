"use strict";
// Requests, and what happens on the page.

const EXAMPLES = {
  chat: ["What is the capital of France?", "Give me three tips for learning a language.",
    "What is machine learning?", "Write a Python function that reverses a string."],
  text: ["The capital of France is", "def fibonacci(n):", "Once upon a time"],
};
const CLOCK_MS = 100;

const $ = id => document.getElementById(id);
let running = null;   // The AbortController of the running request.
let latest = null;    // The body sent last.

const address = path => new URL(path, location.href.split(/[?#]/)[0]);

function say(text) { $("status").textContent = text; }

// ---- A request

// Asks for what follows these turns and this text of the user, if there is one.
function makeBody(before, text) {
  const given = parameters();
  if (!given) return null;
  const model = $("name-field").hidden ? {} : { model: $("name").value };
  if (mode() === "text") return { ...model, prompt: text, ...given };
  const system = $("system").value ? [{ role: "system", content: $("system").value }] : [];
  const messages = before.map(each => each.message);
  if (text !== undefined) messages.push({ role: "user", content: text });
  return { ...model, messages: [...system, ...messages], ...given };
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
    if (done) throw { message: "The connection was closed before the answer was complete." };
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;   // A comment keeps the connection alive.
      const data = event.slice("data: ".length);
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
    if (answer.meter.first === null) say("Streaming");
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
  if (running || !api || $("send").disabled) return;
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
  const isChat = mode() === "chat", chat = turns, removed = cut(from), body = makeBody(turns, text);
  if (!body) { show(...removed); return false; }
  const question = new Question(text, isChat), answer = new Answer(isChat);
  show(question, answer);
  if (isChat && !from) $("prompt").value = "";
  const isShown = await receive(body, answer), at = chat.indexOf(question);
  if (!isShown && at >= 0) {
    for (const each of chat.splice(at, Infinity, ...removed)) each.element.remove();
    if (chat === turns) showChat(mode());
  }
  save();
  return isShown;
}

// Lets the model go on with an answer that was cut off.
async function goOn(answer) {
  if (running || !api) return;
  unfail();
  const end = turns.indexOf(answer) + 1, why = answer.cutBy;
  const body = answer.isChat ? makeBody(turns.slice(0, end)) : makeBody([], turns[end - 2].text + answer.text);
  if (!body) return;
  if (answer.isChat) Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
  cut(turns[end]);
  answer.resume();
  if (!await receive(body, answer)) answer.setCut(why);
  save();
}

// Streams an answer into its turn. Returns whether anything came.
async function receive(body, answer) {
  if (NARROW.matches) openSettings(false);
  latest = body;
  const before = answer.text.length;
  answer.meter = new Meter();
  answering = answer;
  answer.element.setAttribute("aria-busy", "true");
  setRunning(new AbortController());
  say("Waiting for the first token");
  const clock = setInterval(() => { $("clock").textContent = time(performance.now() - answer.meter.start); }, CLOCK_MS);
  let reason = null, error = null;
  try { reason = await stream(body, running.signal, answer); } catch (caught) { error = caught; }
  clearInterval(clock);
  $("clock").textContent = "";
  await answer.finish();
  answer.show();
  answer.element.removeAttribute("aria-busy");
  answering = null;
  setRunning(null);
  const isStopped = error?.name === "AbortError";
  if (!error) say(`${ENDS[reason] ?? reason}, ${time(answer.meter.last - answer.meter.start)}`);
  else if (isStopped) say("Stopped");
  else {
    say("");
    fail(error instanceof Error ? { message: `The server can't be reached (${error.message}).` } : error);
    checkReady();
  }
  answer.setCut(error ? isStopped ? "stopped" : "lost" : reason in CUTS ? reason : null);
  return answer.text.length > before || !answer.isEmpty && !before || Boolean(reason);
}

// ---- The page

function changeMode() {
  const isChat = mode() === "chat";
  $("system-field").hidden = !isChat;
  $("prompt-label").textContent = isChat ? "Message" : "Prompt";
  $("prompt").placeholder = isChat ? "Write a message" : "Write the beginning of a text";
  $("clear").textContent = isChat ? "New chat" : "Clear";
  $("examples").replaceChildren(...EXAMPLES[mode()].map(text => element("button", { type: "button", textContent: text })));
  running?.abort();
  showChat(mode());
  drawParameters();
}

// Asks the server for its endpoints and models. If it can't be reached, the banner tells, and this is done again.
async function load() {
  if (!api) {
    const response = await tryFetch("openapi.json");
    if (!response?.ok) return;
    describe(await response.json());
  }
  await loadModels();
}

function describe(document) {
  const chat = document.paths["/" + PATHS.chat], texts = document.paths["/" + PATHS.text];
  api = document;
  if (!texts) {
    $("send").disabled = true;
    fail({ message: "This model makes embeddings. Send its inputs to v1/embeddings." });
    return;
  }
  const last = restore();
  $("mode-field").hidden = !chat;
  $(chat && last !== "text" ? "mode-chat" : "mode-text").checked = true;
  $("key-field").hidden = !texts.post.security;
  if (texts.post.security && NARROW.matches) openSettings(true);
  changeMode();
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
  save();
  unfail();
  say("");
  $("prompt").value = "";
  $("prompt").focus();
});
$("curl").addEventListener("click", () => copy(asCurl, "curl"));
$("python").addEventListener("click", () => copy(asPython, "Python"));
$("toggle").addEventListener("click", () => openSettings($("settings").hidden));
// A browser that keeps the page for the way back would go on reading.
addEventListener("pagehide", () => { save(); running?.abort(); });
NARROW.addEventListener("change", () => openSettings(!NARROW.matches));
$("key").addEventListener("change", load);
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
openSettings(!NARROW.matches);
$("base").textContent = address("v1").href;
checkReady();
