// SPDX-License-Identifier: MIT
/* Formulas as models write them in LaTeX, made into MathML, which browsers lay out. A command that
   is not known here stands as its own text; a formula that cannot be read is shown as it came. */
const MATHML = "http://www.w3.org/1998/Math/MathML";
const pairs = text => text.trim().split(/\s+/).map(word => word.split("="));
const LETTERS = new Map(pairs(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ
  eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ
  sigma=σ tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ
  Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ hbar=ℏ ell=ℓ partial=∂ nabla=∇
  emptyset=∅ varnothing=∅ aleph=ℵ Re=ℜ Im=ℑ top=⊤ bot=⊥ angle=∠ triangle=△ degree=° square=□
  blacksquare=■ checkmark=✓ imath=ı jmath=ȷ`));
const SIGNS = new Map([...pairs(`times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙
  oplus=⊕ otimes=⊗ odot=⊙ cup=∪ cap=∩ setminus=∖ wedge=∧ land=∧ vee=∨ lor=∨ neg=¬ lnot=¬ le=≤
  leq=≤ leqslant=≤ ge=≥ geq=≥ geqslant=≥ ne=≠ neq=≠ equiv=≡ approx=≈ sim=∼ simeq=≃ cong=≅
  propto=∝ ll=≪ gg=≫ mid=∣ nmid=∤ parallel=∥ perp=⊥ in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆
  supset=⊃ supseteq=⊇ forall=∀ exists=∃ nexists=∄ to=→ rightarrow=→ leftarrow=← gets=←
  leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ implies=⟹ impliedby=⟸ iff=⟺ Leftrightarrow=⇔
  Longrightarrow=⟹ longrightarrow=⟶ mapsto=↦ uparrow=↑ downarrow=↓ hookrightarrow=↪
  rightharpoonup=⇀ ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ prime=′ therefore=∴
  because=∵ models=⊨ vdash=⊢ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lbrace={
  rbrace=} lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ colon=: prec=≺ succ=≻ preceq=⪯ succeq=⪰`),
  ["|", "‖"], ["{", "{"], ["}", "}"], ["%", "%"], ["#", "#"], ["&", "&"], ["$", "$"], ["_", "_"]]);
const BIG = new Map(pairs(`sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂
  bigvee=⋁ bigwedge=⋀ int=∫ iint=∬ iiint=∭ oint=∮`));
const WORDS = new Set(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp
  min max sup inf lim limsup liminf det dim ker deg gcd arg argmin argmax hom Pr bmod
  mod`.split(/\s+/));
const SPACES = { ",": ".17em", ":": ".22em", ";": ".28em", "!": "0em", " ": ".25em", "~": ".25em",
  quad: "1em", qquad: "2em", enspace: ".5em", thinspace: ".17em" };
const ACCENTS = { bar: "¯", overline: "¯", hat: "^", widehat: "^", vec: "→", overrightarrow: "→",
  tilde: "~", widetilde: "~", dot: "˙", ddot: "¨", overbrace: "⏞" };
const STYLES = { text: "", textrm: "", textit: "", textsf: "", texttt: "", mbox: "", mathrm: "",
  operatorname: "", textbf: "bold", mathbf: "bold", boldsymbol: "bold", bm: "bold" };
const DOUBLE = { N: "ℕ", Z: "ℤ", Q: "ℚ", R: "ℝ", C: "ℂ", P: "ℙ", E: "𝔼", F: "𝔽", H: "ℍ", 1: "𝟙" };
const IGNORED = new Set(`displaystyle textstyle scriptstyle limits nolimits big Big bigg Bigg
  bigl bigr Bigl Bigr biggl biggr Biggl Biggr nonumber notag middle mathcal mathit mathsf mathtt
  mathscr mathfrak phantom`.split(/\s+/));
const FENCES = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖",
  cases: "{" };

function mathNode(name, ...children) {
  const node = document.createElementNS(MATHML, name);
  node.append(...children);
  return node;
}

