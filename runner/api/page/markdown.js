"use strict";
// Markdown as DOM nodes, drawn while it arrives. All of it becomes text nodes: no text is ever read as HTML.
//
// A block that is complete is drawn once; what follows it (the tail) is drawn again when more text arrives.
// Bounds: one call of draw() reads at most SLICE characters in LINES lines, and a block of more is cut. Deeper lists,
// quotes and emphasis than DEPTH stay text. So the work is proportional to the text, whatever the text is.
const SLICE = 1 << 14;
const LINES = 500;
const DEPTH = 6;
const CHUNK = 1 << 12;    // Long text is laid out in chunks of whole lines. This is about the size of one, in characters.
const LONG_CHUNK = 1 << 15;
const COLOURED = 1 << 14;    // Most characters of a block of code that is highlighted.
const FORMULA_LINES = 50;    // The longest formula that is displayed.

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=\S)(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const CELL_RULE = /^:?-+:?$/;
const FORMULA = /^ {0,3}(?:\$\$|\\\[)/;
// A dollar may be a price: what is between two is a formula only if it looks like one.
const IN_DOLLARS = /[\\^_{}=<>+*]|^\p{L}$/u;
// Formulas, an escape, backticks, marks of emphasis, a link or an image, an address, a line break.
const INLINE = new RegExp([
  /\\\(([^]{1,500}?)\\\)/, /\\\[([^]{1,500}?)\\\]/, /\$\$([^$]{1,500})\$\$/, /\$(?![\s$])([^$\n]{1,300})(?<!\s)\$(?![\p{L}\d])/,
  /\\([!-/:-@[-`{-~])/, /(`+)/, /(\*+|_+|~~)/,
  /!?\[([^[\]\n]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:[ \t]+"[^"\n]*")?\)/,
  /<(https?:\/\/[^\s<>]*)>/, /(https?:\/\/[^\s<>`|\]]*)/, /<br[ \t]*\/?>/,
].map(each => each.source).join("|"), "giu");

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Text as it is, which grows at its end.
class PlainText {
  constructor(parent) { this.parent = parent; this.node = null; }
  push(text) {
    while (text) {
      const isFull = this.node && (this.node.length >= LONG_CHUNK
        || this.node.length > CHUNK && this.node.data.endsWith("\n"));
      if (!this.node || isFull) {
        this.node = document.createTextNode("");
        this.parent.append(element("span", { className: "chunk" }, this.node));
      }
      const newline = text.indexOf("\n", Math.max(CHUNK - this.node.length, 0));
      const end = Math.min(newline < 0 ? text.length : newline + 1, LONG_CHUNK - this.node.length);
      this.node.appendData(text.slice(0, end));
      text = text.slice(end);
    }
  }
}

class CodeBlock {
  constructor(language, fence, indent) {
    Object.assign(this, { language, fence, indent, source: "" });
    this.code = element("code");
    const copy = element("button", { type: "button", className: "small", textContent: "Copy" });
    copy.addEventListener("click", () => copyText(this.code.textContent, "the code"));
    this.text = new PlainText(this.code);
    this.node = element("div", { className: "code" },
      element("div", { className: "bar" }, element("span", { textContent: language }), copy),
      element("pre", { tabIndex: 0 }, this.code));
  }
  push(text) {
    this.source += text;
    this.text.push(text);
    return this;
  }
  // Colours what has come so far. Returns the block.
  colour() {
    const { hljs } = globalThis;
    if (this.source.length > COLOURED || !hljs?.getLanguage(this.language)) return this;
    // NOTE: the library's result is HTML, which the page never parses; its tree is what lowlight uses too.
    const { root } = hljs.highlight(this.source, { language: this.language, ignoreIllegals: true })._emitter;
    this.code.replaceChildren(...colouredNodes(root));
    this.text = new PlainText(this.code);
    return this;
  }
}

function colouredNodes({ children }) {
  return children.map(child => typeof child === "string" ? child
    : element("span", { className: `hljs-${(child.scope ?? "").split(".")[0]}` }, ...colouredNodes(child)));
}

// A formula in TeX as MathML. What can't be read stays as it was written.
function formula(source, written, isDisplayed) {
  const made = element("span", { className: isDisplayed ? "formula displayed" : "formula" });
  try {
    temml.render(source, made, { displayMode: isDisplayed, throwOnError: true, maxExpand: 200, maxSize: [20, 500] });
  } catch {
    return document.createTextNode(written);
  }
  return made;
}

// ---- Blocks

const isBlank = line => !line.trim();
const columns = space => space === "\t" ? 4 : 1;

function widthOf(line) {
  let width = 0;
  for (let at = 0; line[at] === " " || line[at] === "\t"; at++) width += columns(line[at]);
  return width;
}

// The line without the first `width` columns of its indentation.
function dedented(line, width) {
  let at = 0;
  for (; width > 0 && (line[at] === " " || line[at] === "\t"); at++) width -= columns(line[at]);
  return line.slice(at);
}

function fenceOf(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === "`" && line.includes("`", found[1].length + found[2].length)) ? found : null;
}

function closes(line, fence) {
  const end = line.trim();
  return end.length >= fence.length && end === fence[0].repeat(end.length);
}

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/);
  return cells.map(cell => cell.trim().replaceAll("\\|", "|"));
}

function isTable(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return false;
  const rule = cellsOf(lines[at + 1]);
  return rule.every(cell => CELL_RULE.test(cell)) && rule.length === cellsOf(lines[at]).length;
}

function interrupts(lines, at) {
  const line = lines[at];
  return isBlank(line) || fenceOf(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)
    || /^ {0,3}(?:[-*+]|1[.)]) /.test(line) || isTable(lines, at);
}

// The block that begins in this line: where it ends, and what draws it.
function blockAt(lines, at, depth, isOpen) {
  const line = lines[at];
  let found, end = at + 1;
  if ((found = fenceOf(line))) {
    const [, indent, fence, language] = found;
    while (end < lines.length && !closes(lines[end], fence)) end++;
    const content = lines.slice(at + 1, end).map(each => dedented(each, indent.length));
    const code = new CodeBlock(language, fence, indent.length);
    return { code, end: Math.min(end + 1, lines.length), draw: () => code.push(content.join("\n")).colour().node };
  }
  if ((found = HEADING.exec(line))) {
    return { end, draw: () => inline(element("h" + Math.min(found[1].length + 2, 6)), found[2], isOpen) };
  }
  if (RULE.test(line)) return { end, draw: () => element("hr") };
  if (depth < DEPTH && QUOTE.test(line)) {
    while (end < lines.length && QUOTE.test(lines[end])) end++;
    const content = lines.slice(at, end).map(each => each.replace(QUOTE, ""));
    return { end, draw: () => blocks(element("blockquote"), content, depth + 1, isOpen) };
  }
  if (depth < DEPTH && (found = ITEM.exec(line))) {
    end = endOfItem(lines, at, widthOf(line));
    return { end, draw: () => item(lines.slice(at, end), found, depth, isOpen) };
  }
  if (FORMULA.test(line)) {
    const closer = line.trimStart().startsWith("$$") ? "$$" : "\\]", most = Math.min(lines.length, at + FORMULA_LINES);
    const isClosed = (text, from) => text.trimEnd().endsWith(closer) && text.trim().length >= from;
    for (end = at; end < most; end++) {
      if (!isClosed(lines[end], end === at ? 5 : 2)) continue;
      const written = lines.slice(at, ++end).join("\n").trim();
      return { end, draw: () => element("p", {}, formula(written.slice(2, -2), written, true)) };
    }
    // Not complete yet, or none.
    if (end === lines.length) return { end, draw: () => inline(element("p"), lines.slice(at).join("\n"), isOpen) };
    end = at + 1;
  }
  if (isTable(lines, at)) {
    end++;
    while (end < lines.length && lines[end].includes("|")) end++;
    return { end, draw: () => table(lines.slice(at, end), isOpen) };
  }
  while (end < lines.length && !interrupts(lines, end)) end++;
  return { end, draw: () => inline(element("p"), lines.slice(at, end).join("\n"), isOpen) };
}

function endOfItem(lines, at, indent) {
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const isLazy = !isBlank(lines[end - 1]) && !ITEM.test(line) && !interrupts(lines, end);
    if (!isBlank(line) && widthOf(line) < indent + 2 && !isLazy) break;
  }
  return end;
}

function item(lines, [mark, , sign], depth, isOpen) {
  const rest = lines.slice(1).map(each => dedented(each, mark.length));
  const first = lines[0].slice(mark.length).replace(/^\[([ xX])\] /, (_, x) => (x === " " ? "☐ " : "☑ "));
  const content = blocks(element("li"), [first, ...rest], depth + 1, isOpen);
  return /\d/.test(sign) ? element("ol", { start: parseInt(sign, 10) }, content) : element("ul", {}, content);
}

function table(lines, isOpen) {
  const head = cellsOf(lines[0]), rules = cellsOf(lines[1]);
  const row = (tag, cells) => element("tr", {}, ...head.map((_, column) => {
    const cell = inline(element(tag), cells[column] ?? "", isOpen);
    if (rules[column].endsWith(":")) cell.className = rules[column].startsWith(":") ? "center" : "end";
    return cell;
  }));
  const body = lines.slice(2).map(line => row("td", cellsOf(line)));
  return element("div", { className: "table", tabIndex: 0 },
    element("table", {}, element("thead", {}, row("th", head)), element("tbody", {}, ...body)));
}

// Adds a block. An item goes on with the list before it. Returns the new nodes.
function place(parent, block) {
  const before = parent.lastElementChild;
  const added = /^[UO]L$/.test(block.tagName) && before?.tagName === block.tagName ? [...block.children] : [block];
  (added[0] === block ? parent : before).append(...added);
  return added;
}

function blocks(parent, lines, depth, isOpen) {
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) { at++; continue; }
    const block = blockAt(lines, at, depth, isOpen);
    place(parent, block.draw());
    at = block.end;
  }
  return parent;
}

// ---- Inside a block

function link(address) {
  let url;
  try { url = new URL(address); } catch { return null; }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: url.href });
}

// An address in a sentence ends before the sentence's own signs.
function trimmed(address) {
  let end = address.length;
  const signs = address.includes("(") ? ".,;:!?'\"*_~" : ".,;:!?'\"*_~)";
  while (end && signs.includes(address[end - 1])) end--;
  return address.slice(0, end);
}

function endOfCode(text, from, count, missing) {
  if (missing.has(count)) return -1;
  for (let at = from; (at = text.indexOf("`", at)) >= 0;) {
    let end = at;
    while (text[end] === "`") end++;
    if (end - at === count) return at;
    at = end;
  }
  missing.add(count);
  return -1;
}

// The text of a block, and its marks that open or close emphasis. A mark without its counterpart is text.
class Sentence {
  constructor(parent) {
    this.parent = parent;
    this.open = [];
    this.text = "";    // Not yet in a node: few nodes are fast.
  }
  write(text) { this.text += text; }
  add(node) {
    const top = this.open.at(-1)?.node ?? this.parent;
    top.append(...[this.text, node].filter(Boolean));
    this.text = "";
    return node;
  }
  mark(marks, before, after) {
    const sign = marks[0], isWord = sign === "_";
    const mayOpen = /\S/.test(after) && !(isWord && /[\p{L}\p{N}]/u.test(before));
    const mayClose = /\S/.test(before) && !(isWord && /[\p{L}\p{N}]/u.test(after));
    let left = marks.length;
    if (left > 3) { this.write(marks); return; }
    while (mayClose && left) {
      const sizes = this.open.map(each => each.marks[0] === sign ? each.marks.length : Infinity);
      const exact = sizes.lastIndexOf(left), at = exact < 0 ? sizes.findLastIndex(size => size <= left) : exact;
      if (at < 0) break;
      this.unwrap(at + 1);
      this.add(null);
      left -= this.open.pop().marks.length;
    }
    while (mayOpen && left && this.open.length < DEPTH) {
      const size = Math.min(left, 2);
      const node = this.add(element(sign === "~" ? "s" : size === 2 ? "strong" : "em"));
      this.open.push({ marks: sign.repeat(size), node });
      left -= size;
    }
    this.write(sign.repeat(left));
  }
  unwrap(count) {
    this.add(null);
    while (this.open.length > count) {
      const { marks, node } = this.open.pop();
      node.replaceWith(marks, ...node.childNodes);
    }
  }
}

function inline(parent, text, isOpen, isInLink = false) {
  const sentence = new Sentence(parent), missing = new Set();
  let at = 0, found;
  INLINE.lastIndex = 0;
  while ((found = INLINE.exec(text))) {
    let end = INLINE.lastIndex;
    const [all, round, square, dollars, dollar, escaped, ticks, marks, label, target, bracketed, bare] = found;
    sentence.write(text.slice(at, found.index));
    if (round ?? square ?? dollars) sentence.add(formula(round ?? square ?? dollars, all, round === undefined));
    else if (dollar) {
      if (IN_DOLLARS.test(dollar)) sentence.add(formula(dollar, all, false));
      else {
        sentence.write("$");
        end = found.index + 1;
      }
    } else if (escaped) sentence.write(escaped);
    else if (ticks) {
      let close = endOfCode(text, end, ticks.length, missing);
      if (close < 0 && isOpen && ticks.length < 3) close = text.length;
      const code = text.slice(end, close);
      if (close < 0) sentence.write(ticks);
      else {
        const isPadded = code[0] === " " && code.at(-1) === " " && !isBlank(code);
        sentence.add(element("code", { textContent: isPadded ? code.slice(1, -1) : code }));
        end = Math.min(close + ticks.length, text.length);
      }
    } else if (marks) sentence.mark(marks, text[found.index - 1] ?? "", text[end] ?? "");
    else if (label !== undefined) {
      const made = isInLink ? null : link(target);
      if (made) sentence.add(inline(made, label || target, false, true));
      else sentence.write(all);
    } else if (bracketed ?? bare) {
      const address = bracketed ?? trimmed(bare), made = isInLink ? null : link(address);
      if (bare) end = found.index + address.length;
      if (made) sentence.add(made).append(address);
      else sentence.write(address);
    } else sentence.add(element("br"));
    at = INLINE.lastIndex = end;
  }
  sentence.write(text.slice(at));
  sentence.unwrap(isOpen ? Infinity : 0);
  return parent;
}

// ---- Text that arrives

class Markdown {
  constructor(root) {
    this.root = root;
    this.rest = "";    // What is not drawn for good.
    this.tail = [];    // The nodes of the rest.
    this.code = null;  // The code block that is open.
  }
  push(text) { this.rest += text; }

  // Draws the next slice. Returns whether there is more to draw.
  draw(isLast) {
    for (const node of this.tail) node.remove();
    this.tail = [];
    let lines = this.rest.slice(0, SLICE).split("\n", LINES + 1);
    const isWhole = this.rest.length <= SLICE && lines.length <= LINES;
    let used = this.settle(lines, isLast && isWhole);
    if (!used && !isWhole) {  // A block that is too long.
      lines = lines.slice(0, Math.max(lines.length - 1, 1));
      used = this.settle(lines, true);
    }
    const left = lines.slice(used);
    const length = lines.slice(0, used).reduce((sum, line) => sum + line.length + 1, 0);
    this.rest = this.rest.slice(Math.min(length, SLICE));
    this.code?.colour();
    if (isWhole && !isLast) this.drawTail(left);
    return !isWhole;
  }

  // Draws the blocks that more text can't change. Returns how many lines these are.
  settle(lines, isEnd) {
    const last = lines.length - 1;  // This line, and what depends on it, may change.
    let at = 0;
    while (at < lines.length) {
      const line = lines[at];
      if (at === last && !isEnd) break;
      if (this.code) {
        if (closes(line, this.code.fence)) {
          this.code.colour();
          this.code = null;
        }
        else this.code.push(dedented(line, this.code.indent) + (at < last ? "\n" : ""));
        at++;
      } else if (isBlank(line)) at++;
      else {
        const block = blockAt(lines, at, 0, false);
        if (block.code) {
          this.code = block.code;
          this.root.append(block.code.node);
          at++;
        } else if (isEnd || block.end < last - 1) {
          place(this.root, block.draw());
          at = block.end;
        } else break;
      }
    }
    return at;
  }

  drawTail(lines) {
    if (this.code) {
      const text = document.createTextNode(/^\s*[`~]*$/.test(lines[0]) ? "" : lines[0]);
      this.code.code.append(text);
      this.tail.push(text);
      return;
    }
    for (let at = 0; at < lines.length;) {
      if (isBlank(lines[at])) { at++; continue; }
      const block = blockAt(lines, at, 0, true);
      this.tail.push(...place(this.root, block.draw()));
      at = block.end;
    }
  }
}
