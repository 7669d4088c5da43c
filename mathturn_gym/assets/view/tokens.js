// The token view: a cell per token in the order that the policy saw them, parted by turns.

const CELLS_AT_ONCE = 3000;
const SURPRISING = -2.3; // p < 0.1

/** What a token says, as a cell shows it: spaces and line ends stand out, hidden characters are named. */
function fillCell(cell, text) {
  if (text === "") {
    cell.append(make("span", { class: "blank" }, "∅"));
    return;
  }
  for (const piece of text.split(/([ \n\t])/)) {
    if (piece === " ") cell.append(make("span", { class: "blank" }, "·"));
    else if (piece === "\n") cell.append(make("span", { class: "blank" }, "⏎"));
    else if (piece === "\t") cell.append(make("span", { class: "blank" }, "⇥"));
    else if (piece) appendText(cell, piece);
  }
}

/** The episode's parts in order: its messages, and what lies between them. */
function segmentsOf(dialogue, length) {
  const segments = [];
  let done = 0;
  let turn = 0;
  for (const message of dialogue.messages) {
    if (message.role === "assistant") turn += 1;
    if (message.end <= message.start && message.role !== "assistant") continue;
    if (message.end === 0) continue;
    if (message.start > done) segments.push({ kind: "between", start: done, end: message.start });
    const others = message.role === "system" ? "anew" : "feedback"; // a re-rendered context holds all of it again
    const kind = message.role === "assistant" ? "turn" : turn === 0 ? "prompt" : others;
    segments.push({ kind, turn, message, start: message.start, end: message.end });
    done = Math.max(done, message.end);
  }
  if (done < length) segments.push({ kind: segments.length ? "after" : "tokens", start: done, end: length });
  return segments;
}

/** Draws one episode's tokens into `parent`; `cells` says what a cell shows: "text", "ids" or "both". */
class TokenView {
  constructor(parent, { row, dialogue, tokens, channel, cells, other, onHover }) {
    Object.assign(this, { parent, row, dialogue, tokens, channel, cells, other, onHover });
    this.segments = segmentsOf(dialogue, tokens.length);
    this.elements = new Array(tokens.length);
    this.waiting = []; // stretches of tokens that have no cells yet
    this.cursor = null;
    this.split = other ? divergence(tokens, other) : null;
    this.draw();
  }

  draw() {
    const { parent, tokens } = this;
    parent.replaceChildren();
    if (!tokens.length) {
      parent.append(make("p", { class: "empty" }, "This log holds no tokens: it was kept as text only."));
      return;
    }
    this.strip = make("canvas", { class: "strip", title: "All tokens: click to go there" });
    this.strip.addEventListener("click", (event) => {
      const share = event.offsetX / this.strip.clientWidth;
      this.go(Math.min(tokens.length - 1, Math.floor(share * tokens.length)));
    });
    parent.append(this.strip);
    for (const segment of this.segments) this.drawSegment(segment);
    parent.addEventListener("pointerover", (event) => this.hover(event.target.closest?.(".token")));
    parent.addEventListener("pointerleave", () => this.onHover(null));
    parent.addEventListener("click", (event) => {
      const cell = event.target.closest?.(".token");
      if (cell) this.go(Number(cell.dataset.at));
    });
    this.drawStrip();
  }

  drawSegment(segment) {
    const section = make("section", { class: `segment ${segment.kind}` });
    section.append(this.heading(segment));
    const flow = make("div", { class: `flow ${this.cells}` });
    section.append(flow);
    this.parent.append(section);
    this.fill(flow, segment.start, segment.end);
  }

