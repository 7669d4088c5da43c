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

/** A formula: a tree of [tag, attributes, child, …] that `show/formulas.py` made and checked. Its texts become text nodes. */
function mathNode([tag, attributes, ...children]) {
  const element = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (typeof child === "string" ? child : mathNode(child))));
  return element;
}

// ---- a text with its formulas, found words and answer

const FIRST_PIECE = 20000;
const NEXT_PIECE = 200000;

/**
 * Appends a text.
 *
 * `formulas` are set: [start, end, tree]; `find` is a lower-case text to mark; `span` is where the answer lies, [start, end]. A text
 * that goes on for long is shown in pieces.
 */
function appendProse(parent, text, { formulas = [], find = "", span = null } = {}) {
  appendPiece(parent, text.slice(0, FIRST_PIECE), { formulas, find, span });
  let done = FIRST_PIECE;
  if (text.length <= done) return;
  const more = make("button", { class: "more", type: "button" });
  const label = () => { more.textContent = `${(text.length - done).toLocaleString("en")} more characters: show`; };
  label();
  more.addEventListener("click", () => {
    const rest = make("span");
    appendPiece(rest, text.slice(done, done + NEXT_PIECE), { formulas: [], find, span: null });
    more.before(rest);
    done += NEXT_PIECE;
    if (done >= text.length) more.remove();
    else label();
  });
  parent.append(more);
}

function appendPiece(parent, text, { formulas, find, span }) {
  const marks = marksOf(text, find, span);
  let at = 0;
  for (const [from, to, tree] of formulas) {
    if (to > text.length) break;
    appendMarked(parent, text, at, from, marks);
    const set = make("span", { class: "formula", title: plainText(text.slice(from, to)) }, mathNode(tree));
    for (const mark of marks) if (mark.from < to && mark.to > from) set.classList.add(mark.kind);
    parent.append(set);
    at = to;
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

// ---- an episode as a dialogue: what was asked, said, judged and answered.

/** Verdicts by their letter, and endings in words. The page's data has both lists (`base/render.py` is their only place). */
const STATUS = { "-": { word: "not judged", mark: "·", name: "unjudged" } };
const STOPS = {};

function statusMark(letter) {
  const status = STATUS[letter];
  return make("span", { class: `mark ${status.name}`, title: status.word }, status.mark);
}

/** A message's verdict and reward, for its heading. */
function verdictParts(message) {
  const parts = [];
  if (message.status) {
    const status = STATUS[message.status];
    parts.push(make("span", { class: `verdict ${status.name}` }, `${status.mark} ${status.word}`));
  }
  if (message.reward !== undefined) parts.push(make("span", { class: "reward", title: "reward" }, signed(message.reward)));
  return parts.length ? [make("span", { class: "judged" }, ...parts)] : [];
}

function drawDialogue(parent, dialogue, { math, find }) {
  parent.replaceChildren();
  let turn = 0;
  for (const message of dialogue.messages) {
    if (message.role === "assistant") turn += 1;
    const article = drawMessage(message, turn, { math, find });
    if (turn === 0 && message.role === "user" && dialogue.gold.length) article.append(drawGold(dialogue, { math, find }));
    parent.append(article);
    if (message === dialogue.messages[0] && dialogue.sent !== null && dialogue.sent !== message.text) article.append(drawSent(dialogue.sent, message, find));
  }
  const facts = Object.entries(dialogue.facts);
  if (facts.length) parent.append(drawFacts(facts));
}

function drawMessage(message, turn, { math, find }) {
  const said = make("div", { class: "said", dir: "auto" });
  if (message.text === null) said.append(make("span", { class: "soft" }, `${message.end - message.start} tokens; their text was not kept`));
  else if (message.text === "") said.append(make("span", { class: "soft" }, "nothing"));
  else appendProse(said, message.text, { formulas: math ? message.formulas : [], find, span: message.span });
  const name = { system: "system", tool: "tool", user: turn ? "feedback" : "problem", assistant: `turn ${turn}` }[message.role];
  const heading = make("h3", {}, make("b", {}, name));
  const count = message.end - message.start;
  if (message.role === "assistant" && count) {
    heading.append(make("span", {}, message.budget === undefined ? `${count.toLocaleString("en")} tokens` : `${count.toLocaleString("en")} of ${message.budget.toLocaleString("en")} tokens`));
    if (message.budget !== undefined) heading.append(meter(count, message.budget, message.cut));
  }
  if (message.cut) heading.append(make("span", { class: "cut" }, "cut off"));
  heading.append(make("span", { class: "grow" }), ...verdictParts(message));
  const kind = message.role === "assistant" ? STATUS[message.status ?? "-"].name : "";
  const article = make("article", { class: `message ${message.role} ${kind}` }, heading, said);
  const judged = [];
  if (message.answer !== undefined) judged.push(labelled("answer", message.answer, "code"));
  if (message.reason) judged.push(labelled("because", message.reason));
  if (message.rule) judged.push(labelled("read from", message.rule));
  if (message.tier) judged.push(labelled("by", message.tier));
  if (message.score !== undefined && message.score !== (message.status === "r" ? 1 : 0)) judged.push(labelled("score", number(message.score)));
  if (judged.length) article.append(make("footer", {}, ...judged));
  return article;
}

/** The prompt as the policy got it: with the system message and the chat template's marks. Folded where it is long. */
function drawSent(sent, message, find) {
  const text = make("div", { class: "said" });
  appendProse(text, sent, { find });
  const words = `as sent: ${(message.end - message.start).toLocaleString("en")} tokens, system prompt and template included`;
  return make("details", { class: "sent", open: sent.length <= 1000 }, make("summary", {}, words), text);
}

/** The accepted answers, below the problem. */
function drawGold({ gold, goldFormulas }, { math, find }) {
  const footer = make("footer", { class: "gold" }, make("span", { class: "soft" }, "gold answer"));
  gold.forEach((answer, at) => {
    if (at) footer.append(make("span", { class: "soft" }, "or"));
    const shown = make("span");
    if (math && goldFormulas[at]) shown.append(mathNode(goldFormulas[at]));
    else appendProse(shown, answer, { find });
    footer.append(shown);
  });
  return footer;
}

function labelled(label, text, tag = "span") {
  const value = make(tag);
  appendProse(value, text);
  return make("span", {}, make("span", { class: "soft" }, `${label} `), value);
}

/** Whatever else is known, as pairs; long values are folded. */
function drawFacts(facts) {
  const list = make("dl");
  for (const [key, value] of facts) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const term = make("dt");
    appendText(term, key);
    const told = make("dd");
    appendProse(told, text);
    list.append(term, told);
  }
  const few = facts.length <= 4;
  return make("details", { class: "facts", open: few }, make("summary", {}, "also known"), list);
}
