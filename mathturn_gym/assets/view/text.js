// Texts that a stranger wrote, as nodes: shown as they are, never run. Nothing here makes HTML out of text.

/** An element with properties and children; texts become text nodes. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.startsWith("aria-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// What shows nothing, hides, or turns a line around: controls, zero-width and bidirectional marks, tags, lone surrogates.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
  "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb" +
  "\\u{d800}-\\u{dfff}\\u{e0000}-\\u{e0fff}]", "gu");

const CONTROLS = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");
const NAMES = {
  0x7f: "DEL", 0x00ad: "SHY", 0x061c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM",
  0x2028: "LSEP", 0x2029: "PSEP", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO",
  0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM",
};

/** What stands for a hidden character: its short name or number. */
function nameOf(character) {
  const code = character.codePointAt(0);
  return CONTROLS[code] ?? NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

// An emoji's variation selector and joiner are part of a picture that shows.
const PICTURE = /\p{Extended_Pictographic}[\u{1f3fb}-\u{1f3ff}\ufe0f\u200d\p{Extended_Pictographic}]*/gu;

const LONG_WORD = /\S{150}(?=\S)/gu;

/** Appends text that has no hidden characters. Where a word is very long it may break: browsers take seconds to find out. */
function appendPlain(parent, text) {
  let done = 0;
  for (const match of text.length > 150 ? text.matchAll(LONG_WORD) : []) {
    const end = match.index + match[0].length;
    parent.append(text.slice(done, end), document.createElement("wbr"));
    done = end;
  }
  parent.append(text.slice(done));
}

/** Appends text; every hidden character becomes a small label, a run of the same one a label with its count. */
function appendText(parent, text) {
  const shown = new Set();
  if (text.includes("\u200d") || text.includes("\ufe0f")) {
    for (const match of text.matchAll(PICTURE)) {
      for (let i = match.index; i < match.index + match[0].length; i++) shown.add(i);
    }
  }
  let done = 0;
  let last = null;
  for (const match of text.matchAll(HIDDEN)) {
    if (shown.has(match.index)) continue;
    const repeated = last !== null && done === match.index && last.character === match[0];
    if (match.index > done) appendPlain(parent, text.slice(done, match.index));
    done = match.index + match[0].length;
    if (repeated) {
      last.count += 1;
      last.element.textContent = `${nameOf(match[0])}×${last.count}`;
      continue;
    }
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const element = make("span", { class: "hidden-character", title: `U+${code}` }, nameOf(match[0]));
    parent.append(element);
    last = { element, character: match[0], count: 1 };
  }
  if (done < text.length) appendPlain(parent, text.slice(done));
}

/** The text with every hidden character as its name, for places that take no elements (titles, options). */
function plainText(text, limit = 200) {
  const cut = text.length > limit ? `${text.slice(0, limit)}…` : text;
  return cut.replace(HIDDEN, (character) => `⟨${nameOf(character)}⟩`);
}

// ---- mathematics

const LONGEST_FORMULA = 2000;
const MOST_FORMULAS = 400;
const ENVIRONMENTS = /^\\begin\{((?:align|aligned|equation|gather|gathered|cases|array|split|[pbBvV]?matrix)\*?)\}/;

/** Where the formula that begins at `at` ends: {from, to, inner, display}, or null where none does. */
function formulaAt(text, at) {
  const window = text.slice(at, at + LONGEST_FORMULA);
  const between = (open, close, display) => {
    const end = window.indexOf(close, open.length);
    if (end < 0) return null;
    const inner = window.slice(open.length, end);
    return inner.trim() ? { from: at, to: at + end + close.length, inner, display } : null;
  };
  if (window.startsWith("$$")) return between("$$", "$$", true);
  if (window[0] === "$") {
    // A price is no formula: `$5 and $6` opens before a digit and would close after a space.
    const found = between("$", "$", false);
    if (!found || /^\s|\s$|\n\s*\n/.test(found.inner) || /^\d/.test(text.slice(found.to, found.to + 1))) return null;
    return found;
  }
  if (window.startsWith("\\(")) return between("\\(", "\\)", false);
  if (window.startsWith("\\[")) return between("\\[", "\\]", true);
  if (/^\\(?:boxed|fbox|framebox)\s*\{/.test(window)) {
    const end = closingBrace(window);
    return end < 0 ? null : { from: at, to: at + end + 1, inner: window.slice(0, end + 1), display: false };
  }
  const environment = ENVIRONMENTS.exec(window);
  if (environment) {
    const close = `\\end{${environment[1]}}`;
    const end = window.indexOf(close);
    if (end < 0) return null;
    const to = end + close.length;
    return { from: at, to: at + to, inner: window.slice(0, to), display: true };
  }
  return null;
}

/** Where the first brace of a text closes, or -1. */
function closingBrace(text) {
  let depth = 0;
  for (let i = text.indexOf("{"); i < text.length; i++) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === "{") depth += 1;
    else if (text[i] === "}" && (depth -= 1) === 0) return i;
  }
  return -1;
}

