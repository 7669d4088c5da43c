// The page: its state, what is shown of it, keys, and the address that brings one back to the same place.

const at = (id) => document.getElementById(id);
const CELLS = { text: "text", ids: "ids", both: "text and ids" };
const KEYS = [
  ["j  k", "next, previous episode of the list"],
  ["]  [", "next, previous episode on the same problem"],
  ["/", "search"],
  ["f", "filters"],
  ["t", "dialogue or tokens"],
  ["c  C", "color tokens by the next, previous channel"],
  ["i", "cells show text, ids or both"],
  ["→  ←", "next, previous token"],
  ["n  N", "next, previous token with p < 0.1"],
  ["s", "side by side"],
  ["m", "set the mathematics, or show it as written"],
  ["x", "mark the episode"],
  ["g", "episodes or figures"],
  ["d", "light or dark"],
  ["Esc", "back"],
];

const PLACE = { set: 0, row: null, tab: "dialogue", color: "logprob", cells: "text", math: true, page: "episodes", theme: "", beside: null };

class App {
  constructor(page) {
    Object.assign(this, page);
    this.filters = noFilters();
    this.marks = new Marks(page.about.title);
    for (const set of this.sets) Object.assign(set, { marks: this.marks, all: this.sets });
    Object.assign(this, PLACE);
    this.panes = [];
    this.list = new RowList(at("rows"), at("rows-inner"), (row) => this.open(row, { enter: true }));
    this.smoothing = 0;
  }

  // ---- state and address

  get rows() {
    return this.sets[this.set].rows;
  }

  /** What the address says, over the defaults; nonsense in it is left out. */
  readAddress() {
    const said = new URLSearchParams(location.hash.slice(1));
    const whole = (name) => (/^\d{1,9}$/.test(said.get(name) ?? "") ? Number(said.get(name)) : null);
    if (whole("set") !== null && this.sets[whole("set")]) this.set = whole("set");
    if (["dialogue", "tokens"].includes(said.get("tab"))) this.tab = said.get("tab");
    if (said.get("page") === "figures") this.page = "figures";
    if (["light", "dark"].includes(said.get("theme"))) this.theme = said.get("theme");
    if (CELLS[said.get("cells")]) this.cells = said.get("cells");
    if (said.get("math") === "0") this.math = false;
    if (said.has("color")) this.color = said.get("color");
    for (const name of Object.keys(this.filters)) if (said.has(name)) this.filters[name] = said.get(name);
    this.filters.down = said.get("down") === "1";
    if (!SORTS[this.filters.sort]) this.filters.sort = "index";
    this.row = this.rows[whole("row")] ?? null;
    const [set, row] = (said.get("beside") ?? "").split(".").map(Number);
    this.beside = this.sets[set]?.rows[row] ?? null;
  }

  writeAddress() {
    const said = new URLSearchParams();
    if (this.set) said.set("set", this.set);
    if (this.row) said.set("row", this.row.at);
    for (const name of ["tab", "color", "cells", "page", "theme"]) if (this[name] !== PLACE[name]) said.set(name, this[name]);
    if (!this.math) said.set("math", "0");
    if (this.beside) said.set("beside", `${this.beside.set.number}.${this.beside.at}`);
    const plain = noFilters();
    for (const [name, value] of Object.entries(this.filters)) if (value !== plain[name]) said.set(name, value === true ? "1" : value);
    const address = `#${said}`;
    if (address !== location.hash && !(address === "#" && !location.hash)) history.replaceState(null, "", address);
  }

  // ---- drawing

  async start() {
    this.readAddress();
    this.setTheme(this.theme);
    this.drawSets();
    this.drawFilters();
    this.bind();
    at("message").hidden = true;
    at("app").hidden = false;
    this.shown = [];
    this.showPage(this.page);
    await this.filter({ keep: true });
    document.title = plainText(`${this.about.title} · mathturn view`);
    const narrow = matchMedia("(max-width: 760px)").matches;
    if (this.row) this.open(this.row, { enter: narrow });
    else if (!narrow && this.shown.length) {
      // With several sets, the page opens on a comparison: before and after.
      const row = this.sets.length > 1 ? this.shown.find((one) => elsewhere(one)) : null;
      if (row) this.beside = elsewhere(row);
      this.open(row ?? this.shown[0]);
    }
    if (this.about.live) new Live(this).start();
  }

