"use strict";
// The turns of a conversation: what is shown of each, its figures, and what can be done with it.

const ENDS = { stop: "Done", length: "Stopped at the token limit", tool_calls: "Done: the model called a tool" };
// Why an answer is not complete.
const CUTS = { length: "The answer was cut off at the token limit.", stopped: "You stopped the answer.",
  lost: "The answer was cut off before its end." };
const LEAST_PAUSE_MS = 16;
const SHARE = 4;          // After drawing, the page waits SHARE times as long, so that the stream goes on.
let turns = [];           // All that are shown.
let answering = null;     // The answer that is streaming.

function time(ms) { return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`; }

function button(name, title, work) {
  const made = element("button", { type: "button", className: "small " + name.toLowerCase(), textContent: name, title });
  made.addEventListener("click", work);
  return made;
}

class Turn {
  constructor(role, title, text) {
    this.role = role;
    this.body = element("div", { className: "text" });
    this.actions = element("div", { className: "actions" });
    this.foot = element("footer", {}, this.actions);
    this.element = element("article", { className: `turn ${role}` },
      element("h2", { textContent: title }), this.body, this.foot);
    this.setText(text);
  }
  get message() { return { role: this.role, content: this.text }; }
  get state() { return { role: this.role, text: this.text }; }
  setText(text) {
    this.text = text;
    this.body.replaceChildren(element("p"));
    new PlainText(this.body.firstChild).push(text);
  }
  // Replaces the text by a field until it is saved or left.
  edit(save, saveName) {
    if (running || this.element.classList.contains("edited")) return;
    const field = element("textarea", { value: this.text, rows: Math.min(this.text.split("\n").length + 1, 16),
      ariaLabel: "Text of this turn" });
    const close = () => { box.remove(); this.element.classList.remove("edited"); };
    const done = () => { if (running || !field.value) return; close(); save(field.value); };
    const box = element("div", { className: "edit" }, field, element("div", { className: "row" },
      button(saveName, "", done), button("Cancel", "", () => { close(); $("prompt").focus(); })));
    box.querySelector("button").classList.add("main");
    box.addEventListener("keydown", event => {
      const isDone = event.key === "Enter" && (event.ctrlKey || event.metaKey);
      if (!isDone && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      if (isDone) done();
      else { close(); $("prompt").focus(); }
    });
    this.element.classList.add("edited");
    this.body.before(box);
    field.focus();
  }
}

class Question extends Turn {
  constructor(text, isChat) {
    super("user", isChat ? "You" : "Prompt", text);
    if (isChat) {
      this.actions.append(button("Edit", "Edit and send again. The turns below are removed",
        () => this.edit(changed => ask(changed, this), "Send")));
    }
  }
}

class Answer extends Turn {
  constructor(isChat) {
    super("assistant", isChat ? "Model" : "Completion", "");
    this.calls = [];
    this.isChat = isChat;
    this.setText("");
    this.figures = element("p", { className: "figures" });
    this.foot.prepend(this.figures);
    this.actions.append(
      button("Copy", "Copy the text as the model wrote it", () => copyText(this.text || JSON.stringify(this.message.tool_calls ?? [], null, 2), "the answer")),
      button("Regenerate", "Ask again. The turns below are removed", () => again(this)));
    if (isChat) {
      this.actions.append(button("Edit", "Edit this answer. The chat goes on from your version",
        () => this.edit(changed => { this.setText(changed); this.setCut(null); save(); }, "Save")));
    }
  }
  // The answer of a stored chat.
  static from({ text, reasoning, calls, counts, cutBy }, isChat) {
    const answer = new Answer(isChat);
    answer.add({ reasoning, tool_calls: calls, content: text });
    if (answer.reasoning) answer.reasoning.open = false;
    answer.finish();
    answer.count(counts);
    answer.setCut(cutBy);
    return answer;
  }
  get state() {
    const calls = this.calls.map(({ index, id, name, given }) => ({ index, id, function: { name, arguments: given } }));
    return { role: this.role, text: this.text, reasoning: this.thoughts?.parent.textContent, calls,
      counts: this.counts, cutBy: this.cutBy ?? (this === answering ? "stopped" : null) };
  }
  get isEmpty() { return !this.text && !this.reasoning && !this.calls.length; }
  get message() {
    const calls = this.calls.map(({ id, name, given }) => ({ id, type: "function", function: { name, arguments: given } }));
    return { role: "assistant", content: this.text || !calls.length ? this.text : null, ...(calls.length && { tool_calls: calls }) };
  }
  setText(text) {
    this.text = "";
    this.body.replaceChildren();
    this.writer = this.isChat ? new Markdown(this.body) : new PlainText(this.body);
    if (text) { this.add({ content: text }); this.finish(); }
  }
  // Tells that the answer is not complete, and offers to go on or to begin again.
  setCut(why) {
    this.cutBy = why;
    this.note?.remove();
    if (!why) return;
    this.note = element("div", { className: "cut" }, element("span", { textContent: CUTS[why] }));
    if (this.text && !this.calls.length) this.note.append(button("Continue", "Let the model go on", () => goOn(this)));
    this.note.append(button("Regenerate", "Ask again. The turns below are removed", () => again(this)));
    this.foot.before(this.note);
  }
  // Goes on with the text that is there.
  resume() {
    this.setCut(null);
    const { text } = this;
    this.setText("");
    this.add({ content: text });
    this.writer.draw?.(false);
  }
  // What an event brought.
  add({ content, reasoning_content, reasoning, tool_calls }) {
    if (reasoning_content ?? reasoning) this.think(reasoning_content ?? reasoning);
    for (const each of tool_calls ?? []) this.call(each);
    if (!content) return;
    if (this.reasoning && !this.text) this.reasoning.open = false;
    this.text += content;
    this.writer.push(content);
  }
  think(text) {
    if (!this.reasoning) {
      const thoughts = element("div");
      this.reasoning = element("details", { className: "reasoning", open: true },
        element("summary", { textContent: "Reasoning" }), thoughts);
      this.thoughts = new PlainText(thoughts);
      this.body.before(this.reasoning);
    }
    this.thoughts.push(text);
  }
  call({ index = 0, id, function: { name = "", arguments: given = "" } = {} }) {
    let call = this.calls.find(each => each.index === index);
    if (!call) {
      const title = element("strong"), code = element("code");
      call = { index, id, name: "", given: "", title, text: new PlainText(code) };
      this.calls.push(call);
      this.foot.before(element("div", { className: "call" }, element("span", {}, "Calls ", title), element("pre", {}, code)));
    }
    call.id ??= id;
    call.name += name ?? "";
    call.given += given ?? "";
    call.title.textContent = call.name;
    call.text.push(given ?? "");
  }
  // Soon: events that come meanwhile are drawn together.
  draw() {
    this.timer ??= setTimeout(() => {
      const start = performance.now(), isMore = this.writer.draw?.(false);
      this.show();
      keepEndInSight();
      this.timer = null;
      this.pause = Math.max((performance.now() - start) * SHARE, LEAST_PAUSE_MS);
      if (isMore) this.draw();
    }, this.pause ?? LEAST_PAUSE_MS);
  }
  // Draws all that is left, slice by slice.
  async finish() {
    clearTimeout(this.timer);
    const { writer } = this;
    while (writer.draw?.(true)) {
      keepEndInSight();
      await new Promise(resolve => setTimeout(resolve, LEAST_PAUSE_MS));
    }
    this.timer = null;
    keepEndInSight();
  }
  show() {
    if (this.meter?.first) this.count(this.meter.counts);
  }
  // One line: what the answer took.
  count(counts) {
    this.counts = counts;
    if (!counts) return;
    const { tokens, rate, first, duration, prompt } = counts;
    const figure = (name, value, before, after) => value &&
      element("span", {}, before, element("span", { className: name, textContent: value }), after);
    this.figures.replaceChildren(...[figure("tokens", tokens, "", tokens === 1 ? " token" : " tokens"),
      figure("rate", rate && rate.toFixed(1), "", " tokens/s"), figure("first", time(first), "first token after ", ""),
      figure("duration", time(duration), "", " in all"), figure("prompt-tokens", prompt, "", " prompt tokens")].filter(Boolean));
  }
}

class Meter {
  constructor() {
    this.start = performance.now();
    this.first = this.last = this.atFirst = this.tokens = null;
  }
  count(usage) {
    this.last = performance.now();
    if (usage) {
      this.tokens = usage.completion_tokens;
      this.prompt = usage.prompt_tokens;
    }
    if (this.first === null) { this.first = this.last; this.atFirst = this.tokens; }
  }
  // From the first token on: without the time of the queue and the prompt.
  get rate() { return this.last > this.first ? (this.tokens - this.atFirst) * 1000 / (this.last - this.first) : 0; }
  get counts() {
    return { tokens: this.tokens, prompt: this.prompt, rate: this.rate, first: this.first - this.start,
      duration: this.last - this.start };
  }
}

let follows = true;   // Scroll to new text: until the user scrolls up.
let lastTop = 0;      // Where the user was.

function noticeScrolling() {
  const log = $("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  // Not at the end may also mean that text has come since.
  follows = isAtEnd || follows && log.scrollTop >= lastTop;
  lastTop = log.scrollTop;
}

function keepEndInSight() {
  const log = $("log");
  noticeScrolling();   // The event of a scroll comes after it: text that arrives between the two must not undo it.
  if (!follows) return;
  log.scrollTop = log.scrollHeight;
  lastTop = log.scrollTop;
}

function show(...added) {
  for (const turn of added) {
    turns.push(turn);
    $("log").append(turn.element);
  }
  $("hello").hidden = turns.length > 0;
  follows = true;
  lastTop = $("log").scrollTop;
  keepEndInSight();
}

// Removes the turns from this one on, and returns them.
function cut(turn) {
  const at = turns.indexOf(turn), removed = turns.splice(at < 0 ? turns.length : at);
  for (const each of removed) each.element.remove();
  $("hello").hidden = turns.length > 0;
  return removed;
}
