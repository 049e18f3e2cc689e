"use strict";
// The chats of this tab, one per endpoint. They survive a reload; the browser forgets them with the tab.

const STORED = "cog-triton " + location.pathname;
let chats = { chat: [], text: [] };   // Turns by endpoint. `turns` is the one that is shown.

function save() {
  const kept = name => chats[name].map(turn => turn.state);
  const state = { mode: mode(), chat: kept("chat"), text: kept("text"), system: $("system").value, drafts };
  try {
    sessionStorage.setItem(STORED, JSON.stringify(state));
  } catch { /* No storage, or a chat that is too long for it. */ }
}

// Makes the turns again. Returns the endpoint that was shown, if any.
function restore() {
  try {
    const state = JSON.parse(sessionStorage.getItem(STORED));
    const made = isChat => each => each.role === "user" ? new Question(each.text, isChat) : Answer.from(each, isChat);
    chats = { chat: state.chat.map(made(true)), text: state.text.map(made(false)) };
    $("system").value = state.system ?? "";
    drafts = { ...state.drafts };
    return state.mode;
  } catch { /* No storage, or the state of another version of this page. */ }
  return null;
}

// Shows the turns of this endpoint in place of the others.
function showChat(name) {
  for (const turn of turns) turn.element.remove();
  turns = chats[name];
  $("log").append(...turns.map(turn => turn.element));
  $("hello").hidden = turns.length > 0;
  follows = true;
  keepEndInSight();
}
