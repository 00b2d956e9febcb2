// SPDX-License-Identifier: MIT
/* The engine at work: where each expert is, what moves, and whether the server is there at all. */
const TIERS = [
  ["no expert", ""],
  ["on disk", "in the model's file alone: a token that needs it waits for the disk"],
  ["on its way", "being read or copied now"],
  ["in host memory", "one copy away from the device that computes"],
  ["ready", "in memory, used without a wait"],
  ["with workers", "in another machine's memory, which computes it"]];
let before = null, peak = { disk: 1, link: 1 }, failures = 0, goneSince = 0;
let waited = null; // what the server says while a first token is awaited: {id, slots, disk, ...}

function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 1000 && i < 4; i++) n /= 1000;
  return n.toFixed(n < 10 && i ? 1 : 0) + " " + units[i];
}

function drawGrid(now) {
  const style = getComputedStyle(document.documentElement);
  const colours = TIERS.map((_, i) => style.getPropertyValue("--t" + i).trim());
  const canvas = $("grid"), rows = now.layers.length, columns = now.n_expert;
  const scale = Math.max(1, Math.min(14, Math.floor(388 / columns)));
  const high = Math.max(2, Math.min(14, Math.max(scale, Math.floor(240 / rows))));
  const gap = scale > 4 ? 1 : 0, counts = TIERS.map(() => 0);
  canvas.width = columns * scale;
  canvas.height = rows * high;
  const pen = canvas.getContext("2d");
  now.layers.forEach((layer, y) => {
    for (let x = 0; x < layer.length; x++) {
      const tier = layer.charCodeAt(x) - 48;
      counts[tier]++;
      if (tier > 0) {
        pen.fillStyle = colours[tier];
        pen.fillRect(x * scale, y * high, scale - gap, high - (high > 4 ? 1 : 0));
      }
    }
  });
  $("gridTitle").textContent = `The model has ${rows} layers (rows) of ${columns} experts ` +
    `(cells). In each layer a token uses ${now.n_expert_used} of them; a cell's colour says ` +
    "where that expert's weights are now.";
  canvas.setAttribute("aria-label",
    TIERS.map(([name], i) => `${counts[i]} ${name}`).slice(1).join(", "));
  fill($("legend"), TIERS.map(([name, meaning], i) => {
    const item = element("li"), box = element("i", "tier" + i);
    item.append(box, element("b", "", `${name} ${counts[i]}`), element("span", "", ` ${meaning}`));
    return item;
  }).filter((_, i) => i > 0 && (i !== 3 || counts[3] > 0 || now.link_bytes > 0) &&
    (i !== 5 || now.workers.length > 0)));
}

/* How far the pass is that runs; the rest is judged by its layers so far. */
function passText(now) {
  const left = Math.round((now.pass_ms_expected - now.pass_ms) / 1000);
  return `layer ${now.pass_layer} of ${now.n_layer}` +
    (now.pass_bytes > 0 ? `, ${bytes(now.pass_bytes)}` : "") +
    (now.pass_bytes > 0 && now.pass_bytes_expected > 0 ?
      ` of about ${bytes(now.pass_bytes_expected)}` : "") +
    (left > 0 ? `, about ${left} s left` : "");
}

