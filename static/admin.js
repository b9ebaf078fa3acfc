// The dashboard: draws what /admin/events says. It never gets to see any text of the conversations.

import { drawLegend, drawTurns, formatMs, legendEntry } from "./waterfall.js";

const BLOCK_STATES = { running: "Running", held: "Held", idle: "Idle", free: "Free" };
const MOST_TURNS = 50;
const HEARTBEAT_LIMIT_S = 3;

const byId = (id) => document.getElementById(id);
const state = { redis: true, nodes: [], latency: [], window: 0, turns: [] };

function cell(row, text, className = "") {
  const td = document.createElement("td");
  td.textContent = text;
  td.className = className;
  row.append(td);
}

function emptyRow(columns) {
  const row = document.createElement("tr");
  row.className = "none-row";
  cell(row, "No traffic");
  row.firstChild.colSpan = columns;
  return row;
}

// Tiles

const sum = (name) => state.nodes.reduce((total, { stats }) => total + (stats[name] ?? 0), 0);

const percent = (name, whole) => (whole ? `${Math.round((100 * sum(name)) / whole)} %` : null);

function tile(title, value, metric, alarm = false) {
  const element = document.createElement("section");
  element.className = alarm ? "tile alarm" : "tile";
  const heading = document.createElement("h3");
  heading.textContent = title;
  const number = document.createElement("strong");
  number.textContent = value ?? "No traffic";
  number.classList.toggle("none", value === null);
  const source = document.createElement("code");
  // A long name may break after an underscore.
  source.append(...metric.split(/(?<=_)/).flatMap((part) => [part, document.createElement("wbr")]));
  element.append(heading, number, source);
  return element;
}

function heartbeatAge() {
  if (!state.nodes.length) return null;
  return Math.max(0, Date.now() / 1000 - Math.max(...state.nodes.map((node) => node.at)));
}

function firstToken(percent) {
  const rows = state.latency.filter((row) => row.ttft);
  if (!rows.length) return null;
  const busiest = rows.reduce((a, b) => (b.ttft.count > a.ttft.count ? b : a));
  return `${formatMs(busiest.ttft[percent])}`;
}

function drawTiles() {
  const blocks = Object.keys(BLOCK_STATES).reduce((total, name) => total + sum(`blocks_${name}`), 0);
  const age = heartbeatAge();
  const ready = state.nodes.filter((node) => node.engine === "ready").length;
  byId("tiles").replaceChildren(
    tile("Engines ready", `${ready} of ${state.nodes.length}`, "midstream_engine_up", ready === 0),
    tile("Sessions", String(state.nodes.reduce((total, node) => total + node.sessions, 0)), "midstream_sessions"),
    tile("Running / waiting", `${sum("running")} / ${sum("waiting")}`, "midstream_contexts"),
    tile("First token, p50", firstToken("p50"), "midstream_time_to_first_token_seconds"),
    tile("First token, p95", firstToken("p95"), "midstream_time_to_first_token_seconds"),
    tile("KV held", blocks ? `${Math.round((100 * sum("blocks_held")) / blocks)} %` : null, "midstream_kv_blocks"),
    tile("KV moved out / back", `${sum("swapped_out_tokens")} / ${sum("swapped_in_tokens")}`, "midstream_swapped_out_tokens"),
    tile("KV on the host, blocks", String(sum("blocks_host")), "midstream_kv_blocks"),
    tile("Tokens recomputed", String(sum("recomputed_tokens")), "midstream_recomputed_tokens"),
    tile("Prefix found in KV", percent("prefix_hit_tokens", sum("prefix_hit_tokens") + sum("prefill_tokens")), "midstream_prefix_hit_tokens"),
    tile("Guesses right", percent("accepted_tokens", sum("drafted_tokens")), "midstream_accepted_tokens"),
    tile("Last heartbeat", age === null ? null : `${age.toFixed(1)} s ago`, "ms:node:{id}", age === null || age > HEARTBEAT_LIMIT_S),
    tile("Redis", state.redis ? "answers" : "away", "ms:*", !state.redis),
  );
}

