// How tokens are colored: a channel gives each token a color (a hue with an opacity, so that it works on light and dark
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
