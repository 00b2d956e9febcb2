// SPDX-License-Identifier: MIT
/* Markdown as models write it, made into nodes of the document.

   The text is hostile. Nodes are made by name, from the names in this file; text goes into text
   nodes alone, so no tag of the text is one of the page. A link leads to http, https or mailto,
   and an image is a link: the page loads nothing. What nests deeper than DEEPEST stays text, and no
   text takes time that grows with the square of its length.

   Unlike CommonMark: a line's end is one on the page, indented text is no code, headings begin with
   #, a quote ends where its marks end, and ** need not stand at a word's edge. Tables, ~~struck~~
   and tasks are as GitHub's, formulas as math.js reads them. */
const DEEPEST = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|( )|$)/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/* Children are nodes, texts and lists of them. */
function make(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  for (const child of children.flat(Infinity)) node.append(child);
  return node;
}

// ---- Lines ----

function codeBlock(language, text) {
  const copy = make("button", "copy", "Copy");
  copy.type = "button";
  const pre = make("pre", "", make("code", "", text));
  pre.tabIndex = 0; // long lines are moved by keys
  return make("div", "code", make("div", "lang", make("span", "", language), copy), pre);
}

function readFence(lines, at, [, marks, language], out) {
  const indent = lines[at].search(/\S/), body = [];
  const isEnd = line => /^ {0,3}(`+|~+)[ \t]*$/.test(line) && line.trim()[0] === marks[0] &&
    line.trim().length >= marks.length;
  for (at++; at < lines.length && !isEnd(lines[at]); at++) {
    body.push(lines[at].slice(Math.min(indent, Math.max(0, lines[at].search(/\S|$/)))));
  }
  out.push(codeBlock(language.trim().split(/\s/)[0], body.join("\n")));
  return at + 1;
}

/* A formula in lines of its own; 0: it has no end. */
function readFormula(lines, at, out) {
  const begin = /^\s*(\$\$|\\\[)/.exec(lines[at]);
  const end = begin && (begin[1] === "$$" ? "$$" : "\\]");
  const body = [];
  const last = Math.min(lines.length, at + 200);
  for (let i = at; begin && i < last && lines[i].trim() !== ""; i++) {
    const line = i === at ? lines[i].slice(begin[0].length) : lines[i];
    const found = line.indexOf(end);
    if (found >= 0 && line.slice(found + 2).trim() !== "") return 0;
    body.push(found >= 0 ? line.slice(0, found) : line);
    if (found >= 0) {
      out.push(make("div", "formula", formula(body.join("\n"), true)));
      return i + 1;
    }
  }
  return 0;
}

function cells(line) {
  const parts = line.trim().replace(/^\|/, "").match(/(?:\\.|[^\\|]|\\$)*(?:\||$)/g);
  const texts = parts.map(part => part.replace(/\|$/, "").replace(/\\\|/g, "|").trim());
  if (texts.length > 1 && texts[texts.length - 1] === "") texts.pop();
  if (texts.length > 1 && /\|\s*$/.test(line) && texts[texts.length - 1] === "") texts.pop();
  return texts;
}

function isTable(lines, at) {
  return at + 1 < lines.length && lines[at].includes("|") && lines[at + 1].includes("-") &&
    DIVIDER.test(lines[at + 1]) && cells(lines[at]).length === cells(lines[at + 1]).length;
}

function readTable(lines, at, out) {
  const sides = cells(lines[at + 1]).map(text =>
    /^:.*:$/.test(text) ? "middle" : text.endsWith(":") ? "right" : "");
  const row = (name, texts) =>
    make("tr", "", sides.map((side, i) => make(name, side, inline(texts[i] || ""))));
  const head = make("thead", "", row("th", cells(lines[at]))), body = make("tbody");
  for (at += 2; at < lines.length && lines[at].trim() !== "" && lines[at].includes("|"); at++) {
    body.append(row("td", cells(lines[at])));
  }
  const frame = make("div", "wide", make("table", "", head, body));
  frame.tabIndex = 0;
  out.push(frame);
  return at;
}

function beginsBlock(line) {
  const item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) ||
    (item !== null && item[0].length < line.length &&
      (item[2].length < 2 || /^1[.)]$/.test(item[2])));
}

/* The lines of one item, without its mark and indentation, and where the next thing begins. */
function readItem(lines, at, item) {
  const outer = item[1].length, inner = item[0].length + (item[3] || item[4] ? 0 : 1);
  const body = [lines[at].slice(item[0].length)];
  for (at++; at < lines.length; at++) {
    const line = lines[at], indent = line.search(/\S/);
    if (indent < 0) {
      const next = lines.slice(at, at + 4).find(l => l.trim() !== "");
      if (next === undefined || next.search(/\S/) < outer + 2) break;
      body.push("");
    } else if (indent >= outer + 2) {
      body.push(line.slice(Math.min(indent, inner)));
    } else if (lines[at - 1].trim() === "" || beginsBlock(line) || ITEM.test(line)) {
      break;
    } else {
      body.push(line.trimStart());
    }
  }
  return { body, at };
}

function readList(lines, at, depth, out) {
  const first = ITEM.exec(lines[at]), kind = first[2].slice(-1), isOrdered = first[2].length > 1;
  const list = make(isOrdered ? "ol" : "ul"), items = [];
  if (isOrdered && parseInt(first[2], 10) !== 1) list.start = parseInt(first[2], 10);
  let loose = false;
  for (;;) {
    const item = at < lines.length ? ITEM.exec(lines[at]) : null;
    if (!item || item[2].slice(-1) !== kind || RULE.test(lines[at])) break;
    const read = readItem(lines, at, item);
    items.push(read.body);
    at = read.at;
    let next = at;
    while (next < lines.length && lines[next].trim() === "") next++;
    const more = next < lines.length && ITEM.exec(lines[next]);
    if (more && more[2].slice(-1) === kind) {
      loose = loose || next > at;
      at = next;
    }
  }
  for (const body of items) {
    body[0] = body[0].replace(/^\[([ xX])\] /, (_, mark) => mark === " " ? "☐ " : "☑ ");
    list.append(make("li", "", blocks(body, depth + 1, !loose && !body.includes(""))));
  }
  out.push(list);
  return at;
}

/* Without marks at its end. */
function headingText(text) {
  let end = text.trimEnd().length;
  const all = end;
  while (text[end - 1] === "#") end--;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trim() : text.slice(0, all).trim();
}

/* tight: paragraphs stand without an element of their own. */
function blocks(lines, depth = 0, tight = false) {
  const out = [];
  const put = text => {
    for (const part of tight ? inline(text) : [make("p", "", inline(text))]) out.push(part);
  };
  for (let at = 0, next; at < lines.length;) {
    const line = lines[at], fence = FENCE.exec(line), heading = HEADING.exec(line);
    if (line.trim() === "") {
      at++;
    } else if (depth > DEEPEST) {
      put(lines.slice(at).join("\n"));
      at = lines.length;
    } else if (fence) {
      at = readFence(lines, at, fence, out);
    } else if ((next = readFormula(lines, at, out)) > 0) {
      at = next;
    } else if (heading) { // below those of the page
      const name = "h" + Math.min(6, heading[1].length + 2);
      out.push(make(name, "", inline(headingText(heading[2] || ""))));
      at++;
    } else if (RULE.test(line)) {
      out.push(make("hr"));
      at++;
    } else if (QUOTE.test(line)) {
      const body = [];
      while (at < lines.length && QUOTE.test(lines[at])) body.push(lines[at++].replace(QUOTE, ""));
      out.push(make("blockquote", "", blocks(body, depth + 1)));
    } else if (ITEM.test(line)) {
      at = readList(lines, at, depth, out);
    } else if (isTable(lines, at)) {
      at = readTable(lines, at, out);
    } else {
      const from = at++;
      while (at < lines.length && lines[at].trim() !== "" && !beginsBlock(lines[at]) &&
             !/^\s*(?:\$\$|\\\[)/.test(lines[at]) && !isTable(lines, at)) at++;
      put(lines.slice(from, at).join("\n"));
    }
  }
  return out;
}

// ---- Within a line ----

const PUNCTUATION = /[\p{P}\p{S}]/u;
const joined = (flags, ...parts) => new RegExp(parts.map(part => part.source).join(""), flags);
const LINK = joined("y", // an image's mark, [label], (address "title")
  /(!?)\[((?:[^[\]\\`\n]|\\.|`[^`\n]{0,200}`|\[[^[\]\n]{0,200}\]){0,300})\]/,
  /\([ \t]*<?((?:[^\s()<>]|\([^\s()<>]{0,200}\)){0,2000})>?/,
  /(?:[ \t]+"[^"\n]{0,300}")?[ \t]*\)/);
const ADDRESS = /https?:\/\/[^\s<>"'`|\\^{}]{1,2000}/y;
const ANGLE = /<(?:(https?:\/\/[^\s<>]{1,2000}|mailto:[^\s<>]{1,300})|br ?\/?)>/y;
const INLINE_FORMULA = joined("y", // \( \), \[ \], $$ $$, $ $
  /\\\((.{1,2000}?)\\\)|\\\[([^]{1,2000}?)\\\]|\$\$([^$]{1,2000})\$\$/,
  /|\$(?![\s$])([^$\n]{0,1000}[^\s$\\])\$(?!\d)/);
