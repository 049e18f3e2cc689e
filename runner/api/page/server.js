"use strict";
// The server: its models, and whether it is ready.

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