// Tables and bars

function drawLatency() {
  byId("window").textContent = state.window;
  const rows = state.latency.map(({ strategy, turns, ttft, complete }) => {
    const row = document.createElement("tr");
    cell(row, strategy);
    cell(row, turns);
    for (const summary of [ttft, complete]) {
      for (const percent of ["p50", "p95", "p99"]) cell(row, summary ? formatMs(summary[percent]) : "No traffic", percent);
    }
    return row;
  });
  byId("latency").replaceChildren(...(rows.length ? rows : [emptyRow(8)]));
}

function stepMs({ stats }) {
  if (stats.step_ms !== undefined) return formatMs(stats.step_ms);
  return stats.steps ? formatMs((1000 * stats.step_seconds) / stats.steps) : "–";
}

function drawNodes() {
  const rows = state.nodes.map((node) => {
    const row = document.createElement("tr");
    cell(row, node.node);
    const model = document.createElement("small");
    model.textContent = node.model;
    row.firstChild.append(model);
    cell(row, node.engine, node.engine);
    cell(row, node.sessions);
    cell(row, node.stats.running ?? "–");
    cell(row, node.stats.waiting ?? "–");
    cell(row, stepMs(node));
    return row;
  });
  if (!rows.length) {
    const row = emptyRow(6);
    row.firstChild.textContent = "No node is alive";
    rows.push(row);
  }
  byId("nodes").replaceChildren(...rows);
}

function pool(node) {
  const element = document.createElement("div");
  element.className = "pool";
  const counts = Object.keys(BLOCK_STATES).map((name) => [name, node.stats[`blocks_${name}`] ?? 0]);
  const total = counts.reduce((all, [, count]) => all + count, 0);
  const heading = document.createElement("h3");
  heading.append(node.node);
  const used = document.createElement("span");
  used.textContent = total ? `${total} blocks` : "unknown";
  heading.append(used);
  const stack = document.createElement("div");
  stack.className = "bar-stack";
  stack.setAttribute("role", "img");
  stack.setAttribute("aria-label", counts.map(([name, count]) => `${BLOCK_STATES[name]} ${count}`).join(", "));
  for (const [name, count] of counts) {
    const part = document.createElement("span");
    part.className = name;
    part.title = `${BLOCK_STATES[name]}: ${count}`;
    part.style.width = total ? `${(100 * count) / total}%` : "0";
    stack.append(part);
  }
  element.append(heading, stack);
  return element;
}

function drawBlocks() {
  byId("blocks").replaceChildren(...state.nodes.map(pool));
  const legend = Object.entries(BLOCK_STATES).map(([name, text]) => legendEntry(name, `${text} ${sum(`blocks_${name}`)}`));
  byId("blocks-legend").replaceChildren(...legend);
}

// The feed

function nodesChanged() {
  drawTiles();
  drawNodes();
  drawBlocks();
}

function turnsChanged() {
  drawTiles();
  drawLatency();
  drawTurns(byId("turns"), byId("axis"), state.turns);
}

function report(name, text) {
  if (byId("status").dataset.state === name) return;
  byId("status").dataset.state = name;
  byId("status-text").textContent = text;
}

const source = new EventSource("/admin/events");
source.addEventListener("snapshot", ({ data }) => {
  Object.assign(state, JSON.parse(data));
  report("open", "Live");
  nodesChanged();
  turnsChanged();
});
source.addEventListener("nodes", ({ data }) => {
  Object.assign(state, JSON.parse(data));
  nodesChanged();
});
source.addEventListener("turns", ({ data }) => {
  const news = JSON.parse(data);
  Object.assign(state, news, { turns: [...news.turns, ...state.turns].slice(0, MOST_TURNS) });
  turnsChanged();
});
source.addEventListener("error", () => {
  report("offline", "Offline, trying again");
  // A refused stream is not tried again by the browser itself.
  if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
});
drawLegend(byId("turns-legend"));