const ENTITY = /&(amp|lt|gt|quot|nbsp|#39);/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", "#39": "'" };

/* A link, or null where the address is none that a page may lead to. */
function link(address, ...children) {
  if (!/^(?:https?:\/\/[^/]|mailto:)/i.test(address)) return null;
  const node = make("a", "", children);
  node.href = address;
  node.rel = "noopener noreferrer nofollow";
  node.target = "_blank";
  return node;
}

/* What stands at text[at] and is more than a character: {size, nodes}, or null. */
function readSpecial(text, at, linked) {
  const match = expression => (expression.lastIndex = at, expression.exec(text));
  const is = text[at];
  let found;
  if ((is === "\\" || is === "$") && (found = match(INLINE_FORMULA))) {
    const isDisplay = found[2] !== undefined || found[3] !== undefined;
    return { size: found[0].length,
      nodes: [formula(found.slice(1).find(part => part !== undefined), isDisplay)] };
  }
  if (is === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] || "")) {
    return { size: 2, nodes: [text[at + 1]] };
  }
  if (is === "&" && (found = match(ENTITY))) {
    return { size: found[0].length, nodes: [ENTITIES[found[1]]] };
  }
  if ((is === "[" || (is === "!" && text[at + 1] === "[")) && !linked && (found = match(LINK))) {
    const label = inline(found[2], true);
    if (found[1] && label.length === 0) label.push("image");
    const node = link(found[3], found[1] ? "🖼 " : [], label);
    return node && { size: found[0].length, nodes: [node] };
  }
  if (is === "<" && (found = match(ANGLE))) {
    if (!found[1]) return { size: found[0].length, nodes: [make("br")] };
    return linked ? null : { size: found[0].length,
      nodes: [link(found[1], found[1].replace(/^mailto:/, ""))] };
  }
  if (is === "h" && !linked && !/\w/.test(text[at - 1] || "") && (found = match(ADDRESS))) {
    let address = found[0].replace(/[.,;:!?*_~]+$/, "");
    while (/[)\]]$/.test(address) && !/[([]/.test(address)) address = address.slice(0, -1);
    return { size: address.length, nodes: [link(address, address) || address] };
  }
  return null;
}

