// The list: which episodes are shown, in which order, and the rows that are in sight.

const ROW_HEIGHT = 58;

const OUTCOMES = {
  "": "any outcome",
  solved: "solved",
  first: "right at once",
  later: "right after feedback",
  never: "never right",
  lost: "right, then wrong",
  none: "some turn without answer",
  undecided: "some turn undecided",
  cut: "some turn cut off",
};

/** Whether a row has an outcome of the table above, or "turn 3": right for the first time at turn 3. */
function hasOutcome(row, outcome) {
  if (outcome.startsWith("turn ")) return row.firstRight + 1 === Number(outcome.slice(5));
  switch (outcome) {
    case "solved": return row.firstRight >= 0 || row.solved === true;
    case "first": return row.firstRight === 0;
    case "later": return row.firstRight > 0;
    case "never": return row.firstRight < 0 && row.solved !== true;
    case "lost": return row.firstRight >= 0 && !row.statuses.endsWith("r");
    case "none": return row.statuses.includes("n");
    case "undecided": return row.statuses.includes("u");
    case "cut": return row.cut;
    default: return true;
  }
}

const SORTS = {
  index: ["number", (row) => row.index],
  reward: ["reward", (row) => row.reward ?? -Infinity],
  turns: ["turns", (row) => row.turns],
  own: ["policy's tokens", (row) => row.own],
  tokens: ["all tokens", (row) => row.tokens],
  logprob: ["mean log-prob", (row) => row.logprob ?? -Infinity],
  first: ["first right turn", (row) => (row.firstRight < 0 ? Infinity : row.firstRight)],
  version: ["version", (row) => row.version ?? -Infinity],
  problem: ["problem", (row) => row.problem],
};

/** The filters besides the search: [name, label, values of the rows, text of a value]. */
const CHOICES = [
  ["family", "family", (row) => row.family, String],
  ["level", "level", (row) => row.level, (level) => `level ${level}`],
  ["turns", "turns", (row) => row.turns, (turns) => `${turns} turn${turns === 1 ? "" : "s"}`],
  ["stop", "end", (row) => row.stop, (stop) => STOPS[stop] ?? stop],
  ["version", "version", (row) => row.version, (version) => `version ${version}`],
];

const MOST_CHOICES = 200;

function noFilters() {
  return { query: "", outcome: "", family: "", level: "", turns: "", stop: "", version: "", low: "", high: "", sort: "index", down: false };
}

/** The rows that pass everything but the search for text. */
function passing(rows, filters) {
  const [low, high] = [filters.low === "" ? -Infinity : Number(filters.low), filters.high === "" ? Infinity : Number(filters.high)];
  return rows.filter((row) =>
    hasOutcome(row, filters.outcome) &&
    CHOICES.every(([name, , value]) => filters[name] === "" || String(value(row)) === filters[name]) &&
    (row.reward === null ? filters.low === "" && filters.high === "" : row.reward >= low && row.reward <= high));
}

/** Those rows whose dialogue, gold answer or problem's name has the text. */
async function searched(rows, query) {
  const words = query.toLowerCase();
  const blocks = new Map();
  for (const row of rows) push(blocks, row.block, row);
  const found = [];
  for (const [block, members] of blocks) {
    const texts = await block.haystacks();
    found.push(...members.filter((row) => texts[row.within].includes(words) || row.problem.toLowerCase().includes(words)));
  }
  return found;
}

function sorted(rows, { sort, down }) {
  const key = (SORTS[sort] ?? SORTS.index)[1];
  const order = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    return (x < y ? -1 : x > y ? 1 : 0) * order || a.at - b.at;
  });
}

/** The part of the list that is in sight: a fixed height per row, and elements for these rows alone. */
class RowList {
  constructor(frame, inner, onOpen) {
    Object.assign(this, { frame, inner, onOpen, rows: [], current: null, drawn: new Map() });
    frame.addEventListener("scroll", () => this.draw(), { passive: true });
    frame.addEventListener("click", (event) => {
      const element = event.target.closest?.(".row");
      if (element) onOpen(this.rows[Number(element.dataset.at)]);
    });
    new ResizeObserver(() => this.draw()).observe(frame);
  }

  show(rows, current) {
    this.rows = rows;
    this.current = current;
    this.inner.style.height = `${rows.length * ROW_HEIGHT}px`;
    this.inner.replaceChildren();
    this.drawn.clear();
    this.draw();
  }

  select(row) {
    this.current = row;
    const at = this.rows.indexOf(row);
    if (at >= 0) {
      const top = at * ROW_HEIGHT;
      if (top < this.frame.scrollTop) this.frame.scrollTop = top;
      else if (top + ROW_HEIGHT > this.frame.scrollTop + this.frame.clientHeight) this.frame.scrollTop = top + ROW_HEIGHT - this.frame.clientHeight;
    }
    this.draw();
    for (const [number, element] of this.drawn) this.mark(element, this.rows[number]);
  }

  draw() {
    const first = Math.max(0, Math.floor(this.frame.scrollTop / ROW_HEIGHT) - 6);
    const last = Math.min(this.rows.length, Math.ceil((this.frame.scrollTop + this.frame.clientHeight) / ROW_HEIGHT) + 6);
    for (const [at, element] of this.drawn) {
      if (at >= first && at < last) continue;
      element.remove();
      this.drawn.delete(at);
    }
    for (let at = first; at < last; at++) {
      if (this.drawn.has(at)) continue;
      const element = this.element(at);
      this.drawn.set(at, element);
      this.inner.append(element);
    }
  }

  mark(element, row) {
    const selected = row === this.current;
    element.setAttribute("aria-selected", String(selected));
    if (selected) this.frame.setAttribute("aria-activedescendant", element.id);
  }

  element(at) {
    const row = this.rows[at];
    const name = make("b");
    appendText(name, row.problem);
    const snippet = make("span", { class: "snippet" });
    appendText(snippet, row.snippet);
    const marks = make("span", { class: "marks" }, ...[...row.statuses.slice(0, 12)].map(statusMark));
    const head = make("span", { class: "head" }, marks, name, make("span", { class: "grow" }), make("span", { class: "reward" }, row.reward === null ? "" : signed(row.reward)));
    const element = make("div", { class: "row", role: "option", id: `row-${at}`, data: { at } }, head, make("span", { class: "below" }, snippet, make("span", {}, `#${row.index}`)));
    element.setAttribute("aria-setsize", this.rows.length);
    element.setAttribute("aria-posinset", at + 1);
    element.style.top = `${at * ROW_HEIGHT}px`;
    this.mark(element, row);
    return element;
  }
}

/** How many of the rows had which outcome, in order: [[outcome, count]]. */
function countOutcomes(rows) {
  const counts = new Map();
  for (const row of rows) {
    const outcome = row.firstRight >= 0 ? `turn ${row.firstRight + 1}` : row.solved === true ? "solved" : "never";
    counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
  }
  const place = ([outcome]) => (outcome === "never" ? Infinity : outcome === "solved" ? 1e9 : Number(outcome.slice(5)));
  return [...counts].sort((a, b) => place(a) - place(b));
}
