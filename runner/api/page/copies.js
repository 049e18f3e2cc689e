"use strict";
// Copies: texts to the clipboard, and a request as curl or Python.

// Arguments of the openai package; other fields go into extra_body.
const PACKAGE = new Set(["model", "messages", "prompt", "stream", "stream_options", "max_tokens", "temperature",
  "max_completion_tokens", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop",
  "response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "echo"]);

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
  const body = api && (text || !latest ? makeBody(mode() === "chat" ? turns : [], text) : latest);
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
