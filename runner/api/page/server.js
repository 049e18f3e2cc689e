"use strict";
// The server: its models, and whether it is ready.

function modelName() { return $("name").value || $("model").dataset.name || ""; }

// Null if the server can't be reached.
async function tryFetch(path, options) {
  try { return await fetch(address(path), options); } catch { return null; }
}

async function loadModels() {
  if ($("send").disabled || !$("key-field").hidden && !$("key").value) return;
  const response = await tryFetch("v1/models", { headers: headers() });
  if (!response) return;
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

// What the page tells while the server does not answer requests.
const BANNERS = { starting: "The server is starting. It will answer once its model is loaded.",
  unreachable: "The server can't be reached. This page reconnects as soon as it is back." };
const CHECK_MS = { ready: 10000, starting: 2000, unreachable: 2000 };

let nextCheck = null;
async function checkReady() {
  clearTimeout(nextCheck);
  const was = $("state").className, response = await tryFetch("ready");
  const state = !response ? "unreachable" : response.ok ? "ready" : "starting";
  showState(state);
  if (state !== "unreachable" && (!api || was === "unreachable")) await load();
  clearTimeout(nextCheck);
  nextCheck = setTimeout(checkReady, CHECK_MS[state]);
}

function showState(state) {
  $("state").className = state;
  $("state").textContent = state === "unreachable" ? "not reachable" : state;
  $("banner").hidden = state === "ready";
  $("banner").textContent = BANNERS[state] ?? "";
}