/* A run of * or _ or ~: whether it may open and close, as CommonMark has it. */
function delimiter(text, at, mark) {
  let size = 1;
  while (text[at + size] === mark) size++;
  const before = text[at - 1] || " ", after = text[at + size] || " ";
  const space = /\s/, gap = c => space.test(c) || PUNCTUATION.test(c);
  const strict = mark !== "*" || size < 2; // **so:**it is meant, most of all without spaces
  const left = !space.test(after) && (!strict || !PUNCTUATION.test(after) || gap(before));
  const right = !space.test(before) && (!strict || !PUNCTUATION.test(before) || gap(after));
  return { mark, size, left: size,
    opens: left && (mark !== "_" || !right || PUNCTUATION.test(before)),
    closes: right && (mark !== "_" || !left || PUNCTUATION.test(after)) };
}

const isDelimiter = part => typeof part === "object" && part.mark !== undefined;
const plain = parts => parts.map(part => isDelimiter(part) ? part.mark.repeat(part.left) : part);

/* Pairs delimiters, the nearest opening one with each that closes. */
function emphasise(parts) {
  const stack = [], open = { "*": 0, "_": 0, "~": 0 };
  for (const part of parts) {
    while (isDelimiter(part) && part.closes && part.left > 0 && open[part.mark] > 0) {
      let at = stack.length - 1;
      while (!(isDelimiter(stack[at]) && stack[at].mark === part.mark)) at--;
      const inside = stack.slice(at + 1);
      const depth = 1 + inside.reduce((most, node) => Math.max(most, node.depth || 0), 0);
      if (depth > DEEPEST) open[part.mark] = 0;
      if (depth > DEEPEST || inside.length === 0) break;
      stack.length = at + 1;
      for (const lost of inside) if (isDelimiter(lost)) open[lost.mark]--;
      const opening = stack[at], both = part.left > 1 && opening.left > 1;
      const node = make(part.mark === "~" ? "del" : both ? "strong" : "em", "", plain(inside));
      node.depth = depth;
      part.left -= both ? 2 : 1;
      opening.left -= both ? 2 : 1;
      if (opening.left === 0) {
        stack.pop();
        open[opening.mark]--;
      }
      stack.push(node);
    }
    if (!isDelimiter(part)) {
      stack.push(part);
    } else if (part.left > 0) {
      stack.push(part.opens ? part : part.mark.repeat(part.left));
      open[part.mark] += part.opens;
    }
  }
  return plain(stack);
}

