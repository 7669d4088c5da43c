// The token view: a cell per token in the order that the policy saw them, parted by turns.

// ---- colors: a channel gives each token a color (a hue with an opacity, so that it works on light and dark
// alike), says its value in words, and draws its legend.

const OWN = [14, 116, 144]; // teal: what the policy said
const SURPRISE = [224, 112, 10]; // orange: unlikely
const SPREAD = [139, 92, 246]; // violet: uncertain
const GOOD = [37, 99, 235]; // blue and orange tell + from - to everybody, as green and red do not
const BAD = [224, 112, 10];
const VERSION_HUES = [[14, 116, 144], [202, 138, 4], [147, 51, 234], [22, 163, 74], [219, 39, 119], [71, 85, 105]];

const STRONGEST = 0.78;

function tint([red, green, blue], opacity) {
  return `rgba(${red}, ${green}, ${blue}, ${Math.min(STRONGEST, Math.max(0, opacity)).toFixed(3)})`;
}

/** A number as people read it: four significant digits, no trailing noise. */
function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
  return minus(text);
}

/** A number's text with a real minus sign. */
function minus(text) {
  return text.replaceAll("-", "−");
}

function signed(value) {
  return value === null || value === undefined ? "–" : `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`;
}

function percent(share) {
  const value = 100 * share;
  if (value >= 99.995 && value < 100) return "≈100%";
  if (value >= 99.5 && value < 100) return `${value.toFixed(2)}%`;
  if (value !== 0 && value < 0.1) return minus(`${value.toExponential(1)}%`);
  return `${Number(value.toFixed(value < 10 ? 1 : 0))}%`;
}

/** Opacity of a log-prob: none at certainty, half at p = 0.1, nearly full at p = 0.001. */
const surpriseOpacity = (logprob) => STRONGEST * (1 - Math.exp(logprob / 2.4));

const SEQUENTIAL = {
  logprob: {
    label: "log-prob",
    hue: SURPRISE,
    opacity: surpriseOpacity,
    words: (value) => `${number(value)} (p = ${percent(Math.exp(value))})`.replace("= ≈", "≈ "),
    ticks: [[0, "p = 1"], [Math.log(0.5), "0.5"], [Math.log(0.1), "0.1"], [Math.log(0.01), "0.01"], [Math.log(0.001), "0.001"]],
  },
  raw_logprob: { like: "logprob", label: "log-prob, untempered" },
  trainer_logprob: { like: "logprob", label: "log-prob, trainer's" },
  reference_logprob: { like: "logprob", label: "log-prob, reference's" },
  entropy: {
    label: "entropy",
    hue: SPREAD,
    opacity: (value) => STRONGEST * (1 - Math.exp(-value / 1.2)),
    words: (value) => `${number(value)} nats`,
    ticks: [[0, "0"], [0.5, "0.5"], [1, "1"], [2, "2"], [4, "4 nats"]],
  },
};

const DIVERGING = {
  advantage: "advantage",
  return: "return",
  mismatch: "log-prob, trainer − sampler",
  difference: "log-prob, this − other",
};

/** The channels that these tokens can be colored by, in order: [{key, label, color, words, legend}]. */
function channelsOf(tokens, other = null) {
  const channels = [maskChannel(tokens)];
  for (const name of ["logprob", "advantage", "entropy"]) if (tokens.values.has(name)) channels.push(valueChannel(tokens, name));
  if (tokens.versions?.some((version) => version >= 0)) channels.push(versionChannel(tokens));
  for (const name of tokens.values.keys()) {
    if (!["logprob", "advantage", "entropy"].includes(name)) channels.push(valueChannel(tokens, name));
  }
  const difference = other && differenceOf(tokens, other);
  if (difference) channels.push(diverging("difference", DIVERGING.difference, (at) => difference[at], difference));
  return channels;
}

function maskChannel(tokens) {
  return {
    key: "mask",
    label: "loss mask",
    color: (at) => (tokens.mask[at] ? tint(OWN, 0.34) : null),
    words: (at) => (tokens.mask[at] ? "trained on" : "not trained on"),
    legend: [[tint(OWN, 0.34), "trained on"], ["transparent", "prompt and feedback"]],
  };
}

function valueChannel(tokens, name) {
  const value = (at) => tokens.value(name, at);
  const known = SEQUENTIAL[name];
  if (!known) return diverging(name, DIVERGING[name] ?? name, value, tokens.values.get(name));
  const scale = { ...SEQUENTIAL[known.like], ...known };
  return {
    key: name,
    label: scale.label,
    value,
    color: (at) => (value(at) === null ? null : tint(scale.hue, scale.opacity(value(at)))),
    words: (at) => (value(at) === null ? "–" : scale.words(value(at))),
    legend: scale.ticks.map(([tick, label]) => [tint(scale.hue, scale.opacity(tick)), label]),
  };
}

/** Blue above zero, orange below, full at the largest of these tokens. */
function diverging(key, label, value, values) {
  let most = 0;
  for (const one of values) if (Number.isFinite(one)) most = Math.max(most, Math.abs(one));
  const color = (number) => tint(number < 0 ? BAD : GOOD, most ? 0.06 + 0.49 * (Math.abs(number) / most) : 0);
  return {
    key,
    label,
    value,
    color: (at) => (value(at) === null || Number.isNaN(value(at)) ? null : color(value(at))),
    words: (at) => (value(at) === null || Number.isNaN(value(at)) ? "–" : signed(value(at))),
    legend: most ? [[color(-most), signed(-most)], ["transparent", "0"], [color(most), signed(most)]] : [["transparent", "0 everywhere"]],
  };
}

function versionChannel(tokens) {
  const versions = [...new Set(tokens.versions)].filter((version) => version >= 0).sort((a, b) => a - b);
  const hue = (version) => VERSION_HUES[versions.indexOf(version) % VERSION_HUES.length];
  return {
    key: "version",
    label: "version",
    color: (at) => (tokens.versions[at] < 0 ? null : tint(hue(tokens.versions[at]), 0.34)),
    words: (at) => (tokens.versions[at] < 0 ? "–" : String(tokens.versions[at])),
    legend: versions.slice(0, 6).map((version) => [tint(hue(version), 0.34), String(version)]),
  };
}

/** Where two episodes begin to differ: the first position whose ids differ, null where one continues the other. */
function divergence(tokens, other) {
  const shared = Math.min(tokens.length, other.length);
  for (let at = 0; at < shared; at++) {
    if (tokens.id(at) !== other.id(at) || tokens.text(at) !== other.text(at)) return at;
  }
  return tokens.length === other.length ? null : shared;
}

/** Log-prob here minus there, on the tokens that both say at the same place; null where there are none. */
function differenceOf(tokens, other) {
  const [here, there] = [tokens.values.get("logprob"), other.values.get("logprob")];
  if (!here || !there) return null;
  const end = divergence(tokens, other) ?? Math.min(tokens.length, other.length);
  const values = new Float32Array(tokens.length).fill(NaN);
  let some = false;
  for (let at = 0; at < end; at++) {
    values[at] = here[at] - there[at];
    some ||= Number.isFinite(values[at]);
  }
  return some ? values : null;
}

// ---- cells

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
