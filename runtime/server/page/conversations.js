// SPDX-License-Identifier: MIT
/* The conversations: kept in the browser's IndexedDB, listed, searched, exported and imported.
   A conversation is {id, title, changed, turns}; a turn is {role, text, reasoning, note, error,
   files, calls, call, name}. What a file or another tab brings is read by asConversation alone. */
const $ = id => document.getElementById(id);
const TURN_TEXTS = ["text", "reasoning", "note", "error", "call", "name"];
const all = new Map(); // id: conversation
const running = new Map(); // id: AbortController of the answer that comes
let current = null, base = null, renaming = null;
const tabs = "BroadcastChannel" in window ? new BroadcastChannel("moe-offload") : null;

function element(kind, className, text) {
  return make(kind, className || "", text === undefined ? [] : [text]);
}

function button(name, title, act) {
  const node = element("button", "", name);
  node.type = "button";
  node.title = title;
  node.onclick = act;
  return node;
}

/* A line at the bottom for some seconds, with a way back where there is one. */
function tell(text, undo) {
  const parts = [text];
  if (undo) parts.push(button("Undo", "As it was", () => { tell(""); undo(); }));
  $("toast").replaceChildren(...parts);
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => $("toast").replaceChildren(), undo ? 10000 : 6000);
}

// ---- Kept ----

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)),
  byte => byte.toString(16).padStart(2, "0")).join("");

/* The value as a conversation, or null: only known fields of the right kind. */
function asConversation(value) {
  if (!value || !/^[0-9a-f]{24}$/.test(value.id) || !Array.isArray(value.turns)) return null;
  const text = (from, name) => typeof from[name] === "string" ? { [name]: from[name] } : {};
  const list = (from, names) => (Array.isArray(from) ? from : []).filter(item => item)
    .map(item => Object.assign({}, ...names.map(name => ({ [name]: "", ...text(item, name) }))));
  const turns = value.turns.filter(t => t && ["user", "assistant", "tool"].includes(t.role))
    .map(t => ({ role: t.role, text: "", ...Object.assign({}, ...TURN_TEXTS.map(n => text(t, n))),
      files: list(t.files, ["name", "text"]), calls: list(t.calls, ["id", "name", "arguments"]) }));
  const title = typeof value.title === "string" ? value.title.trim().slice(0, 200) : "";
  return { id: value.id, title: title || "Untitled",
    changed: Number.isFinite(value.changed) ? value.changed : 0, turns };
}