  drawSets() {
    const select = at("set");
    select.replaceChildren(...this.sets.map((set, number) => new Option(plainText(`${set.name} · ${set.rows.length.toLocaleString("en")}`, 80), number)));
    select.value = this.set;
    select.disabled = this.sets.length < 2;
    const set = this.sets[this.set];
    select.title = plainText(`${set.path} (${set.format})`, 400);
    at("left-out")?.remove();
    if (set.left_out.length) {
      const note = make("details", { id: "left-out" }, make("summary", {}, `${set.left_out.length.toLocaleString("en")} rows left out`));
      for (const reason of set.left_out.slice(0, 100)) {
        const line = make("p");
        appendProse(line, reason);
        note.append(line);
      }
      at("filters").append(note);
    }
  }

  drawFilters() {
    const holder = at("filter-rows");
    holder.replaceChildren();
    const outcomes = new Map(Object.entries(OUTCOMES));
    if (this.filters.outcome.startsWith("turn ")) outcomes.set(this.filters.outcome, `right at ${this.filters.outcome}`);
    holder.append(this.choice("outcome", "outcome", [...outcomes].filter(([value]) => !value || this.rows.some((row) => hasOutcome(row, value)))));
    for (const [name, label, value, words] of CHOICES) {
      const values = [...new Set(this.rows.map(value))].filter((one) => one !== null);
      if (values.length < 2 && this.filters[name] === "") continue;
      values.sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
      const options = values.slice(0, MOST_CHOICES).map((one) => [String(one), plainText(words(one), 60)]);
      holder.append(this.choice(name, label, [["", `any ${label}`], ...options]));
    }
    if (this.rows.some((row) => row.reward !== null)) {
      const field = (name, label) => {
        const input = make("input", { type: "number", step: "any", value: this.filters[name], placeholder: label, "aria-label": `reward ${label}` });
        input.addEventListener("input", () => this.setFilter(name, input.value));
        return input;
      };
      holder.append(make("span", { class: "range" }, "reward ", field("low", "from"), field("high", "to")));
    }
    const clear = make("button", { type: "button", id: "clear" }, "clear");
    clear.addEventListener("click", () => this.clearFilters());
    holder.append(clear);
    at("query").value = this.filters.query;
    at("sort").replaceChildren(...Object.entries(SORTS).map(([value, [label]]) => new Option(`by ${label}`, value)));
    at("sort").value = this.filters.sort;
    at("direction").textContent = this.filters.down ? "↓" : "↑";
    const active = Object.entries(noFilters()).some(([name, value]) => !["query", "sort", "down"].includes(name) && this.filters[name] !== value);
    at("more-filters").classList.toggle("active", active);
  }

  choice(name, label, options) {
    const select = make("select", { "aria-label": label });
    select.append(...options.map(([value, words]) => new Option(words, value)));
    select.value = this.filters[name];
    select.addEventListener("change", () => this.setFilter(name, select.value));
    return select;
  }

  setFilter(name, value) {
    this.filters[name] = value;
    const active = Object.entries(noFilters()).some(([key, plain]) => !["query", "sort", "down"].includes(key) && this.filters[key] !== plain);
    at("more-filters").classList.toggle("active", active);
    if (name === "sort" || name === "down" || name === "outcome") this.drawFilters();
    return this.filter();
  }

  clearFilters() {
    const { sort, down } = this.filters;
    this.filters = { ...noFilters(), sort, down };
    this.drawFilters();
    return this.filter();
  }

  /** Shows the rows that pass the filters. A search that a later one has overtaken is forgotten. */
  async filter({ keep = false } = {}) {
    const run = (this.filtering = (this.filtering ?? 0) + 1);
    let rows = passing(this.rows, this.filters);
    if (this.filters.query.trim()) {
      at("count").textContent = "searching …";
      rows = await searched(rows, this.filters.query.trim());
      if (run !== this.filtering) return;
    }
    this.shown = sorted(rows, this.filters);
    if (!keep) at("rows").scrollTop = 0;
    this.list.show(this.shown, this.row);
    this.drawCount();
    this.writeAddress();
    this.updateSteps();
    if (this.row && this.panes.length && this.found !== this.filters.query) this.redraw();
  }

