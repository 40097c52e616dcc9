"use strict";
// The page of the console: follows documents of /api/v1/, and shows each page from them. Every text is set as text.
// A page is a function that returns nodes; `morph` changes only what differs, so that no update takes the focus.

const API = "api/v1/";
const HIDDEN_MILLIS = 5000; // a tab that is hidden for so long ends its feed
const SILENCE_MILLIS = 30000; // the server writes every 15 s; a proxy that keeps that back gets long polling
const SPOKEN_MILLIS = 10000; // the shortest time between two sentences for a screen reader
const READY_FAULTS = [
  ["Throttle", "every third request is refused with OTSFlowControl", { operation: "*", every: 3, action: { kind: "fail", code: "OTSFlowControl" } }],
  ["Busy", "each read of a stream answers OTSServerBusy, ten times", { operation: "GetStreamRecord", times: 10, action: { kind: "fail", code: "OTSServerBusy" } }],
  ["Slow", "each request waits for a second", { operation: "*", action: { kind: "latency", seconds: 1 } }],
  ["Lost answers", "every third write is done, and its answer is lost", { operation: "*Row", every: 3, action: { kind: "lose-answer" } }],
  ["Cut connections", "every fifth request finds its connection cut", { operation: "*", every: 5, action: { kind: "cut" } }],
];
const state = { key: "", docs: {}, feed: null, failures: 0, good: 0, problem: "", polls: false, have: 0, notice: "", minutes: 5,
  shard: "", filter: "", held: null, own: null, ownText: "", keyLines: 1, columnLines: 1, confirm: "", spoken: "", spokenAt: 0, path: "", wanted: "" };

// --- nodes --------------------------------------------------------------------------------------------------------

function shown(text) { // control and direction marks would move or hide what stands beside them
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu,
    (mark) => "\\u" + mark.codePointAt(0).toString(16).padStart(4, "0"));
}

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(4)) {
    if (child !== null && child !== undefined && child !== false) node.append(child.nodeType ? child : shown(child));
  }
  return node;
}

function morph(parent, wanted) {
  let next = parent.firstChild;
  for (const node of wanted) {
    if (node === next) { next = next.nextSibling; continue; }
    if (next && same(next, node)) {
      if (node.nodeType === 3) { if (next.data !== node.data) next.data = node.data; } else if (!next.hasAttribute("data-keep")) {
        for (const { name } of [...next.attributes]) if (!node.hasAttribute(name)) next.removeAttribute(name);
        for (const { name, value } of node.attributes) if (next.getAttribute(name) !== value) next.setAttribute(name, value);
        morph(next, [...node.childNodes]);
      }
      next = next.nextSibling;
      continue;
    }
    parent.insertBefore(node, next);
  }
  while (next) { const after = next.nextSibling; next.remove(); next = after; }
}

function same(old, node) {
  return old.nodeName === node.nodeName && (node.nodeType === 3 || (old.getAttribute("data-id") === node.getAttribute("data-id")));
}

function table(head, rows, empty, chosen) { // rows are {id, cells, own}; a cell is a text or a node
  if (!rows.length) return el("p", { class: "soft" }, empty);
  const titles = head.map((title) => title.replace("#", ""));
  const kind = (index) => (head[index].startsWith("#") ? "number" : null);
  return el("table", { class: "cards", role: "table" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, titles.map((title, index) => el("th", { role: "columnheader", scope: "col", class: kind(index) }, title)))),
    el("tbody", { role: "rowgroup" }, rows.map((row) => el("tr", { role: "row", "data-id": row.id, class: row.own ? "own" : row.id === chosen && chosen ? "chosen" : null },
      row.cells.map((cell, index) => el("td", { role: "cell", class: kind(index), "data-label": titles[index] }, cell))))));
}

