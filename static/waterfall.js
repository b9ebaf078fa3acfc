// Turns as bars, aligned at Send: on the left what happened before it, on the right what the user waited for.

const SEND_AT = 30; // percent of the width
const LONGEST_OVER_MEDIAN = 4;
const KINDS = ["typing", "prefill", "note", "tool", "answer", "unaccounted"];
const LEGEND = { typing: "Typing", prefill: "Prefill", note: "Note", tool: "Tool wait", answer: "Answer", "first-token": "First token", unaccounted: "Unaccounted" };

export function formatMs(milliseconds) {
  if (milliseconds == null) return "–";
  if (milliseconds < 10) return `${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  return `${(milliseconds / 1000).toFixed(milliseconds < 10000 ? 2 : 1)} s`;
}

export function drawLegend(list) {
  list.replaceChildren(...Object.entries(LEGEND).map(([kind, name]) => legendEntry(kind, name)));
}

export function legendEntry(kind, name) {
  const entry = document.createElement("li");
  const swatch = document.createElement("span");
  swatch.className = `swatch ${kind}`;
  entry.append(swatch, name);
  return entry;
}

/** Draws all turns to one scale; a turn much longer than the median is cut and says so. */
export function drawTurns(list, axis, turns) {
  if (!turns.length) {
    const none = document.createElement("li");
    none.className = "empty";
    none.textContent = "No traffic yet";
    list.replaceChildren(none);
    axis.replaceChildren();
    return;
  }
  const scale = {
    before: Math.max(1, ...turns.map((turn) => -Math.min(0, ...turn.spans.map((span) => span.start)))),
    after: afterScale(turns.map((turn) => turn.done)),
  };
  drawAxis(axis, scale);
  list.replaceChildren(...turns.map((turn) => turnRow(turn, scale)));
}

function afterScale(durations) {
  const ordered = [...durations].sort((a, b) => a - b);
  const limit = LONGEST_OVER_MEDIAN * ordered[Math.floor(ordered.length / 2)];
  return Math.max(1, ...ordered.filter((duration) => duration <= limit));
}

function drawAxis(axis, { before, after }) {
  const scale = document.createElement("div");
  scale.className = "scale";
  const right = 100 - SEND_AT;
  const marks = [[0, `−${formatMs(before)}`], [SEND_AT, "Send"], [SEND_AT + right / 2, formatMs(after / 2)], [100, formatMs(after)]];
  for (const [percent, text] of marks) {
    const mark = document.createElement("span");
    mark.style.left = `${percent}%`;
    mark.textContent = text;
    scale.append(mark);
  }
  axis.replaceChildren(scale);
}

function turnRow(turn, scale) {
  const row = document.createElement("li");
  row.className = `turn ${turn.status}`;
  row.dataset.testid = "turn";
  const facts = document.createElement("div");
  facts.className = "facts";
  const strategy = document.createElement("span");
  strategy.className = "strategy";
  strategy.textContent = turn.strategy;
  const tokens = document.createElement("span");
  // Zero when the answer was stopped.
  const ready = turn.input_tokens ? ` · ${turn.cached_tokens}/${turn.input_tokens} ready` : "";
  tokens.textContent = formatMs(turn.ttft_ms) + ready;
  tokens.title = "Time to the first token · prompt tokens that were in memory at Send";
  facts.append(strategy, tokens);
  const total = document.createElement("span");
  total.className = "total";
  total.textContent = turn.status === "completed" ? formatMs(turn.done) : turn.status;
  row.append(facts, lane(turn, scale), total);
  return row;
}

function lane(turn, scale) {
  const lane = document.createElement("div");
  lane.className = "lane";
  lane.setAttribute("role", "img");
  lane.setAttribute("aria-label", description(turn));
  const ordered = [...turn.spans].sort((a, b) => KINDS.indexOf(a.name) - KINDS.indexOf(b.name));
  for (const { name, start, end } of ordered) {
    lane.append(bar(KINDS.includes(name) ? name : "unaccounted", start, end, scale, `${LEGEND[name] ?? name}: ${formatMs(end - start)}`));
  }
  lane.append(bar("commit", 0, 0, scale, "Send"));
  if (turn.ttft_ms !== null) lane.append(bar("first-token", turn.ttft_ms, turn.ttft_ms, scale, `First token: ${formatMs(turn.ttft_ms)}`));
  if (turn.done > scale.after) {
    const beyond = document.createElement("span");
    beyond.className = "beyond";
    beyond.textContent = `→ ${formatMs(turn.done)}`;
    lane.append(beyond);
  }
  return lane;
}

function bar(kind, start, end, scale, title) {
  const element = document.createElement("span");
  element.className = kind;
  element.title = title;
  const left = position(start, scale);
  element.style.left = `${left}%`;
  if (end > start) element.style.width = `${position(end, scale) - left}%`;
  return element;
}

/** Percent of the lane's width for a time in milliseconds from Send. */
function position(milliseconds, { before, after }) {
  if (milliseconds < 0) return SEND_AT * (1 + milliseconds / before);
  return SEND_AT + (100 - SEND_AT) * (milliseconds / after);
}

function description(turn) {
  const sums = new Map();
  for (const { name, start, end } of turn.spans) sums.set(name, (sums.get(name) ?? 0) + end - start);
  const parts = [...sums].map(([name, sum]) => `${LEGEND[name] ?? name} ${formatMs(sum)}`);
  return [`First token after ${formatMs(turn.ttft_ms)}`, ...parts, `done after ${formatMs(turn.done)}`].join(", ");
}
