// An episode as a dialogue: what was asked, said, judged and answered.

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