const card = (title, ...content) => el("section", { class: "card fresh", "data-id": title }, title && el("h2", {}, title), content);
const button = (text, act, more) => el("button", { type: "button", "data-act": act, ...more }, text);
const link = (text, to) => el("a", { href: "#" + to }, text);
const id = (shard) => el("span", { class: "id", title: shown(shard) }, shard.slice(0, 8));
const number = (value) => (value === null || value === undefined ? "–" : String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f"));
const path = (...words) => words.map(encodeURIComponent).join("/");
const head = (title, about, ...more) => el("div", { class: "row ends" }, el("div", {}, el("h1", { tabindex: "-1" }, title), about && el("p", { class: "soft" }, about)), more);

function time(micros) {
  if (!micros) return "–";
  return el("time", { title: new Date(micros / 1000).toLocaleString() }, Draw.time(micros));
}

function value(each) {
  if (each.type === "removed") return el("i", {}, "removed");
  const text = each.type === "STRING" ? each.text : each.type === "BINARY" ? "base64 " + each.text : each.text;
  return text + (each.cut_bytes ? ` … and ${number(each.cut_bytes)} bytes` : "");
}

const values = (columns) => columns.map((each, index) => [index ? ", " : "", el("span", { class: "soft" }, each.name + " "), el("code", {}, value(each))]);

// --- pages --------------------------------------------------------------------------------------------------------

const PAGES = { // name: [title, documents of the page, function]
  "": ["Overview", () => [...firstStream().map((name) => "story:" + name)], overview],
  tables: ["Tables", (name) => (name ? ["rows:" + name, "changes:" + name] : []), tables],
  stream: ["Stream", (name) => (name ? [name] : firstStream()).flatMap((each) => ["story:" + each, "changes:" + each]), stream],
  tunnels: ["Tunnels", () => ["tunnels"], tunnels],
  faults: ["Faults", () => ["faults"], faults],
  requests: ["Requests", () => ["requests"], requests],
  history: ["History", () => [], history_],
};

const allTables = () => state.docs.tables?.tables || [];
const withStream = () => allTables().filter((each) => each.retention_hours !== null);
const firstStream = () => withStream().slice(0, 1).map((each) => each.name);

function place() {
  const [text, query] = location.hash.replace(/^#\/?/, "").split("?");
  let name = "", words = [];
  try { [name, ...words] = text.split("/").map(decodeURIComponent); } catch { /* not made by this page */ }
  return { name: Object.hasOwn(PAGES, name) ? name : "", words, query: new URLSearchParams(query || "") };
}

function topics() {
  const { name, words } = place();
  return [...new Set(["verdict", "tables", ...PAGES[name][1](...words)])];
}

function overview() {
  const verdict = state.docs.verdict;
  const listed = allTables();
  const [first] = firstStream();
  const hasRecords = listed.some((each) => each.record_count || each.row_count);
  const step = (done, ...text) => el("li", {}, el("span", { class: done ? "state good" : "soft" }, done ? "done: " : ""), text);
  return [
    verdict ? verdictCard(verdict) : head("Overview", "The first answer is on its way."),
    card("Tables", tableOfTables(listed)),
    el("div", { class: "columns" },
      card("First steps", el("ol", { class: "steps" },
        step(listed.length > 0, link("Make a table", "/tables"), " with a stream."),
        step(hasRecords, listed.length ? link("Put a row", "/tables/" + path(listed[0].name)) : "Put a row", "; its change is listed at once."),
        step(false, "Read it: ", el("code", {}, "streamclient sample console"), " writes the smallest complete consumer."))),
      first && state.docs["story:" + first] && card("Stream of " + first, river(first, 180), link("open", "/stream/" + path(first)))),
  ];
}

function verdictCard(verdict) {
  const [worst, ...others] = verdict.troubles;
  const last = verdict.last_trouble;
  const sum = (name) => number(allTables().reduce((total, each) => total + each[name], 0));
  const figure = (title, text) => el("div", {}, el("dt", {}, title), el("dd", {}, text));
  return el("section", { class: "card fresh" + (verdict.is_well ? "" : " trouble"), "data-id": "verdict" },
    el("h1", { tabindex: "-1", class: "state " + (verdict.is_well ? "good" : "bad") }, verdict.sentence),
    worst && [el("p", { class: "soft" }, "Seen since ", time(worst.since_micros), " UTC."), el("pre", {}, worst.first_line), el("p", {}, worst.advice)],
    el("dl", { class: "figures" }, figure("Tables", number(allTables().length)), figure("Rows", sum("row_count")),
      figure("Open shards", sum("open_shard_count")), figure("Records kept", sum("record_count"))),
    worst && el("div", { class: "row" }, button("Remove this fault", "remove-fault", { "data-fault": worst.id }),
      button("Copy command", "copy", { "data-text": worst.command }), link("All faults", "/faults")),
    others.slice(0, 4).map((each) => el("p", { class: "state warn" }, each.first_line)),
    others.length > 4 && el("p", { class: "soft" }, `and ${others.length - 4} more`),
    last && el("p", { class: "soft" }, "The last fault: ", last.first_line, ", seen since ", time(last.since_micros), " UTC, is over."));
}

function tableOfTables(listed) {
  return table(["Table", "Key", "#Rows", "#Shards", "#Records", "Stream"], listed.map((each) => ({ id: each.name, cells: [
    link(each.name, "/tables/" + path(each.name)), each.key.map((part) => `${part.name} ${part.type}`).join(", "), number(each.row_count),
    number(each.retention_hours === null ? null : each.open_shard_count), number(each.retention_hours === null ? null : each.record_count),
    each.retention_hours === null ? "–" : link(`${each.retention_hours} h`, "/stream/" + path(each.name))] })), "There is no table yet.");
}

const typeChoice = (name, kinds, label) => el("label", {}, label, el("select", { name }, kinds.map((kind) => el("option", {}, kind))));
const field = (name, label, more) => el("label", {}, label, el("input", { name, autocomplete: "off", spellcheck: "false", ...more }));
const lines = (count, make) => Array.from({ length: count }, (_, index) => el("div", { class: "row", "data-id": "line" + index }, make(index)));

function tables(name) {
  if (!name) return [head("Tables", "Each has rows; a stream keeps their changes."), card("All tables", tableOfTables(allTables())), card("New table", newTableForm())];
  const known = allTables().find((each) => each.name === name);
  if (state.docs.tables && !known) return [head("There is no table " + name), link("All tables", "/tables")];
  const rows = state.docs["rows:" + name], changes = state.docs["changes:" + name];
  return [
    head("Table " + name, known && known.key.map((part) => `${part.name} ${part.type}`).join(", "), known && known.retention_hours !== null && link("Stream", "/stream/" + path(name))),
    known && el("section", { class: "card", "data-id": "put " + name }, el("h2", {}, "Put a row"), putForm(known)),
    el("div", { class: "columns" },
      card("Rows", rows && table(["Key", "Columns", "Action"], (rows.rows || []).map((row) => ({ id: row.id, cells: [values(row.key), values(row.columns),
        button("Delete", "delete-row", { class: "link", "data-row": row.id, "aria-label": "Delete the row " + shown(row.key.map((each) => each.text).join(" ")) })] })), "There is no row."),
        rows?.has_more && el("p", { class: "soft" }, "Only the first 100 rows are shown.")),
      card("Changes, newest first", changes?.error ? el("p", { class: "soft" }, changes.error.text) : changes && tableOfChanges(changes.changes))),
  ];
}

function tableOfChanges(changes) {
  return table(["Time", "Change", "Shard"], changes.map((each) => ({ id: each.id, own: each.id === state.own?.id, cells: [
    time(each.at_micros), [el("b", {}, each.kind), " ", values(each.key), " ", el("span", { class: "soft" }, values(each.columns))], id(each.shard)] })), "No change is kept.");
}

function newTableForm() {
  return el("form", { "data-act": "new-table" }, field("name", "Name", { required: true }),
    lines(state.keyLines, (index) => [field("key" + index, index ? "Next key column" : "Key column", { required: !index }), typeChoice("type" + index, ["STRING", "INTEGER", "BINARY"], "Type")]),
    el("div", { class: "row" }, el("button", { class: "first" }, "Make the table"), state.keyLines < 4 && button("Add a key column", "more-keys")));
}

function putForm(known) {
  return el("form", { "data-act": "put", "data-id": known.name },
    el("div", { class: "row" }, known.key.map((part) => field("key " + part.name, `${part.name} (${part.type}${part.type === "BINARY" ? ", base64" : ""})`, part.type === "INTEGER" ? { inputmode: "numeric" } : {}))),
    lines(state.columnLines, (index) => [field("column" + index, "Column"), typeChoice("type" + index, ["STRING", "INTEGER", "DOUBLE", "BOOLEAN", "BINARY"], "Type"), field("value" + index, "Value")]),
    el("div", { class: "row" }, el("button", { class: "first" }, "Put the row"), button("Add a column", "more-columns"), el("span", { class: "soft", id: "arrived" }, state.ownText)));
}

function river(name, height) {
  const story = state.docs["story:" + name];
  const box = el("div", { class: "picture drawing", "data-keep": true, "data-id": "river " + name });
  queueMicrotask(() => {
    const there = document.querySelector(`[data-id="${CSS.escape("river " + name)}"]`);
    if (there && story?.bands) Draw.river(there, story, { height, chosen: state.shard, minutes: state.minutes, onShard: (shard) => { state.shard = shard; render(); },
      dots: state.minutes !== 5 ? [] : (state.docs["changes:" + name]?.changes || []).map((each) => ({ at_micros: each.at_micros, shard: each.shard, colour: each.id === state.own?.id ? "var(--own)" : "" })) });
  });
  return box;
}

function stream(name) {
  const [first] = name ? [name] : firstStream();
  if (!first) return [head("Stream"), card("", el("p", {}, "No table has a stream yet: ", link("make one", "/tables"), "."))];
  const story = state.docs["story:" + first];
  const choice = [[5, "5 min"], [20, "20 min"], [60, "60 min"], [0, "all"]].map(([minutes, text]) =>
    button(text, "minutes", { "data-minutes": minutes, "aria-pressed": String(state.minutes === minutes) }));
  const others = withStream().filter((each) => each.name !== first);
  if (story?.error) return [head("Stream of " + first), card("", el("p", {}, story.error.text))];
  return [
    head("Stream of " + first, "Keys from top to bottom, time from left to right.", el("div", { class: "row", role: "group", "aria-label": "Time shown" }, choice)),
    others.length > 0 && el("p", {}, "Other streams: ", others.map((each, index) => [index ? ", " : "", link(each.name, "/stream/" + path(each.name))])),
    story && el("section", { class: "card fresh", "data-id": "picture" }, river(first, Math.max(260, Math.min(600, story.bands.length * 14))), el("p", { class: "soft" }, "Circles are changes, in the 5 min view; the change of this page is in colour.")),
    story && shardCard(first, story), story && card("As a table", tableOfShards(story)),
  ];
}

function openNeighbour(story, chosen) {
  return story.bands.filter((band) => band.closed_micros === null && band.low >= chosen.high - 1e-12).sort((a, b) => a.low - b.low)[0];
}

function shardCard(name, story) {
  const chosen = story.bands.find((band) => band.shard === state.shard);
  const line = story.shards.find((each) => each.id === state.shard);
  if (!chosen) return card("Shard", el("p", { class: "soft" }, "Choose a shard in the picture or in the table."));
  const isOpen = chosen.closed_micros === null;
  const trims = state.confirm === "trim " + chosen.shard;
  return card("Shard " + chosen.shard.slice(0, 8),
    el("p", {}, el("span", { class: "state " + (isOpen ? "good" : "") }, chosen.situation), `, keys ${line?.keys || "–"}, ${number(line?.records)} records kept`),
    el("p", { class: "id soft" }, chosen.shard),
    el("div", { class: "row" }, button("Split at its median", "split", { disabled: !isOpen, "data-table": name }),
      button("Merge with the next one", "merge", { disabled: !isOpen || !openNeighbour(story, chosen), "data-table": name }),
      button(trims ? `Delete its ${number(line?.records)} records now` : "Trim…", "trim", { "data-table": name }),
      button("Throttle reads of the table", "add-fault", { "data-rule": JSON.stringify({ operation: "GetStreamRecord", table: name, action: { kind: "fail", code: "OTSFlowControl" } }) })));
}

function tableOfShards(story) {
  const kept = new Map(story.shards.map((each) => [each.id, each]));
  return table(["Shard", "Opened", "Closed", "Reader", "Read to", "State", "Keys", "#Records"], Draw.table(story).map(([shard, ...cells]) => ({ id: shard, cells: [
    button(shard.slice(0, 8), "choose", { class: "link id", "data-shard": shard }), ...cells, kept.get(shard)?.keys || "–", number(kept.get(shard)?.records)] })), "There is no shard.", state.shard);
}

function tunnels() {
  const listed = state.docs.tunnels?.tunnels;
  return [head("Tunnels", "Each as the last request about it left it."), ...(listed || []).map((each) => card(`${each.name} of ${each.table}`,
    el("p", { class: "soft" }, `${each.kind}, ${each.stage}, ${number(each.record_count)} records consumed, ${each.client_ids.length} clients, ${each.finished_channel_count} channels finished`),
    table(["Channel", "Kind", "State", "Client", "#Consumed", "Up to"], each.channels.map((channel) => ({ id: channel.channel_id, cells: [
      id(channel.channel_id), channel.kind, channel.status, channel.client_id || "–", number(channel.record_count), time(channel.consumed_micros)] })), "There is no channel."))),
    listed && !listed.length && card("", el("p", {}, "There is no tunnel. ", el("code", {}, "streamclient tunnels create orders my-tunnel"), " makes one."))];
}

function faults() {
  const listed = state.docs.faults;
  return [
    head("Faults", "What clients should bear, whenever you like."),
    card("Active", listed && table(["Rule", "#Struck", "#Seen", "Action"], listed.faults.map((each) => ({ id: String(each.id), cells: [
      el("code", {}, JSON.stringify(each.rule)), number(each.struck), number(each.seen),
      button("Remove", "remove-fault", { "data-fault": each.id, "aria-label": "Remove fault " + each.id })] })), "No fault is active.")),
    el("div", { class: "columns" },
      card("Ready ones", READY_FAULTS.map(([name, about, rule]) => el("p", { class: "row" }, button(name, "add-fault", { "data-rule": JSON.stringify(rule) }), el("span", { class: "soft" }, about)))),
      card("A rule of your own", el("form", { "data-act": "own-fault" }, el("label", {}, "Rule as JSON", el("textarea", { name: "rule", rows: 4, cols: 60, spellcheck: "false" },
        '{"operation": "PutRow", "times": 1, "action": {"kind": "cut"}}')), el("button", {}, "Add the rule"))),
      card("Clock", el("p", { class: "soft" }, listed && `It was moved ahead by ${number(Math.round(listed.advanced_seconds))} s. It never goes back.`),
        el("div", { class: "row" }, [["1 min", 60], ["1 h", 3600], ["24 h", 86400]].map(([text, seconds]) => button("Ahead by " + text, "advance", { "data-seconds": seconds })))),
      card("Streams", withStream().length ? el("form", { "data-act": "expire" }, el("label", {}, "Stream of", el("select", { name: "table" }, withStream().map((each) => el("option", {}, each.name)))),
        el("div", { class: "row" }, el("button", { value: "expire-iterators" }, "Expire its iterators"), el("button", { value: "trim" }, state.confirm === "trim all" ? "Delete all its records now" : "Trim it…"))) : el("p", { class: "soft" }, "No table has a stream."))),
  ];
}

const headRows = new Map(); // a request never changes, so its row is made once

function headRow(each) {
  const label = (title, cell, kind) => el("td", { role: "cell", "data-label": title, class: kind }, cell);
  const row = headRows.get(each.id) || el("tr", { role: "row", "data-id": each.id }, label("Time", time(each.at_micros)), label("Operation", each.operation), label("Table", each.tables.join(", ") || "–"), label("Caller", each.caller || "–"),
    label("Answer", each.http_status < 400 ? String(each.http_status) : el("span", { class: "state bad" }, `${each.http_status} ${each.code}`)), label("Rows", number(each.rows), "number"), label("ms", String(each.millis), "number"));
  headRows.set(each.id, row);
  return row;
}

function requests() {
  const document_ = state.held || state.docs.requests;
  const heads = (document_?.heads || []).filter((each) => `${each.operation} ${each.tables} ${each.caller} ${each.http_status} ${each.code}`.toLowerCase().includes(state.filter.toLowerCase()));
  const there = new Set(document_?.heads.map((each) => each.id));
  for (const known of headRows.keys()) if (!there.has(known)) headRows.delete(known);
  const titles = ["Time", "Operation", "Table", "Caller", "Answer", "#Rows", "#ms"];
  return [
    head("Requests", "Heads of the newest 500, noted while a console is open."),
    el("section", { class: "card fresh", "data-id": "heads" },
      el("div", { class: "row" }, el("label", { class: "inline" }, "Filter", el("input", { name: "filter", type: "search", "data-bind": "filter", autocomplete: "off" })),
        button("Hold", "hold", { "aria-pressed": String(!!state.held) }), el("span", { class: "soft" }, `${heads.length} shown`)),
      el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Requests" }, heads.length ? el("table", { class: "cards", role: "table" },
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, titles.map((title) => el("th", { role: "columnheader", scope: "col", class: title.startsWith("#") ? "number" : null }, title.replace("#", ""))))),
        el("tbody", { role: "rowgroup", "data-rows": true, "data-keep": true })) : el("p", { class: "soft" }, "No request has come since this page was opened."))),
    card("Counters", button("Set all to zero", "reset-requests"), table(["Operation", "Table", "#Requests", "#Errors", "#Rows read", "#Rows written"], (state.docs.requests?.counts || []).map((each) => ({ id: each.id, cells: [
      each.operation, each.table || "–", number(each.requests), number(each.errors), number(each.rows_read), number(each.rows_written)] })), "Nothing is counted.")),
    { rows: heads.map(headRow) },
  ];
}