  drawCount() {
    const [shown, all] = [this.shown.length, this.rows.length];
    at("count").textContent = shown === all ? `${all.toLocaleString("en")} episodes` : `${shown.toLocaleString("en")} of ${all.toLocaleString("en")}`;
    const bars = at("outcomes");
    bars.replaceChildren();
    for (const [outcome, count] of countOutcomes(this.shown)) {
      const words = outcome === "never" ? "never right" : outcome === "solved" ? "solved" : `right at ${outcome}`;
      const bar = make("button", { type: "button", class: outcome === "never" ? "never" : "right", title: `${words}: ${count.toLocaleString("en")} (${percent(count / shown)})`, "aria-label": `${words}: ${count}` });
      bar.append(make("span", {}, outcome === "never" ? "✗" : outcome === "solved" ? "✓" : outcome.slice(5)));
      bar.style.flexGrow = count;
      const turn = outcome.startsWith("turn ") ? Number(outcome.slice(5)) : 1;
      bar.style.setProperty("--turn", turn - 1);
      bar.addEventListener("click", () => this.setFilter("outcome", this.filters.outcome === outcome ? "" : outcome));
      bars.append(bar);
    }
    at("outcomes-legend").textContent = bars.children.length ? "bar: at which turn it was first right, ✗ never" : "";
    this.drawQuick();
  }

  /** The filters of one click, with how many episodes each would show. */
  drawQuick() {
    const chips = QUICK.map(([outcome, words]) => [outcome, words, this.rows.filter((row) => hasOutcome(row, outcome)).length]);
    at("quick").replaceChildren(...chips.filter(([outcome, , count]) => count || this.filters.outcome === outcome).map(([outcome, words, count]) => {
      const on = this.filters.outcome === outcome;
      const chip = make("button", { type: "button", "aria-pressed": String(on), title: OUTCOMES[outcome] }, `${words} ${count.toLocaleString("en")}`);
      chip.addEventListener("click", () => this.setFilter("outcome", on ? "" : outcome));
      return chip;
    }));
    if (!this.sets.some((set) => set.rows.some((row) => this.marks.has(row)))) return;
    const save = make("button", { type: "button", id: "save-marks", title: "The marked episodes as a JSON file" }, "export marks");
    save.addEventListener("click", () => this.marks.save(this.sets));
    at("quick").append(save);
  }

  toggleMark() {
    if (!this.row) return;
    this.marks.toggle(this.row);
    this.drawMark();
    this.list.show(this.shown, this.row);
    this.drawQuick();
  }

  drawMark() {
    const marked = this.marks.has(this.row);
    at("mark").textContent = marked ? "★" : "☆";
    at("mark").setAttribute("aria-pressed", String(marked));
  }

  // ---- an episode

  /** Shows an episode; `enter` also turns a narrow screen to it. */
  open(row, { enter = false } = {}) {
    this.row = row;
    this.list.select(row);
    if (enter) document.body.classList.add("reading");
    if (this.beside) this.beside = this.partner(row);
    this.writeAddress();
    this.updateSteps();
    return this.redraw();
  }

  /** The episode to lay beside: on the same problem, in another set if there is one, else the next one in this set. */
  partner(row) {
    const own = this.siblings(row);
    const away = this.beside && this.beside.set !== row.set ? [this.beside.set] : this.sets.filter((set) => set !== row.set);
    for (const set of away) {
      const others = set.byProblem.has(row.problem) ? this.siblings(set.byProblem.get(row.problem)[0]) : [];
      if (others.length) return others.find((other) => other.index === row.index) ?? others[Math.min(own.indexOf(row), others.length - 1)];
    }
    return own.length > 1 ? own[(own.indexOf(row) + 1) % own.length] : null;
  }

  /** All episodes on the row's problem in its set, in order of version and number. */
  siblings(row) {
    const place = (one) => [one.version ?? -1, one.index];
    return [...row.set.byProblem.get(row.problem)].sort((a, b) => {
      const [x, y] = [place(a), place(b)];
      return x[0] - y[0] || x[1] - y[1];
    });
  }