function openBase() {
  return new Promise(resolve => {
    try {
      const request = indexedDB.open("moe-offload", 1);
      request.onupgradeneeded = () =>
        request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = request.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
}

function inBase(mode, act) {
  return new Promise((resolve, reject) => { // a transaction begins at once, after those before it
    const transaction = base.transaction("conversations", mode);
    const request = act(transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

async function keep(conversation) {
  all.set(conversation.id, conversation);
  if (!base) return;
  try {
    await inBase("readwrite", store => store.put(asConversation(conversation)));
    tabs?.postMessage(conversation.id);
  } catch (error) {
    tell(`The browser could not keep this conversation: ${error?.message || "no room"}`);
  }
}

async function remove(conversations) {
  const gone = base && inBase("readwrite", store =>
    conversations.map(({ id }) => store.delete(id)).pop() || {}).catch(() => {});
  for (const { id } of conversations) {
    running.get(id)?.abort();
    all.delete(id);
  }
  if (current && !all.has(current.id)) begin();
  drawNames();
  tell(conversations.length === 1 ? `Deleted “${conversations[0].title}”.` :
    `Deleted ${conversations.length} conversations.`, async () => {
    for (const conversation of conversations) await keep(conversation);
    drawNames();
  });
  await gone;
  for (const { id } of conversations) tabs?.postMessage(id);
}

/* Another tab has changed this one. */
async function refresh(id) {
  if (running.has(id) || !base) return;
  const found = asConversation(await inBase("readonly", store => store.get(id)));
  if (found) all.set(id, found); else all.delete(id);
  if (current?.id === id) {
    if (found) show(found); else begin();
  }
  drawNames();
}

async function loadAll() {
  base = await openBase();
  const stored = base ? await inBase("readonly", store => store.getAll()).catch(() => []) : [];
  for (const value of stored) {
    const conversation = asConversation(value);
    if (conversation) all.set(conversation.id, conversation);
  }
  if (tabs) tabs.onmessage = event => refresh(event.data);
  if (!base) tell("This browser keeps nothing: conversations end with this tab.");
  drawNames();
}

// ---- Files ----

function exportAll() {
  const data = { format: "moe-offload conversations", version: 1,
    conversations: [...all.values()] };
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)],
    { type: "application/json" }));
  link.download = `moe-offload-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/* Adds a file's conversations; of two with one id the one that was changed last stays. */
async function importText(text) {
  let data = null;
  try { data = JSON.parse(text); } catch { /* told below */ }
  if (data?.format !== "moe-offload conversations" || !Array.isArray(data.conversations)) {
    tell("That file holds no conversations of this page.");
    return;
  }
  let n = 0;
  for (const conversation of data.conversations.map(asConversation)) {
    if (!conversation || running.has(conversation.id) ||
        all.get(conversation.id)?.changed >= conversation.changed) continue;
    await keep(conversation);
    if (current?.id === conversation.id) show(conversation);
    n++;
  }
  drawNames();
  tell(`Imported ${n} of ${data.conversations.length} conversations` +
    (n < data.conversations.length ? "; the others are here already, or cannot be read." : "."));
}

// ---- The list ----

/* Where the words stand: the title alone (""), a piece of a turn, or null. */
function findWords(conversation, wanted) {
  if (conversation.title.toLowerCase().includes(wanted)) return "";
  for (const { text } of conversation.turns) {
    const at = text.toLowerCase().indexOf(wanted);
    if (at >= 0) return (at > 20 ? "…" : "") + text.slice(Math.max(0, at - 20), at + 60);
  }
  return null;
}

function rename(conversation, title) {
  if (renaming !== conversation) return; // Escape came first
  renaming = null;
  if (title.trim()) {
    conversation.title = title.trim().slice(0, 200);
    keep(conversation);
  }
  drawNames();
}

function drawName(conversation, piece) {
  const item = element("li", conversation === current ? "current" : "");
  if (renaming === conversation) {
    const input = element("input");
    input.value = conversation.title;
    input.setAttribute("aria-label", "New name");
    input.onblur = () => rename(conversation, input.value);
    input.onkeydown = event => {
      if (event.key === "Enter") rename(conversation, input.value);
      if (event.key === "Escape") { event.stopPropagation(); rename(conversation, ""); }
    };
    item.append(input);
    setTimeout(() => input.select());
    return item;
  }
  const name = button(conversation.title, conversation.title, () => {
    show(conversation);
    closeList();
  });
  name.className = "name";
  if (conversation === current) name.setAttribute("aria-current", "true");
  if (running.has(conversation.id)) name.prepend("● ");
  if (piece) name.append(element("small", "", piece));
  const change = button("✎", "Rename", () => { renaming = conversation; drawNames(); });
  const drop = button("✕", "Delete", () => remove([conversation]));
  for (const [node, what] of [[change, "Rename"], [drop, "Delete"]]) {
    node.setAttribute("aria-label", `${what} ${conversation.title}`);
  }
  item.append(name, change, drop);
  return item;
}

function drawNames() {
  const wanted = $("search").value.trim().toLowerCase(), items = [];
  for (const conversation of [...all.values()].sort((a, b) => b.changed - a.changed)) {
    const piece = wanted ? findWords(conversation, wanted) : "";
    if (piece !== null) items.push(drawName(conversation, piece));
  }
  $("names").replaceChildren(...(items.length ? items :
    [element("li", "note", wanted ? "Nothing found." : "Conversations appear here.")]));
}