function history_() {
  const box = el("div", { "data-keep": true, "data-id": "player" });
  const { query } = place();
  queueMicrotask(() => {
    const there = document.querySelector('[data-id="player"]');
    if (there && state.history && there.shown !== state.history) {
      there.shown = state.history;
      Player.show(there, state.history, { at: Number(query.get("at")) || 0, shard: query.get("shard") || "" });
    }
  });
  return [head("History", "A file of streamclient simulate --page; it stays in this browser."), card("", el("label", {}, "File", el("input", { type: "file", name: "history", "data-bind": "history", accept: ".html,.json" }))), box];
}

// --- showing ------------------------------------------------------------------------------------------------------

function render() {
  const { name, words } = place();
  const about = state.docs.about;
  const content = PAGES[name][2](...words).filter(Boolean);
  const rows = content.find((each) => each.rows);
  morph(document.getElementById("page"), content.filter((each) => each.nodeType));
  if (rows) { const body = document.querySelector("[data-rows]"); if (body) morph(body, rows.rows); }
  const troubles = state.docs.verdict?.troubles.length || 0;
  const item = (page, count, kind) => el("a", { href: "#/" + page, "aria-current": page === name ? "page" : null }, PAGES[page][0], count ? el("span", { class: "count " + (kind || "") }, number(count)) : null);
  morph(document.getElementById("pages"), [item(""), el("h2", {}, "Local server"), item("tables", allTables().length), item("stream"), item("tunnels"), item("faults", troubles, "bad"), item("requests"),
    ...(typeof Player === "undefined" ? [] : [el("h2", {}, "Simulation"), item("history")])]);
  morph(document.getElementById("where"), about ? [document.createTextNode(`${about.endpoint.replace("http://", "")}, instance ${about.instance}`)] : []);
  const age = Math.round((Date.now() - state.good) / 1000);
  const every = about ? `, at most every ${about.interval_millis} ms` : "";
  morph(document.getElementById("live"), [state.problem ? el("span", { class: "state bad" }, state.good ? `${state.problem}; data are ${age} s old` : state.problem) : el("span", { class: "state" }, "live", el("span", { class: "soft" }, state.polls ? ", by polling" : every))]);
  document.body.classList.toggle("stale", !!state.problem);
  morph(document.getElementById("notice"), state.notice ? [el("div", { class: "card" }, el("p", {}, state.notice), button("Close", "close-notice"))] : []);
  document.title = [PAGES[name][0], ...words, "streamclient console"].map(shown).join(" – ");
  const sentence = state.problem || state.docs.verdict?.sentence || "";
  if (sentence !== state.spoken && Date.now() - state.spokenAt > SPOKEN_MILLIS) {
    state.spoken = sentence; state.spokenAt = Date.now();
    document.getElementById("said").textContent = sentence;
  }
}

