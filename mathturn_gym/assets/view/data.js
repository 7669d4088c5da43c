// The page's data: blocks of episodes, unpacked when they are needed. `view/_encoding.py` is the writer.

/** The bytes of a part: base64 of deflated data. */
async function unpackBytes(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** The JSON of a part. */
async function unpackJson(text) {
  return JSON.parse(new TextDecoder().decode(await unpackBytes(text)));
}

/** A few hundred episodes. `texts` and `tokens` are unpacked at the first call, once. */
class Block {
  constructor(parts) {
    this.parts = parts;
    this.unpacked = {};
  }

  once(part, unpack) {
    this.unpacked[part] ??= unpack(this.parts[part]()).finally(() => { this.parts[part] = null; });
    return this.unpacked[part];
  }

  index() {
    return this.once("index", unpackJson);
  }

  texts() {
    return this.once("texts", unpackJson);
  }

  tokens() {
    return this.once("tokens", async (text) => readTokens(await unpackBytes(text)));
  }

  /** One lower-case text per episode, for searching. */
  haystacks() {
    this.lower ??= this.texts().then((dialogues) => dialogues.map((dialogue) => [
      ...dialogue.messages.flatMap((message) => [message.text ?? "", message.answer ?? "", message.reason ?? ""]),
      ...dialogue.gold,
      JSON.stringify(dialogue.facts),
    ].join("\n").toLowerCase()));
    return this.lower;
  }
}

const COLUMN_TYPES = { u4: Uint32Array, u1: Uint8Array, f4: Float32Array, i4: Int32Array };

/** Columns of numbers, read in place: nothing is copied. */
function readTokens(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const aligned = (at) => at + (-at & 3);
  let at = 4 + aligned(size);
  const columns = new Map();
  for (const [name, kind, length] of header.columns) {
    columns.set(name, new COLUMN_TYPES[kind](buffer, at, length));
    at += aligned(length * COLUMN_TYPES[kind].BYTES_PER_ELEMENT);
  }
  const starts = [0];
  for (const length of header.lengths) starts.push(starts.at(-1) + length);
  return { columns, starts, ids: header.ids, texts: header.texts };
}

/** One episode's tokens: columns cut to it, and what each token says. */
class Tokens {
  constructor(block, within) {
    const [start, end] = [block.starts[within], block.starts[within + 1]];
    const cut = (name) => block.columns.get(name)?.subarray(start, end);
    this.length = end - start;
    this.places = cut("token");
    this.mask = cut("mask");
    this.versions = cut("version");
    this.values = new Map();
    for (const name of block.columns.keys()) {
      if (!name.startsWith("value:")) continue;
      const values = cut(name);
      if (values.some((value) => !Number.isNaN(value))) this.values.set(name.slice(6), values);
    }
    this.vocabulary = block;
  }

  /** The id, or null where the log has only its text. */
  id(at) {
    const id = this.vocabulary.ids[this.places[at]];
    return id < 0 ? null : id;
  }

  /** What the token says, or null where it is unknown. */
  text(at) {
    return this.vocabulary.texts[this.places[at]];
  }

  value(name, at) {
    const values = this.values.get(name);
    return values === undefined || Number.isNaN(values[at]) ? null : values[at];
  }
}

/** Episodes that belong together: one file. */
class EpisodeSet {
  constructor(about, number) {
    Object.assign(this, about);
    this.number = number;
    this.rows = [];
    this.byProblem = new Map();
    this.byGroup = new Map();
  }

  /** Takes a block's episodes in. */
  async add(block) {
    const index = await block.index();
    const names = Object.keys(index);
    for (let within = 0; within < index.problem.length; within++) {
      const row = { set: this, at: this.rows.length, block, within };
      for (const name of names) row[name] = index[name][within];
      row.firstRight = row.statuses.indexOf("r");
      row.turns = row.statuses.length;
      this.rows.push(row);
      push(this.byProblem, row.problem, row);
      if (row.group !== null) push(this.byGroup, row.group, row);
    }
  }

  dialogue(row) {
    return row.block.texts().then((texts) => texts[row.within]);
  }

  tokens(row) {
    return row.block.tokens().then((block) => new Tokens(block, row.within));
  }
}

function push(map, key, value) {
  const found = map.get(key);
  if (found) found.push(value);
  else map.set(key, [value]);
}

/** All that the page was made with: {sets, curves, about}. */
async function readPage() {
  const about = await unpackJson(document.getElementById("about").textContent);
  Object.assign(STATUS, about.statuses);
  Object.assign(STOPS, about.endings);
  const sets = about.sets.map((set, number) => new EpisodeSet(set, number));
  for (const holder of document.querySelectorAll("div.block")) {
    await sets[Number(holder.dataset.set)].add(blockOf(holder));
  }
  return { about, sets, curves: about.curves };
}

/** A block whose parts lie in the page, each taken out of it when it is unpacked. */
function blockOf(holder) {
  const part = (name) => () => {
    const script = holder.querySelector(`[data-part=${name}]`);
    const text = script.textContent;
    script.remove();
    return text;
  };
  return new Block({ index: part("index"), texts: part("texts"), tokens: part("tokens") });
}
