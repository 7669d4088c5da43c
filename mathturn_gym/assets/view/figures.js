// Figures of the episodes, and the curves of the run: small charts with one crosshair.

const SERIES = ["var(--series-1)", "var(--series-2)", "var(--series-3)", "var(--series-4)", "var(--series-5)", "var(--series-6)"];
const CHART = { width: 340, height: 190, left: 54, right: 10, top: 10, bottom: 38 };
const AXES = ["iteration", "step", "episodes", "tokens", "cpu_s", "epoch"];

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Round numbers that cover [low, high]: about `count` of them, only integers where `whole`. */
function ticksOf(low, high, { whole = false, count = 4 } = {}) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough && (!whole || Number.isInteger(one))) ?? 1;
  const ticks = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) ticks.push(at * step);
  return ticks;
}

function shortNumber(value) {
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return minus(`${Number((value / (unit === "k" ? 1e3 : limit)).toPrecision(3))}${unit}`);
  }
  return minus(size !== 0 && size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3))));
}

/** Exponentially weighted means, corrected for their start. */
function smoothed(points, weight) {
  if (!weight) return points;
  let [sum, total] = [0, 0];
  return points.map(([x, y]) => {
    sum = weight * sum + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, sum / total];
  });
}

/** A chart of lines: series are [{name, color, points: [[x, y], …]}]. */
class LineChart {
  constructor(title, series, { smoothing = 0, percentages = false, onMove = null, words = shortNumber, across = "" } = {}) {
    Object.assign(this, { series: series.map((one) => ({ ...one, points: smoothed(one.points, smoothing) })), onMove, words, title, across });
    const all = this.series.flatMap((one) => one.points);
    const raw = series.flatMap((one) => one.points);
    const [xs, ys] = [all.map(([x]) => x), raw.map(([, y]) => y)];
    this.x = { low: least(xs), high: most(xs) };
    this.y = percentages ? { low: 0, high: 1 } : { low: least(ys), high: most(ys) };
    if (this.y.low === this.y.high) {
      const room = Math.abs(this.y.low) * 0.1 || 1;
      this.y = { low: this.y.low - room, high: this.y.high + room };
    }
    this.told = make("figcaption", {}, make("b", {}, title), make("span", { class: "told" }));
    this.root = make("figure", { class: "chart" }, this.told, this.draw(series, smoothing));
  }

  place([x, y]) {
    const across = this.x.high > this.x.low ? (x - this.x.low) / (this.x.high - this.x.low) : 0.5;
    const up = (y - this.y.low) / (this.y.high - this.y.low);
    return [
      CHART.left + across * (CHART.width - CHART.left - CHART.right),
      CHART.height - CHART.bottom - up * (CHART.height - CHART.top - CHART.bottom),
    ];
  }