function drawFigures(now, seconds) {
  const rate = name => before && seconds > 0 ? (now[name] - before[name]) / seconds : 0;
  const asked = rate("hits") + rate("misses");
  const all = now.hits + now.misses;
  const disk = rate("disk_bytes"), link = rate("link_bytes");
  peak.disk = Math.max(peak.disk, disk);
  peak.link = Math.max(peak.link, link);
  const share = (a, b) => b > 0 ? (100 * a / b).toFixed(1) + " %" : "–";
  const rows = [
    ["Requests at work, waiting", `${now.active} of ${now.parallel}, ${now.waiting}`],
    ["Tokens written a second", rate("written_tokens").toFixed(1)],
    ["Prompt tokens a second", rate("prompt_tokens").toFixed(0)],
    ["Experts ready, now", asked > 0 ? share(rate("hits"), asked) : "–"],
    ["Experts ready, in all", share(now.hits, all)],
    ["From the disk a second", bytes(disk), disk / peak.disk],
    ["From the disk in all", bytes(now.disk_bytes)],
    ...(now.pass_ms > 0 ? [["The pass that runs", passText(now), now.pass_layer / now.n_layer]] : []),
    ...(now.link_bytes > 0 ? [["Over the link a second", bytes(link), link / peak.link]] : []),
    ...now.workers.map(worker => [`Worker ${worker.address}`, worker.ready ?
      `has ${worker.experts} experts, computed ${worker.computed}` : "does not answer"]),
    ["Drafts accepted", share(now.accepted, now.drafted)],
    ["Conversations in memory", now.idle],
    ["Memory of the budget", `${bytes(now.resident_bytes)} of ${bytes(now.budget_bytes)}`,
      now.resident_bytes / now.budget_bytes],
  ];
  const out = [];
  for (const [name, value, part] of rows) {
    out.push(element("dt", "", name), element("dd", "", String(value)));
    if (part !== undefined) {
      const bar = element("div", "bar"), filled = element("i");
      filled.style.width = Math.min(100, 100 * part) + "%";
      bar.append(filled);
      out.push(bar);
    }
  }
  $("figures").replaceChildren(...out);
}

// ---- While nothing has come yet ----

const isAwaited = turn => turn && !turn.text && !turn.reasoning && !turn.calls?.length;

function waitText() {
  if (!waited) return "Sent…";
  const seconds = Math.round((performance.now() - waited.began) / 1000);
  const reading = waited.slots.filter(slot => slot.state === "reading");
  const what = reading.length === 1 ? `Reading a prompt of ${reading[0].prompt_tokens} tokens` +
      (reading[0].cached_tokens > 0 ? `, ${reading[0].cached_tokens} of them known` : "") +
      (reading[0].read_tokens > 0 ? `, ${reading[0].read_tokens} read` : "")
    : reading.length > 1 ? `Reading ${reading.length} prompts`
      : waited.waiting > 0 ? "Waiting for a place" : "Sent";
  return `${what}: ${seconds} s, ${bytes(waited.disk)} from the disk${waited.pass}`;
}

async function lookAtWait(now) {
  if (!running.has(current.id) || !isAwaited(current.turns[current.turns.length - 1])) {
    waited = null;
    return;
  }
  const answer = await call("/slots", { watches: true });
  const slots = answer.ok ? await answer.json() : [];
  const { began, from } = waited?.id === current.id ? waited
    : { began: performance.now(), from: now.disk_bytes };
  waited = { id: current.id, began, from, slots, waiting: now.waiting,
    disk: now.disk_bytes - from, pass: now.pass_ms > 0 ? "; " + passText(now) : "" };
  paintSoon(current);
}

// ---- Whether the server is there ----

function drawGone() {
  failures++;
  goneSince ||= performance.now();
  if (failures < 2) return; // one failed look is no news
  const seconds = Math.round((performance.now() - goneSince) / 1000);
  const text = "The server does not answer. The page asks again every second and goes on when it " +
    "is back; what is written here is kept.";
  if ($("gone").hidden) $("gone").textContent = text; // said once, not each second
  $("gone").hidden = false;
  $("model").textContent = `no answer for ${seconds} s`;
}

function drawBack() {
  if (!$("gone").hidden) {
    $("gone").hidden = true;
    $("gone").textContent = "";
    tell("The server is back.");
    before = null;
  }
  failures = goneSince = 0;
}

async function look() {
  try {
    if (!document.hidden) {
      const answer = await call("/live", { watches: true, signal: AbortSignal.timeout(10000) });
      drawBack();
      if (answer.ok) {
        const now = { ...await answer.json(), at: performance.now() };
        $("model").textContent = `${now.model} on ${now.device}`;
        drawGrid(now);
        drawFigures(now, before ? (now.at - before.at) / 1000 : 0);
        if (!before || now.at - before.at > 1500) before = now;
        await lookAtWait(now);
      }
    }
  } catch {
    drawGone();
  }
  setTimeout(look, failures ? 1000 : 500);
}