  async redraw() {
    const rows = this.beside ? [this.row, this.beside] : [this.row];
    const run = (this.drawing = (this.drawing ?? 0) + 1);
    this.hideHover();
    const shown = await Promise.all(rows.map(async (row) => [row, await row.set.dialogue(row), await row.set.tokens(row)]));
    if (run !== this.drawing) return;
    this.found = this.filters.query;
    at("panes").replaceChildren();
    at("panes").classList.toggle("two", rows.length > 1);
    this.panes = shown.map(([row, dialogue, tokens], number) => ({ row, dialogue, tokens, root: this.pane(row, dialogue, number), other: null }));
    if (this.panes.length > 1) {
      this.panes[0].other = this.panes[1].tokens;
      this.panes[1].other = this.panes[0].tokens;
    }
    at("panes").append(...this.panes.map((pane) => pane.root));
    this.drawBodies();
    at("compare").setAttribute("aria-pressed", String(Boolean(this.beside)));
    this.drawMark();
    const alone = !this.beside && !this.partner(this.row);
    at("compare").disabled = alone;
    at("compare").textContent = alone ? "Only episode on this problem" : "Side by side";
    at("compare").title = alone ? "Side by side needs two episodes on one problem; ] leads to no other" : "Side by side (s)";
  }

  drawBodies() {
    const tokens = this.tab === "tokens";
    at("tab-dialogue").setAttribute("aria-selected", String(!tokens));
    at("tab-tokens").setAttribute("aria-selected", String(tokens));
    at("token-tools").hidden = !tokens;
    at("legend").hidden = !tokens;
    at("math-tool").hidden = tokens;
    at("math").checked = this.math;
    if (tokens && this.panes.length) this.drawTokenTools(); // a key may come before the first episode is read
    for (const pane of this.panes) {
      const body = pane.root.querySelector(".body");
      const fresh = make("div", { class: tokens ? "body tokens" : "body" });
      body.replaceWith(fresh);
      if (tokens) {
        const channel = this.channel(pane);
        pane.view = new TokenView(fresh, { ...pane, channel, cells: this.cells, onHover: (what) => this.showHover(what) });
        pane.view.drawStrip();
      } else {
        pane.view = null;
        drawDialogue(fresh, pane.dialogue, { math: this.math, find: this.filters.query.trim().toLowerCase() });
      }
    }
  }

  channel(pane) {
    const channels = channelsOf(pane.tokens, pane.other);
    return channels.find((one) => one.key === this.color) ?? channels[0];
  }

  drawTokenTools() {
    const channels = channelsOf(this.panes[0].tokens, this.panes[0].other);
    at("color").replaceChildren(...channels.map((one) => new Option(plainText(one.label, 40), one.key)));
    const channel = this.channel(this.panes[0]);
    at("color").value = channel.key;
    at("cells").replaceChildren(...Object.entries(CELLS).map(([value, words]) => new Option(words, value)));
    at("cells").value = this.cells;
    at("legend").replaceChildren(...channel.legend.map(([color, label]) => {
      const box = make("i");
      box.style.backgroundColor = color;
      return make("span", {}, box, label);
    }));
  }

  setColor(key) {
    this.color = key;
    this.drawTokenTools();
    for (const pane of this.panes) pane.view?.recolor(this.channel(pane));
    this.writeAddress();
  }

  /** One column: what the episode is, its group, and room for its dialogue or tokens. */
  pane(row, dialogue, number) {
    const title = make("h2");
    const question = dialogue.messages.find((message) => message.role === "user" && message.text);
    if (question) appendProse(title, question.text, { formulas: this.math ? question.formulas : [] });
    else appendText(title, row.problem);
    const facts = make("p", { class: "facts-line" });
    const fact = (label, value) => {
      if (value === null || value === undefined || value === "") return;
      const told = make("span", {}, label ? `${label} ` : "");
      const strong = make("b");
      appendText(strong, String(value));
      told.append(strong);
      facts.append(told);
    };
    if (this.sets.length > 1 || number) fact("in", row.set.name);
    fact("episode", row.index);
    fact("", row.family);
    fact("level", row.level);
    fact("reward", row.reward === null ? null : signed(row.reward));
    fact("", STOPS[row.stop] ?? row.stop);
    fact("tokens", row.tokens ? `${row.own.toLocaleString("en")} of ${row.tokens.toLocaleString("en")}` : null);
    fact("mean log-prob", row.logprob === null ? null : number4(row.logprob));
    fact("version", row.version);
    const name = make("code", { class: "problem-id" });
    appendText(name, row.problem);
    facts.append(name);
    const header = make("header", {}, title, facts);
    const siblings = this.siblings(row);
    if (siblings.length > 1) header.append(this.siblingStrip(row, siblings, number));
    return make("section", { class: "pane" }, header, make("div", { class: "body" }));
  }