let due = false;
function soon() { if (!due) { due = true; requestAnimationFrame(() => { due = false; render(); }); } }

// --- data ---------------------------------------------------------------------------------------------------------

const headers = (more) => ({ ...(state.key ? { Authorization: "Bearer " + state.key } : {}), ...more });

async function call(method, where, body) {
  const answer = await fetch(API + where, { method, headers: headers(method === "GET" ? {} : { "Content-Type": "application/json" }), body: body === undefined ? undefined : JSON.stringify(body) });
  const content = await answer.json();
  if (content.error) throw new Error([content.error.text, content.error.advice].filter(Boolean).join(". "));
  return content;
}

async function act(change) {
  try { state.notice = ""; await change(); } catch (error) { state.notice = error.message; }
  soon();
}

function took(message) {
  const old = state.docs[message.of];
  if (message.document) state.docs[message.of] = message.document;
  else if (old) state.docs[message.of] = patched(old, message.patch);
  const changes = message.of.startsWith("changes:") && state.docs[message.of].changes;
  if (changes && state.own && !state.own.id && message.of === "changes:" + state.own.table) {
    const mine = changes.find((each) => each.kind === "PUT" && !state.own.before.has(each.id) && state.own.key.every((text, index) => each.key[index].text === text));
    if (mine) { state.own.id = mine.id; state.ownText = `arrived after ${Math.round(performance.now() - state.own.began)} ms`; }
  }
}

