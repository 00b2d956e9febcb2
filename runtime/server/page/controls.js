// SPDX-License-Identifier: MIT
/* Settings, attachments, keys; and the beginning. */
const KNOBS = [
  ["temperature", "Temperature", "0.8"], ["top_p", "Top p", "0.95"], ["top_k", "Top k", "40"],
  ["min_p", "Min p", "0.05"], ["repeat_penalty", "Repeat penalty", ""], ["seed", "Seed", ""],
  ["max_tokens", "Most tokens", ""]];
const FIELDS = [...KNOBS.map(([name]) => name), "system", "reasoning", "tools"];
const MOST_ATTACHED = 1e6; // bytes of a message's files

// ---- Settings ----

/* What goes into each request: {system, fields}. */
function settings() {
  const fields = {};
  for (const [name] of KNOBS) {
    const value = $("k_" + name).value.trim();
    /* What is no number goes as it is, and the server says what is wrong with it. */
    if (value !== "") fields[name] = Number.isNaN(Number(value)) ? value : Number(value);
  }
  const reasoning = $("k_reasoning").value, tools = readTools();
  if (reasoning) fields.chat_template_kwargs = { enable_thinking: reasoning === "on" };
  if (tools) fields.tools = tools;
  return { system: $("k_system").value, fields };
}

/* The list of tools; null where there is none or it cannot be read, which the dialog then says. */
function readTools() {
  const text = $("k_tools").value.trim();
  let tools = null, wrong = "";
  try { tools = text ? JSON.parse(text) : null; } catch (error) { wrong = error.message; }
  if (tools && !Array.isArray(tools)) wrong = "it is no list";
  $("toolsWrong").textContent = wrong && `No tools are sent: ${wrong}.`;
  return wrong || !tools?.length ? null : tools;
}

function keepSettings() {
  const values = Object.fromEntries(FIELDS.map(name => [name, $("k_" + name).value]));
  stored(localStorage, "settings", JSON.stringify(values));
  readTools();
}

function showSettings(values) {
  for (const name of FIELDS) {
    $("k_" + name).value = typeof values[name] === "string" ? values[name] : "";
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  stored(localStorage, "theme", theme);
}

// ---- Attachments ----

async function attach(files) {
  for (const file of files) {
    const size = attached.reduce((sum, { text }) => sum + text.length, file.size);
    if (size > MOST_ATTACHED) {
      tell(`${file.name} is too large: a message has room for ${bytes(MOST_ATTACHED)} of files.`);
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError("binary");
      attached.push({ name: file.name.slice(0, 200), text });
    } catch {
      tell(`${file.name} is no text (UTF-8); only text can be attached.`);
    }
  }
  drawFiles();
  $("text").focus();
}

function drawFiles() {
  $("files").replaceChildren(...attached.map((file, i) => {
    const item = element("li", "", `${file.name}, ${bytes(new Blob([file.text]).size)} `);
    const drop = button("✕", "Do not send it", () => { attached.splice(i, 1); drawFiles(); });
    drop.setAttribute("aria-label", `Do not send ${file.name}`);
    item.append(drop);
    return item;
  }));
}

// ---- The frame ----

function showList(shown) {
  document.body.classList.toggle("listed", shown);
  $("drawer").setAttribute("aria-expanded", shown);
}

const closeList = () => showList(false);

function turnView() {
  const live = document.body.classList.toggle("live");
  $("views").setAttribute("aria-pressed", live);
  $("views").textContent = live ? "Chat" : "Live";
}

const turnTheme = () =>
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

function fresh() {
  closeList();
  if (document.body.classList.contains("live")) turnView();
  begin();
}

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    showList(true);
    $("search").focus();
    $("search").select();
  } else if (event.key === "Escape" && !$("settings").open) {
    if (document.body.classList.contains("listed")) closeList();
    else running.get(current.id)?.abort();
  } else if (event.altKey && event.key === "n") {
    fresh();
  } else if (event.altKey && event.key === "t") {
    turnTheme();
  } else if (event.altKey && event.key === "r") {
    regenerate();
  }
}

function onTextKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running.has(current.id)) submit();
  } else if (event.key === "ArrowUp" && !$("text").value && !running.has(current.id)) {
    const index = current.turns.map(t => t.role).lastIndexOf("user");
    if (index >= 0) { event.preventDefault(); edit(current, index); }
  }
}

function onSearchKey(event) {
  if (event.key === "Escape") {
    event.stopPropagation();
    $("search").value = "";
    drawNames();
    closeList();
    $("text").focus();
  } else if (event.key === "Enter") {
    $("names").querySelector(".name")?.click();
    $("text").focus();
  }
}

function listen() {
  $("form").onsubmit = event => { event.preventDefault(); submit(); };
  $("text").oninput = () => grow($("text"));
  $("text").onkeydown = onTextKey;
  $("text").onpaste = event => {
    const { files } = event.clipboardData;
    if (files.length) { event.preventDefault(); attach([...files]); }
  };
  $("chat").ondragover = event => event.preventDefault();
  $("chat").ondrop = event => { event.preventDefault(); attach([...event.dataTransfer.files]); };
  $("attach").onclick = () => $("picked").click();
  $("picked").onchange = () => { attach([...$("picked").files]); $("picked").value = ""; };
  $("export").onclick = exportAll;
  $("import").onclick = () => $("imported").click();
  $("imported").onchange = async () => {
    const [file] = $("imported").files;
    if (file) await importText(await file.text());
    $("imported").value = "";
  };
  $("search").oninput = drawNames;
  $("search").onkeydown = onSearchKey;
  $("drawer").onclick = () => showList(!document.body.classList.contains("listed"));
  $("fresh").onclick = fresh;
  $("views").onclick = turnView;
  $("theme").onclick = turnTheme;
  $("adjust").onclick = () => { readTools(); $("settings").showModal(); };
  $("done").onclick = () => $("settings").close();
  $("standard").onclick = () => { showSettings({}); keepSettings(); };
  $("forget").onclick = () => { $("settings").close(); remove([...all.values()]); };
  $("settings").oninput = keepSettings;
  $("settings").onclose = () => $("text").focus();
  $("talk").onclick = event => {
    const from = event.target.closest(".copy");
    if (from) copy(from.closest(".code").querySelector("pre").textContent, from);
  };
  document.onkeydown = onKey;
  addEventListener("pagehide", () => { for (const id of running.keys()) keep(all.get(id)); });
}

for (const [name, label, standard] of KNOBS) {
  const field = element("label", "", label), input = element("input");
  input.id = "k_" + name;
  input.inputMode = "decimal";
  input.placeholder = standard || "none";
  field.append(input);
  $("knobs").append(field);
}
try {
  showSettings(JSON.parse(stored(localStorage, "settings") || "{}"));
} catch {
  showSettings({}); // not what this page has written
}
setTheme(stored(localStorage, "theme") ||
  (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
listen();
begin();
loadAll();
look();
