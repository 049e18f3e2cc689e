"use strict";
// The parameters of a request: their controls are made from the server's OpenAPI document.

// Fields without a control: this page sends them itself, can't show their result, or they have no effect.
const OURS = new Set(["prompt", "messages", "model", "stream", "stream_options", "n", "logprobs", "top_logprobs",
  "user", "metadata", "modalities", "store", "service_tier", "prompt_cache_key", "prompt_cache_options",
  "prompt_cache_retention", "safety_identifier", "verbosity"]);
const MAIN = ["max_tokens", "temperature", "top_p"];    // With a slider. The others are below, in groups.
const GROUPS = {
  "Sampling": ["top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"],
  "Length and stops": ["max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "echo"],
  "Reasoning": ["reasoning_effort", "thinking_token_budget", "include_reasoning"],
  "Tools": ["tools", "tool_choice", "parallel_tool_calls"],
  "Output format": ["response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "skip_special_tokens"],
  "Prompt template": ["chat_template_kwargs", "documents", "add_generation_prompt", "continue_final_message"],
  "Scheduling": ["priority", "max_queue_ms", "cache_salt"],
};
const OTHERS = "Others";    // Fields that no group names.
const PATHS = { chat: "v1/chat/completions", text: "v1/completions" };
const NARROW = matchMedia("(max-width: 50rem)");
let api = null;       // The OpenAPI document.
let longest = 4096;   // The model's number of tokens.
let drafts = {};      // Contents of the fields by name: they stay when the endpoint changes.

const mode = () => $("mode-chat").checked ? "chat" : "text";

function resolved(schema) {
  if (schema.$ref) return resolved(schema.$ref.slice(2).split("/").reduce((at, step) => at[step], api));
  if (!schema.anyOf) return schema;
  const kinds = schema.anyOf.filter(each => each.type !== "null");
  const merged = { ...schema, ...(kinds.length === 1 ? resolved(kinds[0]) : { anyOf: kinds.map(resolved) }) };
  if (kinds.length === 1 && !resolved(kinds[0]).anyOf) delete merged.anyOf;
  return { ...merged, default: schema.default, description: schema.description ?? merged.description };
}

function kindOf(schema) {
  const kinds = schema.anyOf ?? [schema];
  if (kinds.some(each => each.type === "array" && each.items.type === "string")) return "lines";
  if (kinds.some(each => each.enum)) return "choice";
  if (schema.anyOf) return "json";
  return { integer: "number", number: "number", boolean: "choice", string: "text" }[schema.type] ?? "json";
}

function about(schema, kind) {
  const { minimum: low, maximum: high, description, default: usual } = schema;
  const bounded = high !== undefined && high < 2 ** 31 - 1;
  const limits = low === undefined ? bounded ? `At most ${high}.` : "" : bounded ? `${low} to ${high}.` : `At least ${low}.`;
  const form = { lines: "One per line; \\n is a line break.", json: "As JSON." }[kind] ?? "";
  return [description, limits, form, usual === null || usual === undefined ? "" : `Default: ${usual}.`]
    .filter(Boolean).join(" ");
}

function control(name, schema, kind) {
  const common = { id: "field-" + name, name };
  if (kind === "number") {
    return element("input", { ...common, type: "number", min: schema.minimum ?? "", max: schema.maximum ?? "",
      step: schema.type === "integer" ? 1 : "any", placeholder: schema.default ?? "not sent" });
  }
  if (kind === "choice") {
    const values = [schema, ...schema.anyOf ?? []].find(each => each.enum)?.enum ?? [true, false];
    return element("select", common, element("option", { value: "", textContent: "not sent" }),
      ...values.map(each => element("option", { value: JSON.stringify(each), textContent: String(each) })));
  }
  if (kind === "text") return element("input", { ...common, type: "text", spellcheck: false, autocomplete: "off" });
  return element("textarea", { ...common, rows: 2, spellcheck: false });
}

// A slider for a number; its field says the value, and may be empty. Counts of tokens have a logarithmic one.
function withSlider(input, schema) {
  const isCount = schema.type === "integer";
  const slider = element("input", { type: "range", min: 0, max: isCount ? 100 : schema.maximum,
    step: isCount ? 1 : 0.05, ariaLabel: `${input.name}, as a slider` });
  const toValue = at => isCount ? Math.round(longest ** (at / 100)) : at;
  const toPlace = value => isCount ? 100 * Math.log(value) / Math.log(longest) : value;
  const usual = schema.default ?? (isCount ? longest : 1);
  const follow = () => { slider.value = toPlace(Number(input.value) || (input.value === "0" ? 0 : usual)); };
  slider.addEventListener("input", () => {
    input.value = toValue(Number(slider.value));
    drafts[input.name] = input.value;
  });
  input.addEventListener("input", follow);
  follow();
  return element("div", { className: "slider" }, slider, input);
}

function fieldsOfMode() {
  const body = api.paths["/" + PATHS[mode()]].post.requestBody.content["application/json"].schema;
  return Object.entries(resolved(body).properties).filter(([name]) => !OURS.has(name));
}

function drawParameters() {
  unfail();
  const boxes = new Map();
  for (const [name, raw] of fieldsOfMode()) {
    const schema = resolved(raw), kind = kindOf(schema);
    const input = control(name, schema, kind);
    input.dataset.kind = kind;
    input.value = drafts[name] ?? "";
    input.setAttribute("aria-describedby", "about-" + name);
    boxes.set(name, element("div", { className: "field" },
      element("label", { htmlFor: input.id, textContent: name }),
      MAIN.includes(name) ? withSlider(input, schema) : input,
      element("p", { className: "about", id: "about-" + name, textContent: about(schema, kind) })));
  }
  const main = MAIN.filter(name => boxes.has(name));
  $("parameters").replaceChildren(...main.map(name => boxes.get(name)));
  for (const name of main) boxes.delete(name);
  const isOpen = new Set([...$("more").children].filter(each => each.open).map(each => each.dataset.group));
  $("more").replaceChildren(...Object.entries({ ...GROUPS, [OTHERS]: [...boxes.keys()] }).map(([title, names]) => {
    const shown = names.filter(name => boxes.has(name)), fields = shown.map(name => boxes.get(name));
    for (const name of shown) boxes.delete(name);
    const group = element("details", { open: isOpen.has(title), hidden: !shown.length },
      element("summary", { textContent: title }), ...fields);
    group.dataset.group = title;
    return group;
  }));
}

function unescapeLine(line) {
  return line.replace(/\\([nt\\])/g, (_, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter]);
}

function valueOf(input) {
  const { kind } = input.dataset, text = input.value;
  if (input.validity.badInput) throw `${input.name} must be a number.`;
  if (text === "") return undefined;
  if (kind === "number") {
    if (input.step === "1" && !Number.isSafeInteger(Number(text))) throw `${input.name} must be a whole number.`;
    return Number(text);
  }
  if (kind === "lines") return text.split("\n").filter(Boolean).map(unescapeLine);
  if (kind === "text") return text;
  try { return JSON.parse(text); } catch (error) { throw `${input.name} must be JSON (${error.message}).`; }
}

// The values of the fields; null if one is not valid, which is then marked.
function parameters() {
  const given = {};
  for (const [name] of fieldsOfMode()) {
    try {
      const value = valueOf($("field-" + name));
      if (value !== undefined) given[name] = value;
    } catch (message) {
      fail({ message, param: name });
      return null;
    }
  }
  return given;
}

function openSettings(isOpen) {
  $("settings").hidden = !isOpen;
  $("ask").classList.toggle("open", isOpen);
  $("toggle").setAttribute("aria-expanded", isOpen);
}

// ---- Errors: one at a time, at the field that it is about, otherwise above the prompt

function fieldOf(name = "") {
  const top = name.split(".")[0];
  const field = { prompt: $("prompt"), messages: $("prompt"), model: $("name"), key: $("key") }[top] ?? $("field-" + top);
  return field?.closest("[hidden]:not(#settings)") ? null : field;
}

function fail({ code, message, param }) {
  unfail();
  const error = $("error"), field = fieldOf(param ?? "");
  error.replaceChildren(...(code ? [element("strong", { textContent: `${code}: ` })] : []), message);
  field?.setAttribute("aria-invalid", "true");
  field?.setAttribute("aria-errormessage", "error");
  const box = field?.closest(".field");
  if (box) {
    openSettings(true);
    const group = box.closest("details");
    if (group) group.open = true;
    box.append(error);
  }
  error.hidden = false;
  field?.focus();
  error.scrollIntoView({ block: "nearest" });
}

function unfail() {
  $("error").hidden = true;
  $("foot").prepend($("error"));
  for (const each of document.querySelectorAll("[aria-invalid]")) {
    each.removeAttribute("aria-invalid");
    each.removeAttribute("aria-errormessage");
  }
}
