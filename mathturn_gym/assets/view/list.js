// The list: which episodes are shown, in which order, and the rows that are in sight.

const ROW_HEIGHT = 58;

const OUTCOMES = {
  "": "any outcome",
  solved: "solved",
  first: "right at once",
  later: "wrong → right",
  lost: "right → wrong",
  repeated: "repeated a wrong answer",
  gained: "solved in the other set alone",
  dropped: "solved in this set alone",
  marked: "marked",
  never: "never right",
  none: "some turn without answer",
  undecided: "some turn undecided",
  cut: "some turn cut off",
};

/** Outcomes that are one click away, in fewer words. Those of two sets are there where the page has several. */
const QUICK = [["later", "wrong → right"], ["lost", "right → wrong"], ["repeated", "repeated"], ["cut", "cut off"],
  ["gained", "solved by the other alone"], ["dropped", "solved by this alone"], ["marked", "★ marked"]];

/** The episodes that their reader marked. They are kept in the browser, under the page's title, and outlive the page. */
class Marks {
  constructor(title) {
    this.place = `mathturn view: ${title}`;
    this.names = new Set(this.stored((storage) => JSON.parse(storage.getItem(this.place) ?? "[]")) ?? []);
  }

  /** What a use of the browser's storage gives; null where the browser lends none (then marks last as long as the page). */
  stored(use) {
    try {
      return use(localStorage);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
      return null;
    }
  }

  name(row) {
    return JSON.stringify([row.set.name, row.index, row.problem]);
  }

  has(row) {
    return this.names.has(this.name(row));
  }

  toggle(row) {
    const name = this.name(row);
    if (!this.names.delete(name)) this.names.add(name);
    this.stored((storage) => storage.setItem(this.place, JSON.stringify([...this.names])));
  }

  /** Gives the marked episodes of these sets as a file: what a program can select by. */
  save(sets) {
    const rows = sets.flatMap((set) => set.rows).filter((row) => this.has(row));
    const told = rows.map((row) => ({ set: row.set.name, path: row.set.path, index: row.index, problem_id: row.problem, statuses: row.statuses }));
    const url = URL.createObjectURL(new Blob([JSON.stringify(told, null, 1)], { type: "application/json" }));
    make("a", { href: url, download: "marked.json" }).click();
    URL.revokeObjectURL(url);
  }
}

const solvedRow = (row) => row.firstRight >= 0 || row.solved === true;

/** The same problem's episode in another set: the one of the same number, or the first. */
function elsewhere(row) {
  for (const set of row.set.all ?? []) {
    const others = set === row.set ? undefined : set.byProblem.get(row.problem);
    if (others) return others.find((other) => other.index === row.index) ?? others[0];
  }
  return null;
}

/** Whether a row has an outcome of the table above, or "turn 3": right for the first time at turn 3. */
function hasOutcome(row, outcome) {
  if (outcome.startsWith("turn ")) return row.firstRight + 1 === Number(outcome.slice(5));
  switch (outcome) {
    case "solved": return solvedRow(row);
    case "first": return row.firstRight === 0;
    case "later": return row.firstRight > 0;
    case "never": return row.firstRight < 0 && row.solved !== true;
    case "lost": return row.firstRight >= 0 && !row.statuses.endsWith("r");
    case "none": return row.statuses.includes("n");
    case "undecided": return row.statuses.includes("u");
    case "cut": return row.cut;
    case "repeated": return row.repeated;
    case "marked": return row.set.marks.has(row);
    case "gained": case "dropped": {
      const other = elsewhere(row);
      return other !== null && solvedRow(row) !== solvedRow(other) && solvedRow(row) === (outcome === "dropped");
    }
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
    const question = make("b");
    appendText(question, row.snippet || row.problem);
    const name = make("span", { class: "snippet" });
    appendText(name, row.problem);
    const star = row.set.marks.has(row) ? "★ " : "";
    const marks = make("span", { class: "marks" }, ...[...row.statuses.slice(0, 12)].map(statusMark));
    const head = make("span", { class: "head" }, marks, question, make("span", { class: "grow" }), make("span", { class: "reward" }, row.reward === null ? "" : signed(row.reward)));
    const element = make("div", { class: "row", role: "option", id: `row-${at}`, data: { at } }, head, make("span", { class: "below" }, name, make("span", {}, `${star}#${row.index}`)));
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