/** The formulas of a text, from left to right. */
function formulasIn(text) {
  const found = [];
  let at = 0;
  while (found.length < MOST_FORMULAS) {
    const next = text.slice(at).search(/[$\\]/);
    if (next < 0) break;
    at += next;
    const formula = formulaAt(text, at);
    if (formula) {
      found.push(formula);
      at = formula.to;
    } else {
      at += text[at] === "\\" ? 2 : text.startsWith("$$", at) ? 2 : 1;
    }
  }
  return found;
}

// What moves, hides, colors or redefines: set, such a formula would not show what was written, so it is shown as written.
const TRICKS = new RegExp("\\\\(?:href|url|includegraphics|html|[mh]?kern|[mh]skip|hspace|vspace|raise|lower|move|[vh]?phantom|" +
  "[a-z]*[lrc]lap|smash|rule|(?:text|back)?color|[f]?colorbox|definecolor|[egx]?def|let|futurelet|(?:re)?newcommand|providecommand|" +
  "char)|(?:\\\\!\\s*){4}");

/** A formula set by KaTeX, or null where KaTeX does not take it, or should not. */
function setFormula(formula) {
  if (TRICKS.test(formula.inner)) return null;
  const holder = make("span", { class: "formula" });
  try {
    katex.render(formula.inner, holder, {
      displayMode: formula.display,
      throwOnError: true,
      trust: false,
      strict: "ignore",
      maxExpand: 200,
      maxSize: 8,
      macros: {},
    });
  } catch (error) {
    // Broken TeX is what models write: it is shown as they wrote it. (A deep nest of braces is a RangeError.)
    if (error instanceof katex.ParseError || error instanceof RangeError) return null;
    throw error;
  }
  // What sets to nothing (`{{}}`) would be hidden. KaTeX itself writes zero-width spaces.
  return holder.querySelector(".katex-html").textContent.replaceAll("\u200b", "").trim() ? holder : null;
}

// ---- a text with its formulas, found words and answer

const FIRST_PIECE = 20000;
const NEXT_PIECE = 200000;

/**
 * Appends a text.
 *
 * `math` sets its formulas; `find` is a lower-case text to mark; `span` is where the answer lies, [start, end]. A text
 * that goes on for long is shown in pieces.
 */
function appendProse(parent, text, { math = false, find = "", span = null } = {}) {
  appendPiece(parent, text.slice(0, FIRST_PIECE), { math, find, span });
  let done = FIRST_PIECE;
  if (text.length <= done) return;
  const more = make("button", { class: "more", type: "button" });
  const label = () => { more.textContent = `${(text.length - done).toLocaleString("en")} more characters: show`; };
  label();
  more.addEventListener("click", () => {
    const rest = make("span");
    appendPiece(rest, text.slice(done, done + NEXT_PIECE), { math: false, find, span: null });
    more.before(rest);
    done += NEXT_PIECE;
    if (done >= text.length) more.remove();
    else label();
  });
  parent.append(more);
}

function appendPiece(parent, text, { math, find, span }) {
  const marks = marksOf(text, find, span);
  let at = 0;
  for (const formula of math ? formulasIn(text) : []) {
    appendMarked(parent, text, at, formula.from, marks);
    const set = setFormula(formula);
    if (set) {
      const inside = marks.filter((mark) => mark.from < formula.to && mark.to > formula.from);
      set.title = plainText(text.slice(formula.from, formula.to));
      for (const mark of inside) set.classList.add(mark.kind);
      parent.append(set);
    } else {
      appendMarked(parent, text, formula.from, formula.to, marks);
    }
    at = formula.to;
  }
  appendMarked(parent, text, at, text.length, marks);
}

/** Ranges to mark, in order and apart: the answer, and what was searched for. */
function marksOf(text, find, span) {
  const marks = [];
  if (span && span[0] < span[1] && span[1] <= text.length) marks.push({ from: span[0], to: span[1], kind: "answer" });
  const lower = find ? text.toLowerCase() : "";
  // Lower case may be longer (İ): then positions would not fit, and nothing is marked.
  if (find && lower.length === text.length) {
    for (let at = lower.indexOf(find); at >= 0 && marks.length < 1000; at = lower.indexOf(find, at + find.length)) {
      marks.push({ from: at, to: at + find.length, kind: "found" });
    }
  }
  return marks.sort((a, b) => a.from - b.from);
}

function appendMarked(parent, text, from, to, marks) {
  let at = from;
  for (const mark of marks) {
    const [start, end] = [Math.max(mark.from, at), Math.min(mark.to, to)];
    if (start >= end) continue;
    appendText(parent, text.slice(at, start));
    const element = make("mark", { class: mark.kind });
    appendText(element, text.slice(start, end));
    parent.append(element);
    at = end;
  }
  if (at < to) appendText(parent, text.slice(at, to));
}