  draw(raw, smoothing) {
    const root = svg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img" });
    for (const tick of ticksOf(this.y.low, this.y.high)) {
      const [, y] = this.place([0, tick]);
      root.append(svg("line", { class: "grid", x1: CHART.left, x2: CHART.width - CHART.right, y1: y, y2: y }));
      root.append(svg("text", { x: CHART.left - 5, y: y + 3.5, "text-anchor": "end" }, this.words(tick)));
    }
    for (const tick of ticksOf(this.x.low, this.x.high, { whole: true })) {
      const [x] = this.place([tick, 0]);
      root.append(svg("text", { x, y: CHART.height - 22, "text-anchor": "middle" }, shortNumber(tick)));
    }
    const middle = (CHART.left + CHART.width - CHART.right) / 2;
    root.append(svg("text", { class: "axis", x: middle, y: CHART.height - 6, "text-anchor": "middle" }, this.across));
    const up = { class: "axis", transform: `translate(9 ${(CHART.top + CHART.height - CHART.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" };
    root.append(svg("text", up, this.title));
    for (const [at, one] of this.series.entries()) {
      if (smoothing) root.append(this.line(raw[at].points, one.color, "faint"));
      root.append(this.line(one.points, one.color, "line"));
      if (one.points.length <= 12) {
        for (const point of one.points) {
          const [cx, cy] = this.place(point);
          root.append(svg("circle", { cx, cy, r: 2.6, fill: one.color }));
        }
      }
    }
    this.cross = svg("line", { class: "cross", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
    root.append(this.cross);
    root.addEventListener("pointermove", (event) => {
      const box = root.getBoundingClientRect();
      const across = ((event.clientX - box.left) / box.width) * CHART.width;
      const share = (across - CHART.left) / (CHART.width - CHART.left - CHART.right);
      this.onMove?.(this.x.low + Math.min(1, Math.max(0, share)) * (this.x.high - this.x.low));
    });
    root.addEventListener("pointerleave", () => this.onMove?.(null));
    return root;
  }

  line(points, color, kind) {
    const path = points.map((point, at) => `${at ? "L" : "M"}${this.place(point).map((one) => one.toFixed(2)).join(" ")}`).join("");
    return svg("path", { d: path, class: kind, stroke: color });
  }

  /** Shows every series' value nearest to `x`; null shows none. */
  tell(x) {
    const told = this.told.querySelector(".told");
    told.replaceChildren();
    this.cross.setAttribute("visibility", x === null ? "hidden" : "visible");
    if (x === null) return;
    let shown = null;
    for (const one of this.series) {
      const near = nearest(one.points, x);
      if (!near) continue;
      shown ??= near;
      const dot = make("i", { class: "dot" });
      dot.style.backgroundColor = one.color;
      told.append(dot, `${this.words(near[1])} `);
    }
    if (!shown) return;
    const [at] = this.place(shown);
    this.cross.setAttribute("x1", at);
    this.cross.setAttribute("x2", at);
    told.append(`at ${shortNumber(shown[0])}`);
  }
}

function nearest(points, x) {
  let best = null;
  for (const point of points) if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  return best;
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** Bars of counts, one row of bars per series: `parts` are [{label, shares: [share per series]}]. */
function barChart(title, parts, series, { onPick = null, words, top = most(parts.flatMap((part) => part.values)) }) {
  const rows = parts.map((part) => {
    const bars = part.values.map((value, at) => {
      const bar = make("i");
      bar.style.width = `calc((100% - 7.5em) * ${top ? (value / top).toFixed(4) : 0})`;
      bar.style.backgroundColor = series[at].color;
      return make("span", { class: "bar" }, bar, make("span", {}, words(value, part, at)));
    });
    const label = make(onPick ? "button" : "span", { class: "label" });
    appendText(label, part.label);
    if (onPick) label.addEventListener("click", () => onPick(part));
    return make("div", { class: "bars" }, label, make("div", {}, ...bars));
  });
  return make("figure", { class: "chart" }, make("figcaption", {}, make("b", {}, title)), ...rows);
}

/** Equal bins over the values of all series: [{label, values: [share per series]}]. */
function histogram(columns, bins = 7) {
  const all = columns.flat();
  const [low, high] = [least(all), most(all)];
  const whole = all.every(Number.isInteger);
  const count = whole ? Math.min(bins, high - low + 1) : bins;
  const width = whole ? Math.ceil((high - low + 1) / count) : (high - low) / count || 1;
  const place = (value) => Math.min(count - 1, Math.floor((value - low) / width));
  return Array.from({ length: whole ? Math.ceil((high - low + 1) / width) : count }, (_, at) => {
    const from = low + at * width;
    const to = whole ? from + width - 1 : from + width;
    return {
      label: from === to ? shortNumber(from) : `${shortNumber(from)} – ${shortNumber(to)}`,
      values: columns.map((column) => column.filter((value) => place(value) === at).length / Math.max(1, column.length)),
    };
  });
}

/** Charts of what the episodes of each set came to. */
function episodeCharts(sets, onFamily) {
  const series = sets.map((set, at) => ({ name: set.name, color: SERIES[at % SERIES.length], rows: set.rows }));
  const some = series.filter((one) => one.rows.length);
  const charts = [];
  if (!some.length) return charts;
  const turns = most(some.flatMap((one) => one.rows.map((row) => row.turns)));
  const judged = some.filter((one) => one.rows.some((row) => /[^-]/.test(row.statuses)));
  if (judged.length && turns > 0) {
    const lines = judged.map((one) => ({
      ...one,
      points: Array.from({ length: turns }, (_, k) => [k + 1, one.rows.filter((row) => row.firstRight >= 0 && row.firstRight <= k).length / one.rows.length]),
    }));
    const chart = new LineChart("solved within k turns", lines, { percentages: true, across: "turns", words: (value) => percent(value), onMove: (x) => chart.tell(x) });
    charts.push(chart.root);
  }
  const families = [...new Set(some.flatMap((one) => one.rows.map((row) => row.family)))].filter((family) => family !== null);
  if (families.length > 1) {
    const within = (rows, family) => rows.filter((row) => row.family === family);
    const parts = families.sort().map((family) => ({
      label: family,
      family,
      values: some.map((one) => share(within(one.rows, family), (row) => hasOutcome(row, "solved"))),
      counts: some.map((one) => within(one.rows, family).length),
    }));
    const words = (value, part, at) => `${percent(value)} of ${part.counts[at].toLocaleString("en")}`;
    charts.push(barChart("solved by family", parts, some, { onPick: onFamily, words, top: 1 }));
  }
  const columns = [["reward of an episode", (row) => row.reward], ["policy's tokens in an episode", (row) => row.own], ["turns", (row) => row.turns]];
  for (const [title, value] of columns) {
    const values = some.map((one) => one.rows.map(value).filter((number) => number !== null));
    if (!values.flat().length || most(values.flat()) === least(values.flat())) continue;
    charts.push(barChart(title, histogram(values), some, { words: (part) => percent(part) }));
  }
  return charts;
}

function share(rows, test) {
  return rows.length ? rows.filter(test).length / rows.length : 0;
}

/** The names of a run's figures that can stand on the horizontal axis. */
function axesOf(curves) {
  const names = new Set(curves.flatMap((curve) => Object.keys(curve.columns)));
  return AXES.filter((name) => names.has(name));
}

/** Charts of the runs' curves over `axis`: groups of [name before the slash, charts]. */
function curveCharts(curves, axis, smoothing) {
  const names = [...new Set(curves.flatMap((curve) => Object.keys(curve.columns)))].filter((name) => !AXES.includes(name));
  const accuracy = (name) => (/(?:^|\/)acc@/.test(name) ? 0 : 1);
  names.sort((a, b) => accuracy(a) - accuracy(b)); // what a run is for comes first
  const groups = new Map();
  const charts = [];
  for (const name of names) {
    const series = curves.map((curve, at) => ({
      name: curve.name,
      color: SERIES[at % SERIES.length],
      points: (curve.columns[name] ?? []).map((y, row) => [curve.columns[axis]?.[row] ?? row, y]).filter(([, y]) => y !== null && y !== undefined),
    })).filter((one) => one.points.length);
    if (!series.length) continue;
    const [group, ...rest] = name.split("/");
    const chart = new LineChart(plainText(rest.length ? rest.join("/") : name), series, {
      smoothing,
      across: axis ?? "row",
      percentages: /^acc@/.test(rest.join("/")),
      onMove: (x) => charts.forEach((one) => one.tell(x)),
    });
    charts.push(chart);
    push(groups, rest.length ? group : "", chart.root);
  }
  return [...groups];
}
