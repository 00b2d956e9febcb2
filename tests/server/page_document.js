// SPDX-License-Identifier: MIT
/* As much of a document as the page's renderer uses, for tests without a browser: elements, texts,
   and how a browser writes them as HTML. */
"use strict";
const escape = text => text.replace(/&/g, "&amp;").replace(/\u00a0/g, "&nbsp;")
  .replace(/</g, "&lt;").replace(/>/g, "&gt;");
const REFLECTED = { className: "class", href: "href", rel: "rel", target: "target", type: "type",
  start: "start", tabIndex: "tabindex" };

class Node {
  constructor(name) {
    this.name = name;
    this.attributes = new Map();
    this.childNodes = [];
    for (const [property, attribute] of Object.entries(REFLECTED)) {
      Object.defineProperty(this, property, { set: value => this.setAttribute(attribute, value) });
    }
  }

  setAttribute(name, value) { this.attributes.set(name, String(value)); }

  append(...children) { this.childNodes.push(...children); }

  get textContent() {
    return this.childNodes.map(c => typeof c === "string" ? c : c.textContent).join("");
  }

  get html() {
    const attributes = [...this.attributes].map(([name, value]) =>
      ` ${name}="${value.replace(/&/g, "&amp;").replace(/"/g, "&quot;")}"`).join("");
    const inner = html(this.childNodes);
    return /^(br|hr)$/.test(this.name) ? `<${this.name}${attributes}>`
      : `<${this.name}${attributes}>${inner}</${this.name}>`;
  }
}

const html = nodes => nodes.map(n => typeof n === "string" ? escape(n) : n.html).join("");

module.exports = { html, document: { createElement: name => new Node(name),
  createElementNS: (_, name) => new Node(name) } };