function patched(old, patch) { // as `patch_of` in feeds.py says
  const made = { ...old, ...patch.set };
  for (const name of patch.gone) delete made[name];
  for (const [name, { ids, changed }] of Object.entries(patch.rows)) {
    const known = new Map([...old[name], ...changed].map((row) => [row.id, row]));
    made[name] = ids.map((each) => known.get(each));
  }
  return made;
}

async function follow() {
  state.feed?.abort();
  const feed = state.feed = new AbortController();
  const wanted = topics();
  if (state.wanted !== wanted.join()) Object.assign(state, { wanted: wanted.join(), have: 0 }); // ids count per page
  let alive;
  const heard = () => { clearTimeout(alive); alive = setTimeout(() => { state.polls = true; feed.abort("silent"); }, SILENCE_MILLIS); };
  try {
    heard();
    if (!state.docs.about) state.docs.about = await call("GET", "about");
    const answer = await fetch(API + "feed?of=" + wanted.map(encodeURIComponent).join(",") + (state.polls ? "&have=" + state.have : ""), { headers: headers(), signal: feed.signal });
    if (!answer.ok) throw new Error((await answer.json()).error.text);
    const back = () => { heard(); state.good = Date.now(); state.failures = 0; state.problem = ""; };
    if (state.polls) {
      const news = await answer.json();
      back(); state.have = news.id; news.messages.forEach(took); soon();
    } else {
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { done, value: part } = await reader.read();
        if (done) throw new Error("the server ended the feed");
        back();
        const blocks = (text + part).split("\n\n");
        text = blocks.pop();
        for (const block of blocks) for (const line of block.split("\n")) if (line.startsWith("data: ")) took(JSON.parse(line.slice(6)));
        if (topics().join() !== wanted.join() && state.feed === feed) { follow(); return; }
        soon();
      }
    }
    if (state.feed === feed) follow();
  } catch (error) {
    if (state.feed !== feed || (feed.signal.aborted && feed.signal.reason !== "silent")) return;
    if (feed.signal.reason === "silent") { state.have = 0; follow(); return; }
    state.problem = error instanceof TypeError ? "the server does not answer" : error.message;
    const pause = Math.min(60, 2 ** ++state.failures) * (0.75 + Math.random() / 2);
    setTimeout(() => { if (state.feed === feed) follow(); }, pause * 1000);
    soon();
  } finally { clearTimeout(alive); }
}