  siblingStrip(row, siblings, number) {
    const strip = make("div", { class: "siblings", role: "group", "aria-label": "Episodes on the same problem" });
    const place = siblings.indexOf(row);
    strip.append(make("span", { class: "soft" }, `${place + 1} of ${siblings.length} on this problem`));
    const first = Math.max(0, Math.min(place - 16, siblings.length - 32));
    let group = siblings[first].group;
    for (const other of siblings.slice(first, first + 32)) {
      const told = `episode ${other.index}${other.reward === null ? "" : `, reward ${signed(other.reward)}`}${other.version === null ? "" : `, version ${other.version}`}`;
      const button = make("button", { type: "button", title: told, "aria-label": told, class: hasOutcome(other, "solved") ? "right" : "wrong" });
      button.append(...[...other.statuses.slice(-1)].map((letter) => STATUS[letter].mark));
      if (other === row) button.setAttribute("aria-current", "true");
      if (other.group !== group) button.classList.add("part");
      group = other.group;
      button.addEventListener("click", () => this.choose(other, number));
      strip.append(button);
    }
    return strip;
  }

  /** Shows another episode in a column. */
  choose(row, number) {
    if (number) {
      this.beside = row;
      this.writeAddress();
      return this.redraw();
    }
    const beside = this.beside;
    this.row = row;
    if (beside && beside.set === row.set && beside !== row) this.beside = beside;
    else if (beside) this.beside = this.partner(row);
    this.list.select(row);
    this.writeAddress();
    this.updateSteps();
    return this.redraw();
  }

  toggleCompare() {
    this.beside = this.beside ? null : this.partner(this.row);
    this.writeAddress();
    return this.redraw();
  }

  step(by) {
    if (!this.shown.length) return;
    const place = this.shown.indexOf(this.row);
    const next = place < 0 ? (by > 0 ? 0 : this.shown.length - 1) : place + by;
    if (this.shown[next]) this.open(this.shown[next]);
  }

  stepSibling(by) {
    const siblings = this.siblings(this.row);
    const next = siblings[siblings.indexOf(this.row) + by];
    if (next) this.choose(next, 0);
  }

  updateSteps() {
    const place = this.shown.indexOf(this.row);
    at("previous").disabled = place <= 0;
    at("next").disabled = place >= this.shown.length - 1;
  }

  // ---- the card of a token

  showHover(what) {
    if (!what) {
      this.hideHover();
      return;
    }
    const card = at("hover");
    const { view, at: place, element } = what;
    const text = view.tokens.text(place);
    const quoted = make("div", { class: "quoted" });
    if (text === null) quoted.append(make("span", { class: "soft" }, "text unknown: name a tokenizer"));
    else fillCell(quoted, text);
    const list = make("dl");
    for (const [label, value] of view.facts(place)) {
      const term = make("dt");
      appendText(term, label);
      list.append(term, make("dd", {}, value));
    }
    card.replaceChildren(quoted, list);
    this.hovered = element;
    this.placeHover();
  }

  /** Puts the card beside its token, below it if there is room. */
  placeHover() {
    const card = at("hover");
    const box = this.hovered?.isConnected ? this.hovered.getBoundingClientRect() : null;
    card.hidden = !box || box.bottom < 0 || box.top > innerHeight;
    if (card.hidden) return;
    const { width, height } = card.getBoundingClientRect();
    const below = box.bottom + 8 + height < innerHeight;
    card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`;
    card.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - height - 8)}px`;
  }

  hideHover() {
    this.hovered = null;
    at("hover").hidden = true;
  }

  // ---- figures

  showPage(page) {
    this.page = page;
    at("page-episodes").setAttribute("aria-selected", String(page === "episodes"));
    at("page-figures").setAttribute("aria-selected", String(page === "figures"));
    at("episodes").hidden = page !== "episodes";
    at("figures").hidden = page !== "figures";
    if (page === "figures") this.drawFigures();
    this.hideHover();
    this.writeAddress();
  }

