// SPDX-License-Identifier: MIT
/* A conversation on the page: questions, answers as they come, and what can be done with both. */
const stored = (storage, name, value) => {
  try {
    if (value === undefined) return storage.getItem(name) || "";
    storage.setItem(name, value);
  } catch { /* a private window */ }
  return "";
};
const views = new WeakMap(); // turn: its elements
let declined = false; // no key was given: the view does not ask again
let attached = []; // files of the message that is being written

// ---- Requests ----

async function call(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  const known = stored(sessionStorage, "key");
  if (known) headers.Authorization = "Bearer " + known;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401 && !options.again && !(declined && options.watches)) {
    const key = prompt("This server wants a key:");
    declined = !key;
    if (key) {
      stored(sessionStorage, "key", key);
      return call(path, { ...options, again: true });
    }
  }
  return answer;
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") yield null;
      else if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

/* Files stand before the message, each between fences that its text does not have. */
function content(turn) {
  const files = (turn.files || []).map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...(text.match(/`+/g) || []).map(run => run.length + 1)));
    return `File ${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}\n\n`;
  });
  return files.join("") + turn.text;
}

function messages(turns) {
  const system = settings().system;
  const list = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") {
      list.push({ role: "user", content: content(turn) });
    } else if (turn.role === "tool") {
      list.push({ role: "tool", tool_call_id: turn.call, content: turn.text });
    } else if (turn.calls?.length) {
      list.push({ role: "assistant", content: turn.text, tool_calls: turn.calls.map(made => ({
        id: made.id, type: "function",
        function: { name: made.name, arguments: made.arguments } })) });
    } else if (turn.text) {
      list.push({ role: "assistant", content: turn.text });
    }
  }
  return list;
}

function addDelta(turn, delta) {
  turn.text += delta.content || "";
  turn.reasoning += delta.reasoning_content || "";
  for (const piece of delta.tool_calls || []) {
    const made = turn.calls[piece.index] ||= { id: "", name: "", arguments: "" };
    made.id ||= piece.id || "";
    made.name += piece.function?.name || "";
    made.arguments += piece.function?.arguments || "";
  }
}

/* One answer into the turn. Gives its note. */
async function receive(conversation, turn, signal) {
  const began = performance.now();
  let first = 0, usage = null, ended = false, reason = "";
  const answer = await call("/v1/chat/completions", {
    method: "POST", signal, headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ messages: messages(conversation.turns.slice(0, -1)), stream: true,
      stream_options: { include_usage: true }, ...settings().fields }),
  });
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Error(told?.error?.message || `The server answered ${answer.status}.`);
  }
  for await (const event of events(answer)) {
    if (event === null) { ended = true; continue; }
    if (event.error) throw new Error(event.error.message);
    usage = event.usage || usage;
    for (const choice of event.choices) {
      addDelta(turn, choice.delta);
      reason = choice.finish_reason || reason;
      if (!first && (turn.text || turn.reasoning || turn.calls.length)) first = performance.now();
    }
    paintSoon(conversation);
  }
  if (!ended) throw new Error("The connection broke off.");
  const seconds = (performance.now() - first) / 1000, n = usage ? usage.completion_tokens : 0;
  const rate = n > 1 && seconds > 0 ? `, ${((n - 1) / seconds).toFixed(1)} a second` : "";
  return `${n} tokens${rate}` +
    (first ? `, first after ${((first - began) / 1000).toFixed(2)} s` : "") +
    (reason === "length" ? ", cut off: no room for more" : "");
}

async function ask(conversation) {
  const turn = { role: "assistant", text: "", reasoning: "", note: "", calls: [] };
  const stop = new AbortController();
  conversation.turns.push(turn);
  conversation.changed = Date.now();
  running.set(conversation.id, stop);
  keep(conversation);
  draw();
  drawNames();
  $("spoken").textContent = "The answer is being written.";
  try {
    turn.note = await receive(conversation, turn, stop.signal);
  } catch (error) {
    if (error.name === "AbortError") turn.note = "stopped";
    else turn.error = error instanceof TypeError ? "The server does not answer." : error.message;
  }
  running.delete(conversation.id);
  conversation.changed = Date.now();
  if (all.has(conversation.id)) keep(conversation);
  if (conversation === current) draw();
  drawNames();
  $("spoken").textContent = turn.error || `Answer: ${turn.text.slice(0, 5000)}`;
}

// ---- Turns ----

async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // over plain HTTP from another machine there is no clipboard
    const field = element("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  from.textContent = "Copied";
  setTimeout(() => { from.textContent = "Copy"; }, 1500);
}

function fold(summary, className, text) {
  const node = element("details", className);
  node.append(element("summary", "", summary), element("pre", "", text));
  return node;
}

function pretty(json) {
  try { return JSON.stringify(JSON.parse(json), null, 2); } catch { return json; }
}

/* Puts nodes in place of the old ones; equal ones stay, and with them a selection. */
function fill(parent, nodes) {
  nodes.forEach((node, i) => {
    const old = parent.childNodes[i];
    if (!old) parent.append(node);
    else if (typeof node === "string" || !old.isEqualNode(node)) old.replaceWith(node);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

function drawReasoning(view, turn, comes) {
  if (!view.thoughts) {
    view.thoughts = fold("Reasoning", "thoughts", "");
    view.thoughts.firstChild.onclick = () => { view.chosen = true; };
    view.body.before(view.thoughts);
  }
  view.thoughts.lastChild.textContent = turn.reasoning;
  if (!view.chosen) view.thoughts.open = comes && !turn.text;
}

/* The fields for what the calls gave. */
function resultForm(conversation, calls) {
  const form = element("div", "results");
  const fields = calls.map(made => {
    const label = element("label", "", `Result of ${made.name}`), field = element("textarea");
    field.rows = 1;
    label.append(field);
    form.append(label);
    return field;
  });
  form.append(button("Send results", "The model goes on with them", () => {
    calls.forEach((made, i) => conversation.turns.push(
      { role: "tool", call: made.id, name: made.name, text: fields[i].value }));
    ask(conversation);
  }));
  return form;
}

function drawTools(conversation, turn, index) {
  const last = index === conversation.turns.length - 1;
  const out = [element("span", "", turn.note || "")];
  if (running.has(conversation.id)) return out;
  if (turn.text) {
    const node = button("Copy", "Copy the text", () => copy(turn.text, node));
    out.push(node);
  }
  if (turn.role === "user") {
    out.push(button("Edit", "Change it and ask again", () => edit(conversation, index)));
  }
  if (turn.role === "assistant" && last) {
    out.push(button(turn.error ? "Try again" : "Regenerate", "Another answer (Alt+R)", regenerate));
  }
  return out;
}

function bodyOf(turn) {
  if (turn.role === "user") {
    return [...(turn.files || []).map(file =>
      fold(`${file.name}, ${bytes(new Blob([file.text]).size)}`, "file", file.text)),
    element("div", "plain", turn.text)];
  }
  try {
    return markdown(turn.text);
  } catch { // never seen; the text is worth more than its form
    return [element("div", "plain", turn.text)];
  }
}

function paint(conversation, turn, index) {
  let view = views.get(turn);
  if (!view) {
    view = { node: element("article", "turn " + turn.role), body: element("div", "body"),
      after: element("div", "calls"), tools: element("div", "tools") };
    view.node.setAttribute("aria-label",
      { user: "You", assistant: "Answer", tool: "Result" }[turn.role]);
    view.node.append(view.body, view.after, view.tools);
    views.set(turn, view);
  }
  const last = index === conversation.turns.length - 1;
  const comes = last && running.has(conversation.id);
  if (turn.reasoning) drawReasoning(view, turn, comes);
  if (turn.role === "tool") {
    fill(view.body, [fold(`Result of ${turn.name}`, "call", turn.text)]);
  } else if (view.text !== turn.text || turn.role === "user") {
    fill(view.body, bodyOf(turn));
    view.text = turn.text;
  }
  view.body.hidden = turn.role === "assistant" && !turn.text;
  view.node.classList.toggle("error", Boolean(turn.error));
  view.node.setAttribute("aria-busy", comes);
  fill(view.after, [
    ...(turn.calls || []).map(made => fold(`Call of ${made.name}`, "call", pretty(made.arguments))),
    ...(last && !comes && turn.calls?.length ? [resultForm(conversation, turn.calls)] : []),
    ...(comes && !turn.text && !turn.calls.length && !turn.reasoning ?
      [element("p", "wait", waitText())] : []),
    ...(turn.error ? [element("p", "wrong", turn.error)] : [])]);
  view.tools.replaceChildren(...drawTools(conversation, turn, index));
  return view.node;
}

function atEnd() {
  const talk = $("talk");
  return talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
}

function follow(was) {
  if (was) $("talk").scrollTop = $("talk").scrollHeight;
}

function draw() {
  const was = atEnd(), { turns } = current;
  $("talk").replaceChildren(...(turns.length ?
    turns.map((turn, index) => paint(current, turn, index)) :
    [element("p", "empty", "Ask something. The view beside shows which experts answer.")]));
  $("send").textContent = running.has(current.id) ? "Stop" : "Send";
  follow(was);
}

/* Long answers take longer to draw: the page is drawn for a quarter of the time at most. */
function paintSoon(conversation) {
  if (conversation !== current || paintSoon.timer) return;
  paintSoon.timer = setTimeout(() => {
    const began = performance.now(), was = atEnd(), { turns } = current;
    paintSoon.timer = 0;
    if (!turns.length) return;
    paint(current, turns[turns.length - 1], turns.length - 1);
    follow(was);
    paintSoon.pause = Math.max(50, 3 * (performance.now() - began));
  }, paintSoon.pause || 50);
}

// ---- What can be done ----

function begin() {
  show({ id: newId(), title: "", changed: 0, turns: [] });
  $("text").focus();
}

function show(conversation) {
  current = conversation;
  $("talk").replaceChildren();
  draw();
  follow(true);
  drawNames();
}

function post(conversation, text, files) {
  conversation.turns.push({ role: "user", text, files });
  conversation.title ||= (text.trim() || files[0].name).split("\n")[0].slice(0, 60);
  ask(conversation);
}

function submit() {
  if (running.has(current.id)) {
    running.get(current.id).abort();
  } else if ($("text").value.trim() || attached.length) {
    const files = attached;
    attached = [];
    drawFiles();
    post(current, $("text").value, files);
    $("text").value = "";
    grow($("text"));
    follow(true);
  }
}

/* The message becomes a field in its place; what came after it goes when the new one is sent. */
function edit(conversation, index) {
  const turn = conversation.turns[index], view = views.get(turn);
  const field = element("textarea", "edit");
  const close = () => { view.text = null; draw(); $("text").focus(); };
  const send = () => {
    if (!field.value.trim() || running.has(conversation.id)) return;
    conversation.turns.length = index;
    post(conversation, field.value, turn.files || []);
    $("text").focus();
  };
  field.value = turn.text;
  field.setAttribute("aria-label", "Edit the message");
  field.oninput = () => grow(field);
  field.onkeydown = event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape") { event.stopPropagation(); close(); }
  };
  view.body.replaceChildren(field);
  view.tools.replaceChildren(element("span", "", "What comes after it goes."),
    button("Cancel", "Leave it as it was (Esc)", close), button("Send", "Ask this instead", send));
  grow(field);
  field.focus();
}

function regenerate() {
  if (running.has(current.id) || !current.turns.length) return;
  if (current.turns[current.turns.length - 1].role === "assistant") current.turns.pop();
  ask(current);
}

function grow(field) {
  field.style.height = "auto";
  field.style.height = field.scrollHeight + 2 + "px";
}