class Formula {
  constructor(text, isDisplay) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\[^]|\d+(?:[.,]\d+)*|\s+|[^]/gu) || [];
    this.at = 0;
    this.depth = 0;
    this.isDisplay = isDisplay;
  }

  peek() { return this.tokens[this.at]; }

  skipSpace() { while (/^\s/.test(this.peek() || "")) this.at++; }

  /* The text between braces, as it is; or the next token. */
  raw() {
    this.skipSpace();
    if (this.peek() !== "{") return this.tokens[this.at++] || "";
    let text = "", open = 0;
    for (; this.at < this.tokens.length; this.at++) {
      const token = this.tokens[this.at];
      open += (token === "{") - (token === "}");
      if (open === 0) { this.at++; return text; }
      if (text || token !== "{" || open > 1) text += token;
    }
    throw new Error("a brace that is not closed");
  }

  /* The argument of a command: of a number that stands bare, the first digit. */
  argument() {
    this.skipSpace();
    const token = this.peek() || "";
    if (/^\d./.test(token)) {
      this.tokens[this.at] = token.slice(1);
      return mathNode("mn", token[0]);
    }
    return this.atom() || mathNode("mrow");
  }

  /* What stands before one of the ends, which is left. */
  row(...ends) {
    const nodes = [];
    for (;;) {
      this.skipSpace();
      if (this.at >= this.tokens.length || ends.includes(this.peek())) break;
      const base = this.atom();
      if (base) nodes.push(this.scripts(base));
    }
    return mathNode("mrow", ...nodes);
  }

  scripts(base) {
    let low = null, high = null;
    for (;;) {
      this.skipSpace();
      const mark = this.peek();
      if (mark === "'") {
        this.at++;
        high = mathNode("mo", (high ? high.textContent : "") + "′");
        continue;
      }
      if (mark === "\\limits" || mark === "\\nolimits") { this.at++; continue; }
      if ((mark !== "_" || low) && (mark !== "^" || high)) break;
      this.at++;
      if (mark === "_") low = this.argument(); else high = this.argument();
    }
    const kind = base.stacks && this.isDisplay ? ["munder", "mover", "munderover"]
      : ["msub", "msup", "msubsup"];
    return low && high ? mathNode(kind[2], base, low, high) : low ? mathNode(kind[0], base, low)
      : high ? mathNode(kind[1], base, high) : base;
  }

  /* What stands after \left or \right. */
  fence() {
    this.skipSpace();
    const token = this.tokens[this.at++];
    if (token === undefined) throw new Error("a fence is missing");
    return token === "." ? [] : [mathNode("mo", SIGNS.get(token.replace(/^\\/, "")) || token)];
  }

  /* One thing without its scripts; null where it shows nothing. */
  atom() {
    if (++this.depth > 40) throw new Error("nested too deep");
    const node = this.thing();
    this.depth--;
    return node;
  }

  thing() {
    const token = this.tokens[this.at++];
    if (token === undefined) throw new Error("an argument is missing");
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    if (token === "{") {
      const row = this.row("}");
      if (this.tokens[this.at++] !== "}") throw new Error("a brace that is not closed");
      return row;
    }
    if (token === "}") throw new Error("a brace that was not opened");
    if (token === "^" || token === "_") { this.at--; return mathNode("mrow"); }
    if (token === "~") return this.space("~");
    if (/^\d/.test(token)) return mathNode("mn", token);
    return mathNode(/\p{L}/u.test(token) ? "mi" : "mo", token === "-" ? "−" : token);
  }

  space(name) {
    const node = mathNode("mspace");
    node.setAttribute("width", SPACES[name]);
    return node;
  }

  word(text, style) {
    const node = mathNode("mtext", text.replace(/ /g, "\u00a0"));
    if (style === "bold") node.setAttribute("class", "bold");
    return node;
  }

  command(name) {
    if (LETTERS.has(name)) return mathNode("mi", LETTERS.get(name));
    if (SIGNS.has(name)) return mathNode("mo", SIGNS.get(name));
    if (BIG.has(name) || WORDS.has(name)) {
      const node = mathNode("mo", BIG.get(name) || name);
      node.stacks = !/int$|^(?:a?(?:rc)?(?:sin|cos|tan)h?|log|ln|exp)$/.test(name);
      return node;
    }
    if (Object.hasOwn(SPACES, name)) return this.space(name);
    if (/^\s/.test(name)) return this.space(" ");
    if (Object.hasOwn(STYLES, name.replace(/\*$/, ""))) {
      return this.word(this.raw().replace(/\\([ ,;:!_%&#$])/g, " "), STYLES[name]);
    }
    if (Object.hasOwn(ACCENTS, name)) {
      const node = mathNode("mover", this.argument(), mathNode("mo", ACCENTS[name]));
      node.setAttribute("accent", "true");
      node.stacks = name === "overbrace";
      return node;
    }
    return this.structure(name);
  }

  structure(name) {
    if (/^[dtc]?frac$/.test(name)) return mathNode("mfrac", this.argument(), this.argument());
    if (/^[dt]?binom$/.test(name)) {
      const fraction = mathNode("mfrac", this.argument(), this.argument());
      fraction.setAttribute("linethickness", "0");
      return mathNode("mrow", mathNode("mo", "("), fraction, mathNode("mo", ")"));
    }
    if (name === "sqrt") {
      this.skipSpace();
      if (this.peek() !== "[") return mathNode("msqrt", this.argument());
      this.at++;
      const degree = this.row("]");
      this.at++;
      return mathNode("mroot", this.argument(), degree);
    }
    if (name === "mathbb") return mathNode("mi", [...this.raw()].map(c => DOUBLE[c] || c).join(""));
    if (name === "underline" || name === "underbrace") {
      const mark = mathNode("mo", name === "underline" ? "_" : "⏟");
      const node = mathNode("munder", this.argument(), mark);
      node.stacks = true;
      return node;
    }
    if (name === "overset" || name === "stackrel" || name === "underset") {
      const small = this.argument();
      return mathNode(name === "underset" ? "munder" : "mover", this.argument(), small);
    }
    if (name === "boxed") {
      const node = mathNode("mrow", this.argument());
      node.setAttribute("class", "boxed");
      return node;
    }
    if (name === "pmod") return this.word(`(mod ${this.raw()})`);
    if (name === "tag") return this.word(` (${this.raw()})`);
    if (name === "color" || name === "label") { this.raw(); return null; }
    if (name === "left") {
      const open = this.fence(), inside = this.row("\\right");
      this.at++;
      return mathNode("mrow", ...open, inside, ...this.fence());
    }
    if (name === "begin") return this.environment(this.raw());
    if (name === "\\") return this.word(" ");
    if (IGNORED.has(name)) return null;
    return this.word("\\" + name);
  }

  environment(name) {
    const kind = name.replace(/\*$/, ""), rows = [[]];
    if (kind === "array" || kind === "alignat") this.raw();
    for (;;) {
      const cell = mathNode("mtd", this.row("&", "\\\\", "\\end", "\\hline"));
      const token = this.tokens[this.at++];
      if (token === "\\hline") continue;
      rows[rows.length - 1].push(cell);
      if (token === undefined) throw new Error("an environment that is not closed");
      if (token === "\\\\") rows.push([]);
      if (token === "\\end") break;
    }
    if (this.raw() !== name) throw new Error("another environment's end");
    if (rows.length > 1 && rows[rows.length - 1].every(c => c.textContent === "")) rows.pop();
    const table = mathNode("mtable", ...rows.map(cells => mathNode("mtr", ...cells)));
    if (kind === "cases") table.setAttribute("class", "left");
    if (/^(align|split)/.test(kind)) table.setAttribute("class", "align");
    const [open, close] = FENCES[kind] || "";
    return mathNode("mrow", ...(open ? [mathNode("mo", open)] : []), table,
      ...(close ? [mathNode("mo", close)] : []));
  }
}

function formula(text, isDisplay) {
  try {
    const reader = new Formula(text.slice(0, 20000), isDisplay);
    const row = reader.row();
    const node = mathNode("math", row);
    if (isDisplay) node.setAttribute("display", "block");
    return node;
  } catch {
    return make("code", "", text.trim());
  }
}
