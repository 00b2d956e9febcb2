// SPDX-License-Identifier: MIT
/* The page's Markdown without a browser: each text of the table becomes its HTML, and whatever a
   text is made of, elements and attributes are those of the renderer. page_test.py shows the same
   table to a browser. Arguments: the folder of the page, the table. */
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");
const { html, document } = require("./page_document.js");
const [folder, table] = process.argv.slice(2);
const context = vm.createContext({ document });
for (const name of ["math.js", "markdown.js"]) {
  vm.runInContext(fs.readFileSync(path.join(folder, name), "utf8"), context, name);
}
const render = text => { context.text = text; return vm.runInContext("markdown(text)", context); };
let failed = 0;
const check = (name, holds, shown) => {
  if (!holds) { failed++; console.log(`FAIL ${name}: ${shown}`); }
};

const NAMES = new Set(("a b blockquote br button code del div em h3 h4 h5 h6 hr li math mfrac mi mn "
  + "mo mover mroot mrow mspace msqrt msub msubsup msup mtable mtd mtext mtr munder munderover ol p "
  + "pre span strong table tbody td th thead tr ul").split(" "));
const ATTRIBUTES = new Set(("accent class display href linethickness rel start tabindex target "
  + "type width").split(" "));
const CLASSES = new Set(["", "align", "bold", "boxed", "code", "copy", "formula", "lang", "left",
  "middle", "right", "wide"]);

/* What of the nodes a renderer must never make; "" where all is well. Gives the depth, too. */
function fault(nodes) {
  const open = nodes.map(node => [node, 1]);
  let deepest = 0;
  while (open.length) {
    const [node, depth] = open.pop();
    deepest = Math.max(deepest, depth);
    if (typeof node === "string") continue;
    if (!NAMES.has(node.name)) return { wrong: `<${node.name}>`, deepest };
    for (const [name, value] of node.attributes) {
      if (!ATTRIBUTES.has(name) || (name === "class" && !CLASSES.has(value)) ||
          (name === "href" && !/^(https?:\/\/|mailto:)/i.test(value))) {
        return { wrong: `${name}="${value}"`, deepest };
      }
    }
    if (node.name === "a" && !node.attributes.get("rel").includes("noopener")) {
      return { wrong: "a link that lets its page reach this one", deepest };
    }
    for (const child of node.childNodes) open.push([child, depth + 1]);
  }
  return { wrong: "", deepest };
}

const cases = JSON.parse(fs.readFileSync(table, "utf8"));
for (const [name, text, wanted] of cases) {
  const nodes = render(text);
  check(name, html(nodes) === wanted, html(nodes));
  check(name, fault(nodes).wrong === "", fault(nodes).wrong);
  for (let size = 0; size < text.length; size++) { // as the text comes
    const { wrong } = fault(render(text.slice(0, size)));
    check(`${name}, its first ${size}`, wrong === "", wrong);
  }
}

/* Pieces of the table's texts in any order; the generator is that of Numerical Recipes. */
let state = 7;
const random = n => {
  state = (state * 1664525 + 1013904223) >>> 0;
  return Math.floor(state / 2 ** 32 * n);
};
const pieces = cases.flatMap(([, text]) => text.match(/\w+|[^]/gu) || []);
for (let round = 0; round < 2000; round++) {
  const text = Array.from({ length: 1 + random(40) }, () => pieces[random(pieces.length)]).join("");
  const { wrong } = fault(render(text));
  check(JSON.stringify(text), wrong === "", wrong);
}

/* However long and however deep, the page stays flat enough for a browser. */
for (const piece of ["> ", "- ", "*a ", "**a *b ", "[", "`", "$\\frac{", "\\sqrt", "{", "_a_ ",
  "> - ", "~~a~~ ", "`a``b```c", "  ", "|a|b|\n|-|-|\n", "\\[\n", "# a #", "<", "1. a\n   "]) {
  for (const text of [piece.repeat(4000), "$" + piece.repeat(400) + "$"]) {
    const { wrong, deepest } = fault(render(text));
    check(piece, wrong === "" && deepest < 120, `${wrong} ${deepest} deep`);
  }
}
console.log(failed ? "failed" : `${cases.length} texts are as they should be`);
process.exitCode = failed ? 1 : 0;