// --- what people do -----------------------------------------------------------------------------------------------

const bands = (data) => state.docs["story:" + data.table]?.bands || [];

const ACTS = {
  skip: () => document.getElementById("page").focus(),
  theme: () => setTheme((document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark" ? "light" : "dark"),
  minutes: (data) => { state.minutes = Number(data.minutes); },
  choose: (data) => { state.shard = data.shard; },
  hold: () => { state.held = state.held ? null : state.docs.requests; },
  "close-notice": () => { state.notice = ""; },
  "more-keys": () => { state.keyLines += 1; },
  "more-columns": () => { state.columnLines += 1; },
  copy: (data) => navigator.clipboard.writeText(data.text),
  split: (data) => call("POST", "server/split", { table: data.table, shard_id: state.shard }),
  merge: (data) => { const chosen = bands(data).find((band) => band.shard === state.shard); return call("POST", "server/merge", { table: data.table, shard_a: chosen.shard, shard_b: openNeighbour({ bands: bands(data) }, chosen).shard }); },
  trim: (data) => twice("trim " + state.shard, () => call("POST", "server/trim", { table: data.table, shard_id: state.shard })),
  "add-fault": (data) => call("POST", "server/faults", JSON.parse(data.rule)),
  "remove-fault": (data) => call("DELETE", "server/faults", { id: Number(data.fault) }),
  "reset-requests": () => call("DELETE", "server/requests", {}),
  advance: (data) => call("POST", "server/advance-clock", { seconds: Number(data.seconds) }),
  "delete-row": (data) => { const name = place().words[0]; const row = state.docs["rows:" + name].rows.find((each) => each.id === data.row); return call("DELETE", `server/tables/${path(name)}/rows`, { key: row.key }); },
};

const FORMS = {
  "own-fault": (form) => call("POST", "server/faults", JSON.parse(form.get("rule"))),
  expire: (form, what) => (what === "trim" ? twice("trim all", () => call("POST", "server/trim", { table: form.get("table") })) : call("POST", "server/expire-iterators", { table: form.get("table") })),
  "new-table": async (form) => {
    const key = Array.from({ length: state.keyLines }, (_, index) => ({ name: form.get("key" + index), type: form.get("type" + index) })).filter((each) => each.name);
    await call("POST", "server/tables", { name: form.get("name"), key });
    location.hash = "/tables/" + path(form.get("name"));
  },
  put: async (form) => {
    const name = place().words[0];
    const key = allTables().find((each) => each.name === name).key.map((part) => ({ name: part.name, type: part.type, text: form.get("key " + part.name) }));
    const others = Array.from({ length: state.columnLines }, (_, index) => ({ name: form.get("column" + index), type: form.get("type" + index), text: form.get("value" + index) })).filter((each) => each.name);
    const before = new Set((state.docs["changes:" + name]?.changes || []).map((each) => each.id));
    state.own = { table: name, key: key.map((each) => each.text), began: performance.now(), id: "", before };
    state.ownText = "on its way";
    try { await call("POST", `server/tables/${path(name)}/rows`, { columns: [...key, ...others] }); } catch (error) { state.own = null; state.ownText = ""; throw error; }
  },
};

function twice(what, change) { // the first click asks, the second one does it
  if (state.confirm !== what) { state.confirm = what; return undefined; }
  state.confirm = "";
  return change();
}

function setTheme(theme) { document.documentElement.dataset.theme = theme; localStorage.setItem("theme", theme); }

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-act]");
  if (!target || target.tagName === "FORM") { state.confirm = event.target.closest("form") ? state.confirm : ""; return; }
  if (target.tagName === "A") event.preventDefault();
  if (target.dataset.act !== "trim") state.confirm = "";
  act(() => ACTS[target.dataset.act](target.dataset));
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  act(() => FORMS[event.target.dataset.act](new FormData(event.target), event.submitter?.value));
});
document.addEventListener("input", (event) => { if (event.target.dataset.bind === "filter") { state.filter = event.target.value; soon(); } });
document.addEventListener("change", async (event) => {
  if (event.target.dataset.bind !== "history" || !event.target.files[0]) return;
  const text = await event.target.files[0].text();
  act(() => { state.history = JSON.parse(text.startsWith("{") ? text : text.match(/<script type="application\/json"[^>]*>([^]*?)<\/script>/)[1]); });
});
window.addEventListener("hashchange", () => {
  const here = place();
  const now = here.name + "/" + here.words.join("/");
  if (now !== state.path) Object.assign(state, { path: now, shard: "", held: null, filter: "", confirm: "", notice: "", own: null, ownText: "", columnLines: 1, keyLines: 1 });
  render();
  (document.querySelector("#page h1") || document.getElementById("page")).focus();
  window.scrollTo(0, 0);
  follow();
});
let hiding;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => { state.feed?.abort(); state.feed = null; }, HIDDEN_MILLIS);
  else if (!state.feed) follow();
});
setInterval(() => { if (state.problem || state.spoken !== state.docs.verdict?.sentence) soon(); }, 1000);

function begin() {
  const key = location.hash.match(/^#key=([\w-]+)$/);
  if (key) { sessionStorage.setItem("key", key[1]); history.replaceState(null, "", location.pathname); }
  state.key = sessionStorage.getItem("key") || "";
  if (localStorage.getItem("theme")) setTheme(localStorage.getItem("theme"));
  const here = place();
  state.path = here.name + "/" + here.words.join("/");
  render();
  follow();
}
begin();