  drawFigures() {
    const axes = axesOf(this.curves);
    this.axis = axes.includes(this.axis) ? this.axis : axes[0];
    at("axis").replaceChildren(...axes.map((axis) => new Option(axis, axis)));
    at("axis").parentElement.hidden = axes.length < 2;
    at("smooth").parentElement.hidden = !this.curves.length;
    if (this.axis) at("axis").value = this.axis;
    const charts = at("charts");
    charts.replaceChildren();
    const group = (title, members, names) => {
      if (!members.length) return;
      const legend = names.length > 1 ? names.map((name, number) => {
        const dot = make("i", { class: "dot" });
        dot.style.backgroundColor = SERIES[number % SERIES.length];
        const label = make("span", { class: "series" }, dot);
        appendText(label, name);
        return label;
      }) : [];
      const heading = make("h2");
      appendText(heading, title);
      charts.append(make("section", {}, make("div", { class: "heading" }, heading, ...legend), make("div", { class: "grid" }, ...members)));
    };
    const curves = curveCharts(this.curves, this.axis, this.smoothing);
    const draw = ([name, members]) => group(name || "run", members, this.curves.map((curve) => curve.name));
    curves.filter(([name]) => name === "validation").forEach(draw);
    group("episodes", episodeCharts(this.sets, (part) => {
      this.showPage("episodes");
      this.filters.family = String(part.family);
      this.drawFilters();
      this.filter();
    }), this.sets.map((set) => set.name));
    curves.filter(([name]) => name !== "validation").forEach(draw);
    if (!charts.children.length) charts.append(make("p", { class: "empty" }, "Nothing was written here that could be drawn."));
  }

  // ---- theme, keys, buttons

  setTheme(theme) {
    this.theme = theme;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    for (const pane of this.panes) pane.view?.drawStrip();
  }

  toggleTheme() {
    const dark = this.theme ? this.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.setTheme(dark ? "light" : "dark");
    this.writeAddress();
  }

  setTab(tab) {
    this.tab = tab;
    this.writeAddress();
    if (this.row) this.drawBodies();
    this.hideHover();
  }

  bind() {
    const on = (id, event, act) => at(id).addEventListener(event, act);
    on("set", "change", () => this.chooseSet(Number(at("set").value)));
    on("page-episodes", "click", () => this.showPage("episodes"));
    on("page-figures", "click", () => this.showPage("figures"));
    on("theme", "click", () => this.toggleTheme());
    on("help", "click", () => at("keys").showModal());
    on("more-filters", "click", () => this.toggleFilters());
    on("filters", "submit", (event) => event.preventDefault());
    on("query", "input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.setFilter("query", at("query").value), 120);
    });
    on("sort", "change", () => this.setFilter("sort", at("sort").value));
    on("direction", "click", () => this.setFilter("down", !this.filters.down));
    on("back", "click", () => this.leave());
    on("previous", "click", () => this.step(-1));
    on("next", "click", () => this.step(1));
    on("tab-dialogue", "click", () => this.setTab("dialogue"));
    on("tab-tokens", "click", () => this.setTab("tokens"));
    on("color", "change", () => this.setColor(at("color").value));
    on("cells", "change", () => this.setCells(at("cells").value));
    on("math", "change", () => this.toggleMath());
    on("mark", "click", () => this.toggleMark());
    on("compare", "click", () => this.toggleCompare());
    on("axis", "change", () => {
      this.axis = at("axis").value;
      this.drawFigures();
    });
    on("smooth", "input", () => {
      this.smoothing = Number(at("smooth").value);
      this.drawFigures();
    });
    at("keys").querySelector("dl").append(...KEYS.flatMap(([keys, words]) => [
      make("dt", {}, ...keys.split("  ").flatMap((key) => [make("kbd", {}, key), " "])), make("dd", {}, words)]));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => { for (const pane of this.panes) pane.view?.drawStrip(); });
    addEventListener("scroll", () => this.placeHover(), { capture: true, passive: true });
    addEventListener("hashchange", () => location.reload());
  }

  chooseSet(number) {
    this.set = number;
    const before = this.row;
    this.row = null;
    this.beside = null;
    this.drawSets();
    this.drawFilters();
    // The same problem in the other set, where it is there: before and after.
    const same = before && this.sets[number].byProblem.get(before.problem);
    return this.filter().then(() => {
      const row = same ? same[0] : this.shown[0];
      if (row) return this.open(row);
      at("panes").replaceChildren();
      return null;
    });
  }

  toggleFilters() {
    const rows = at("filter-rows");
    rows.hidden = !rows.hidden;
    at("more-filters").setAttribute("aria-expanded", String(!rows.hidden));
  }

  setCells(cells) {
    this.cells = cells;
    this.writeAddress();
    this.drawBodies();
  }

  toggleMath() {
    this.math = !this.math;
    this.writeAddress();
    if (this.row) this.redraw();
  }

  cycle(select, by) {
    const place = (select.selectedIndex + by + select.options.length) % select.options.length;
    return select.options[place].value;
  }

  leave() {
    if (this.beside) {
      this.toggleCompare();
      return;
    }
    document.body.classList.remove("reading");
    this.hideHover();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || at("keys").open) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox" && event.target.type !== "range";
    if (event.key === "Escape") {
      if (typing) {
        event.preventDefault(); // a browser would empty the search field, and the list would stay as it is
        event.target.blur();
      } else this.leave();
      return;
    }
    if (typing) return;
    const act = this.keyAction(event.key);
    if (!act) return;
    event.preventDefault();
    act();
  }

  keyAction(key) {
    const view = this.panes[0]?.view;
    const always = {
      "/": () => { this.showPage("episodes"); document.body.classList.remove("reading"); at("query").focus(); },
      g: () => this.showPage(this.page === "episodes" ? "figures" : "episodes"),
      d: () => this.toggleTheme(),
      "?": () => at("keys").showModal(),
    };
    const reading = {
      j: () => this.step(1),
      k: () => this.step(-1),
      ArrowDown: () => this.step(1),
      ArrowUp: () => this.step(-1),
      Enter: () => document.body.classList.add("reading"),
      "]": () => this.stepSibling(1),
      "[": () => this.stepSibling(-1),
      f: () => this.toggleFilters(),
      t: () => this.setTab(this.tab === "tokens" ? "dialogue" : "tokens"),
      s: () => { if (!at("compare").disabled) this.toggleCompare(); },
      m: () => this.toggleMath(),
      x: () => this.toggleMark(),
    };
    const tokens = {
      c: () => this.setColor(this.cycle(at("color"), 1)),
      C: () => this.setColor(this.cycle(at("color"), -1)),
      i: () => this.setCells(this.cycle(at("cells"), 1)),
      ArrowRight: () => view.step(1),
      ArrowLeft: () => view.step(-1),
      n: () => view.nextSurprise(1),
      N: () => view.nextSurprise(-1),
    };
    if (always[key]) return always[key];
    if (this.page !== "episodes" || !this.row) return null;
    return reading[key] ?? (view ? tokens[key] : null);
  }
}