/* The nodes and texts of a line or more. linked: inside a link there is no other. */
function inline(text, linked = false) {
  const parts = [];
  let from = 0;
  const flush = to => { if (to > from) parts.push(text.slice(from, to)); };
  const ticks = [...text.matchAll(/`+/g)];
  let tick = 0;
  for (let at = 0; at < text.length;) {
    let size = 0, nodes = [];
    if (text[at] === "`") {
      while (tick < ticks.length && ticks[tick].index <= at) tick++;
      const run = /^`+/.exec(text.slice(at, at + 200))[0].length;
      let to = tick;
      while (to < ticks.length && ticks[to][0].length !== run) to++;
      const end = ticks[to];
      size = end ? end.index + run - at : run;
      const code = end && text.slice(at + run, end.index).replace(/\n/g, " ");
      nodes = end ? [make("code", "", code.replace(/^ (.*\S.*) $/, "$1"))] : ["`".repeat(run)];
    } else if (text[at] === "\n" || text.startsWith("\\\n", at)) {
      size = /^\\?\n[ \t]*/.exec(text.slice(at, at + 200))[0].length;
      nodes = [make("br")];
    } else if ("*_~".includes(text[at])) {
      const part = delimiter(text, at, text[at]);
      size = part.size;
      nodes = [text[at] === "~" && size !== 2 ? "~".repeat(size) : part];
    } else if ("\\$[!<&h".includes(text[at])) {
      ({ size, nodes } = readSpecial(text, at, linked) || { size: 0 });
    }
    if (size > 0) {
      flush(at);
      parts.push(...nodes);
      from = at + size;
    }
    at += size || 1;
  }
  flush(text.length);
  return emphasise(parts);
}

function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"));
}