  /** The cells of [start, end), a few thousand at once: what follows comes when it is scrolled to. */
  fill(flow, start, end) {
    const stop = Math.min(end, start + CELLS_AT_ONCE);
    const fragment = document.createDocumentFragment();
    for (let at = start; at < stop; at++) {
      fragment.append(this.cell(at));
      if (this.cells !== "ids" && this.tokens.text(at)?.includes("\n")) fragment.append(make("br"));
    }
    flow.append(fragment);
    if (stop === end) return;
    const button = make("button", { class: "more", type: "button" }, `${(end - stop).toLocaleString("en")} more tokens`);
    const rest = {
      start: stop,
      end,
      fill: () => {
        watcher.disconnect();
        button.remove();
        this.waiting.splice(this.waiting.indexOf(rest), 1);
        this.fill(flow, stop, end);
      },
    };
    const watcher = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) rest.fill(); });
    this.waiting.push(rest);
    button.addEventListener("click", rest.fill);
    flow.append(button);
    watcher.observe(button);
  }

  cell(at) {
    const { tokens, cells } = this;
    const text = tokens.text(at);
    const id = tokens.id(at);
    const cell = make("span", { class: "token", data: { at } });
    if (tokens.mask[at]) cell.classList.add("own");
    if (at === this.split) cell.classList.add("split");
    const color = this.channel.color(at);
    if (color) cell.style.backgroundColor = color;
    if (cells === "ids" || text === null) cell.append(make("span", { class: "id" }, id === null ? "–" : String(id)));
    else fillCell(cell, text);
    if (cells === "both" && text !== null) cell.append(make("span", { class: "id" }, id === null ? "–" : String(id)));
    this.elements[at] = cell;
    return cell;
  }

  heading(segment) {
    const { tokens } = this;
    const count = segment.end - segment.start;
    const name = { prompt: "prompt", feedback: `feedback ${segment.turn}`, turn: `turn ${segment.turn}`, anew: "context re-rendered" }[segment.kind] ?? segment.kind;
    const heading = make("h3", {}, make("b", {}, name));
    const { message } = segment;
    const budget = message?.budget;
    heading.append(make("span", {}, budget === undefined ? `${count.toLocaleString("en")} tokens` : `${count.toLocaleString("en")} of ${budget.toLocaleString("en")} tokens`));
    if (budget !== undefined) heading.append(meter(count, budget, message.cut));
    if (message?.cut) heading.append(make("span", { class: "cut" }, "cut off"));
    if (segment.kind === "turn") {
      const mean = meanOf(tokens.values.get("logprob"), segment.start, segment.end);
      if (mean !== null) heading.append(make("span", { title: "mean log-prob of its tokens" }, `log-prob ${number(mean, 3)}`));
    }
    heading.append(this.copyButton(segment), make("span", { class: "grow" }));
    if (segment.kind === "turn") heading.append(...verdictParts(message));
    return heading;
  }

  /** Puts a segment's ids on the clipboard, as a list that Python reads. */
  copyButton(segment) {
    const button = make("button", { type: "button", class: "copy", title: "Copy the token ids of this part" }, "copy ids");
    button.addEventListener("click", () => {
      const ids = [];
      for (let at = segment.start; at < segment.end; at++) ids.push(this.tokens.id(at));
      const say = (words) => () => {
        button.textContent = words;
        setTimeout(() => { button.textContent = "copy ids"; }, 1500);
      };
      navigator.clipboard.writeText(JSON.stringify(ids)).then(say("copied"), say("the browser forbids it"));
    });
    return button;
  }

  recolor(channel) {
    this.channel = channel;
    for (let at = 0; at < this.elements.length; at++) {
      if (this.elements[at]) this.elements[at].style.backgroundColor = channel.color(at) ?? "";
    }
    this.drawStrip();
  }

  /** All tokens as a strip of colors, with a notch where a segment begins and a mark at the cursor. */
  drawStrip() {
    const { strip, tokens, channel } = this;
    if (!strip) return;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [strip.clientWidth || 600, strip.clientHeight || 22];
    strip.width = width * scale;
    strip.height = height * scale;
    const context = strip.getContext("2d");
    context.scale(scale, scale);
    const step = width / tokens.length;
    for (let at = 0; at < tokens.length; at++) {
      const color = channel.color(at);
      if (!color) continue;
      context.fillStyle = color;
      context.fillRect(at * step, 4, Math.max(step, 0.5), height - 8);
    }
    context.fillStyle = getComputedStyle(strip).color;
    for (const segment of this.segments) context.fillRect(segment.start * step, 0, 1, segment.kind === "turn" ? height : 4);
    if (this.cursor !== null) context.fillRect(this.cursor * step - 1, 0, 3, height);
  }

  hover(cell) {
    this.onHover(cell ? { at: Number(cell.dataset.at), element: cell, view: this } : null);
  }

  /** Moves the cursor to a token and shows what is known of it. */
  go(at) {
    while (!this.elements[at]) {
      this.waiting.find((one) => at >= one.start && at < one.end).fill();
    }
    if (this.cursor !== null) this.elements[this.cursor]?.classList.remove("cursor");
    this.cursor = at;
    const cell = this.elements[at];
    cell.classList.add("cursor");
    // On a phone the card lies over the lower half.
    cell.scrollIntoView({ block: matchMedia("(max-width: 760px)").matches ? "center" : "nearest" });
    this.hover(cell);
    this.drawStrip();
  }

  step(by) {
    if (!this.tokens.length) return;
    const start = this.cursor ?? (by > 0 ? -1 : this.tokens.length);
    this.go(Math.min(this.tokens.length - 1, Math.max(0, start + by)));
  }

  /** Goes to the next (or previous) token that the policy itself gave less than one chance in ten. */
  nextSurprise(direction) {
    const logprobs = this.tokens.values.get("logprob");
    if (!logprobs) return;
    for (let at = (this.cursor ?? -1) + direction; at >= 0 && at < this.tokens.length; at += direction) {
      if (logprobs[at] < SURPRISING) {
        this.go(at);
        return;
      }
    }
  }

  /** What is known of a token, for the card beside it. */
  facts(at) {
    const { tokens } = this;
    const segment = this.segments.find((one) => at >= one.start && at < one.end);
    const place = segment ? `${at - segment.start + 1} of ${segment.end - segment.start}` : "";
    const where = { turn: `turn ${segment?.turn}`, prompt: "prompt", feedback: `feedback ${segment?.turn}`, anew: "context re-rendered" }[segment?.kind] ?? "outside";
    const facts = [["id", tokens.id(at) === null ? "not in the log" : String(tokens.id(at))], ["place", `${where}, ${place}`], ["position", String(at)]];
    facts.push(["loss mask", tokens.mask[at] ? "1, trained on" : "0"]);
    for (const channel of channelsOf(tokens, this.other)) {
      if (channel.key === "mask" || (channel.key === "version" && tokens.versions[at] < 0)) continue;
      if (channel.key === "version" || (channel.value(at) !== null && !Number.isNaN(channel.value(at)))) facts.push([channel.label, channel.words(at)]);
    }
    return facts;
  }
}

function meanOf(values, start, end) {
  if (!values) return null;
  let [sum, count] = [0, 0];
  for (let at = start; at < end; at++) {
    if (Number.isNaN(values[at])) continue;
    sum += values[at];
    count += 1;
  }
  return count ? sum / count : null;
}

/** How much of a budget was used. */
function meter(used, budget, cut) {
  const bar = make("i");
  bar.style.width = `${Math.min(100, (100 * used) / Math.max(budget, 1))}%`;
  return make("span", { class: cut ? "meter full" : "meter", title: `${used} of ${budget} tokens used` }, bar);
}