/** A number in a heading: three significant digits. */
const number4 = (value) => number(value, 3);

/** Follows a run that goes on: asks the server that gave the page what has come since. */
class Live {
  constructor(app) {
    this.app = app;
    this.place = app.about.live;
    this.failures = 0;
  }

  start() {
    at("live").hidden = false;
    this.say("following");
    this.wait();
  }

  wait() {
    setTimeout(() => this.ask(), 2000 * Math.min(15, 1 + this.failures));
  }

  async ask() {
    let news;
    try {
      const answer = await fetch(`${this.place.path}?since=${encodeURIComponent(this.place.since)}`, { cache: "no-store" });
      if (!answer.ok) throw new TypeError(`the server answered ${answer.status}`);
      news = await answer.json();
    } catch (error) {
      // A server that was stopped, or is busy: the page stays as it is, says so, and asks again more slowly.
      if (!(error instanceof TypeError) && !(error instanceof SyntaxError)) throw error;
      this.failures += 1;
      this.say("server not there");
      this.wait();
      return;
    }
    this.failures = 0;
    this.say("following");
    if (news.reload) {
      location.reload();
      return;
    }
    if (news.since !== this.place.since) await this.take(news);
    this.wait();
  }

  async take(news) {
    const { app } = this;
    this.place.since = news.since;
    for (const { set, parts } of news.blocks) {
      const part = (name) => () => parts[name];
      await app.sets[set].add(new Block({ index: part("index"), texts: part("texts"), tokens: part("tokens") }));
    }
    if (news.curves) app.curves = await unpackJson(news.curves);
    app.drawSets();
    app.drawFilters();
    await app.filter({ keep: true });
    if (!app.row && app.shown.length) app.open(app.shown[0]);
    if (app.page === "figures") app.drawFigures();
  }

  say(words) {
    at("live").lastElementChild.textContent = words;
    at("live").classList.toggle("lost", words !== "following");
  }
}

readPage().then((page) => new App(page).start()).catch((error) => {
  at("message").hidden = false;
  at("message").textContent = `This page does not open: ${error}`;
  throw error;
});
