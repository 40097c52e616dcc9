"use strict";
/* The pages of a local Tablestore: overview, tables, stream, tunnels, faults, requests. */
const READY_FAULTS = [
  ["Throttle", "every third request is refused with OTSFlowControl", { operation: "*", every: 3, action: { kind: "fail", code: "OTSFlowControl" } }],
  ["Busy", "each read of a stream answers OTSServerBusy, ten times",
    { operation: "GetStreamRecord", times: 10, action: { kind: "fail", code: "OTSServerBusy" } }],
  ["Slow", "each request waits for a second", { operation: "*", action: { kind: "latency", seconds: 1 } }],
  ["Lost answers", "every third write is done, and its answer is lost", { operation: "*Row", every: 3, action: { kind: "lose-answer" } }],
  ["Cut connections", "every fifth request finds its connection cut", { operation: "*", every: 5, action: { kind: "cut" } }],
];
const OWN_FAULT = '{"operation": "PutRow", "times": 1, "action": {"kind": "cut"}}';
const KEY_TYPES = ["STRING", "INTEGER", "BINARY"], COLUMN_TYPES = ["STRING", "INTEGER", "DOUBLE", "BOOLEAN", "BINARY"];
Object.assign(PAGES.local, { // name: [title, function that names the documents, function that makes the nodes]
  "": ["Overview", () => firstStream().map((name) => "story:" + name), overview],
  tables: ["Tables", (name) => (name ? ["rows:" + name, "changes:" + name] : []), tables],
  stream: ["Stream", (name) => (name ? [name] : firstStream()).flatMap((each) => ["story:" + each, "changes:" + each]), stream],
  tunnels: ["Tunnels", () => ["tunnels"], tunnels],
  faults: ["Faults", () => ["faults"], faults],
  requests: ["Requests", () => ["requests"], requests],
});
NAV.local = (name) => {
  const item = (page, value, kind) => pageLink(PAGES.local[page][0], "/" + page, page === name, { value, kind });
  return [el("h2", {}, "Local server"), item("tables", allTables().length), item("stream"), item("tunnels"),
    item("faults", state.docs.verdict?.troubles.length, "bad"), item("requests")];
};
const allTables = () => state.docs.tables?.tables || [];
const knownTable = (name) => allTables().find((each) => each.name === name);
const withStream = () => allTables().filter((each) => each.retention_hours !== null);
const firstStream = () => withStream().slice(0, 1).map((each) => each.name);
const chooses = (shard) => { state.shard = shard; render(); };
const lines = (count, make) => Array.from({ length: count }, (_, index) => el("div", { class: "row", "data-id": "line" + index }, make(index)));
const values = (columns) => columns.map((each, index) => [index ? ", " : "", el("span", { class: "soft" }, each.name + " "), el("code", {}, value(each))]);
function value(each) {
  if (each.type === "removed") return el("i", {}, "removed");
  return (each.type === "BINARY" ? "base64 " : "") + each.text + (each.cut_bytes ? ` … and ${number(each.cut_bytes)} bytes` : "");
}
// --- pages --------------------------------------------------------------------------------------------------------
function overview() {
  const { verdict, tables: doc } = state.docs, listed = allTables(), [first] = firstStream(), story = state.docs["story:" + first];
  const hasRecords = listed.some((each) => each.record_count || each.row_count), fleets = doc?.fleets_hint || [];
  const step = (done, ...text) => el("li", {}, el("span", { class: done ? "state good" : "soft" }, done ? "done: " : ""), text);
  return [
    verdict ? verdictCard(verdict) : head("Overview", WAITS),
    card("Tables", tableOfTables(listed)),
    fleets.length > 0 && card("Fleets on this server", soft("A console of its own shows a fleet: its workers, lags, moves and troubles."),
      fleets.map((each) => command(`streamclient console ${each.id}`))),
    columns(
      card("First steps", el("ol", { class: "steps" }, step(listed.length > 0, link("Make a table", "/tables"), " with a stream."),
        step(hasRecords, listed.length ? link("Put a row", path("tables", listed[0].name)) : "Put a row", "; its change is listed at once."),
        step(false, "Read it: ", el("code", {}, "streamclient sample console"), " writes the smallest complete consumer."))),
      story && card("Stream of " + first, river(first, story, 180, chooses, state.docs["changes:" + first]?.changes), link("open", path("stream", first)))),
  ];
}
function verdictCard(verdict) {
  const [worst, ...others] = verdict.troubles, last = verdict.last_trouble;
  const sum = (name) => number(allTables().reduce((total, each) => total + each[name], 0));
  return framed(verdict.is_well,
    el("h1", { tabindex: "-1", class: "state " + (verdict.is_well ? "good" : "bad") }, verdict.sentence),
    worst && [soft("Seen since ", time(worst.since_micros), " UTC."), el("pre", {}, worst.first_line), el("p", {}, prose(worst.advice))],
    figures([["Tables", number(allTables().length)], ["Rows", sum("row_count")], ["Open shards", sum("open_shard_count")],
      ["Records kept", sum("record_count")]]), worst && row(button("Remove this fault", "remove-fault", { "data-fault": worst.id }),
      button("Copy command", "copy", { "data-text": worst.command }), link("All faults", "/faults")),
    others.slice(0, 4).map((each) => el("p", { class: "state warn" }, each.first_line)), others.length > 4 && soft(`and ${others.length - 4} more`),
    last && soft("The last fault: ", last.first_line, ", seen since ", time(last.since_micros), " UTC, is over."));
}
const keyTypes = (key) => key.map((part) => `${part.name} ${part.type}`).join(", ");
const ofStream = (member) => (each) => (each.retention_hours === null ? null : each[member]);
const TABLE_FIELDS = [["Table", "name", (name) => link(name, path("tables", name))], ["Key", "key", keyTypes], ["#Rows", "row_count", number],
  ["#Shards", ofStream("open_shard_count"), number], ["#Records", ofStream("record_count"), number],
  ["Stream", "retention_hours", (hours, { name }) => (hours === null ? "–" : link(`${hours} h`, path("stream", name)))]];
const tableOfTables = (tables) => grid(TABLE_FIELDS, tables, { empty: "There is no table yet." });
function tables(name) {
  if (!name) return [head("Tables", "Each has rows; a stream keeps their changes."), card("All tables", tableOfTables(allTables())),
    card("New table", newTableForm())];
  const known = knownTable(name), rows = state.docs["rows:" + name], changes = state.docs["changes:" + name];
  if (state.docs.tables && !known) return [head("There is no table " + name), link("All tables", "/tables")];
  const remove = (row, { key }) => button("Delete", "delete-row", { class: "link", "data-row": row,
    "aria-label": "Delete the row " + key.map((part) => part.text).join(" ") });
  return [
    head("Table " + name, known && keyTypes(known.key), known && known.retention_hours !== null && link("Stream", path("stream", name))),
    known && el("section", { class: "card", "data-id": "put " + name }, el("h2", {}, "Put a row"), putForm(known)),
    columns(
      card("Rows", rows && grid([["Key", "key", values], ["Columns", "columns", values], ["Action", "id", remove]], rows.rows || [],
        { empty: "There is no row." }), rows?.has_more && soft("Only the first 100 rows are shown.")),
      card("Changes, newest first", changes?.error ? soft(changes.error.text) : changes && tableOfChanges(changes.changes))),
  ];
}
const CHANGE_FIELDS = [["Time", "at_micros", time], ["Change", "kind", (kind, { key, columns }) => [el("b", {}, kind), " ", values(key), " ",
  el("span", { class: "soft" }, values(columns))]], ["Shard", "shard", id]];
const tableOfChanges = (changes) => grid(CHANGE_FIELDS, changes, { empty: "No change is kept.", kind: (each) => (each.id === state.own?.id ? "own" : null) });
function newTableForm() {
  const keyLine = (index) => [field("key" + index, index ? "Next key column" : "Key column", { required: !index }), choice("type" + index, "Type", KEY_TYPES)];
  return el("form", { "data-act": "new-table" }, field("name", "Name", { required: true }), lines(state.keyLines, keyLine),
    row(el("button", { class: "first" }, "Make the table"), state.keyLines < 4 && button("Add a key column", "more-keys")));
}
function putForm(known) {
  const key = ({ name, type }) => field("key " + name, `${name} (${type}${type === "BINARY" ? ", base64" : ""})`, { inputmode: type === "INTEGER"
    && "numeric" });
  return el("form", { "data-act": "put", "data-id": known.name }, row(known.key.map(key)),
    lines(state.columnLines, (index) => [field("column" + index, "Column"), choice("type" + index, "Type", COLUMN_TYPES), field("value" + index, "Value")]),
    row(el("button", { class: "first" }, "Put the row"), button("Add a column", "more-columns"), el("span", { class: "soft", id: "arrived" }, state.ownText)));
}
function stream(name) {
  const [first] = name ? [name] : firstStream(), story = state.docs["story:" + first];
  if (!first) return [head("Stream"), card("", el("p", {}, "No table has a stream yet: ", link("make one", "/tables"), "."))];
  const others = withStream().filter((each) => each.name !== first).map((each) => link(each.name, path("stream", each.name)));
  return streamPage(first, first, story, {
    onShard: chooses, changes: state.docs["changes:" + first]?.changes, others: others.length > 0 && el("p", {}, "Other streams: ", listed(others)),
    note: "Circles are changes, in the 5 min view; the change of this page is in colour.", shardCard: story?.bands && shardCard(first, story),
    cell: (shard) => button(Draw.short(shard), "choose", { class: "link id", "data-shard": shard }) });
}
function openNeighbour(bands, chosen) {
  return bands.filter((band) => band.closed_micros === null && band.low >= chosen.high - 1e-12).sort((a, b) => a.low - b.low)[0];
}
function shardCard(name, story) {
  const chosen = story.bands.find((band) => band.shard === state.shard), line = story.shards.find((each) => each.id === state.shard);
  if (!chosen) return card("Shard", soft("Choose a shard in the picture or in the table."));
  const isOpen = chosen.closed_micros === null, trims = state.confirm === "trim " + chosen.shard, of = { "data-table": name };
  const throttle = { operation: "GetStreamRecord", table: name, action: { kind: "fail", code: "OTSFlowControl" } };
  return card("Shard " + Draw.short(chosen.shard),
    el("p", {}, sign(isOpen ? "good" : "idle", chosen.situation || (isOpen ? "open" : "closed")),
      `, keys ${line?.keys || "–"}, ${number(line?.records)} records kept`),
    el("p", { class: "id soft" }, chosen.shard), row(button("Split at its median", "split", { disabled: !isOpen, ...of }),
      button("Merge with the next one", "merge", { disabled: !isOpen || !openNeighbour(story.bands, chosen), ...of }),
      button(trims ? `Delete its ${number(line?.records)} records now` : "Trim…", "trim", of),
      button("Throttle reads of the table", "add-fault", { "data-rule": JSON.stringify(throttle) })));
}
function tunnels() {
  const listed = state.docs.tunnels?.tunnels || [], fields = [["Channel", "channel_id", id], ["Kind", "kind"], ["State", "status"], ["Client", "client_id"],
    ["#Consumed", "record_count", number], ["Up to", "consumed_micros", time]];
  const about = ({ kind, stage, record_count: records, client_ids: clients, finished_channel_count: finished }) =>
    soft(`${kind}, ${stage}, ${number(records)} records consumed, ${clients.length} clients, ${finished} channels finished`);
  return [head("Tunnels", "Each as the last request about it left it."), listed.map((each) => card(`${each.name} of ${each.table}`, about(each),
    grid(fields, each.channels, { key: "channel_id", empty: "There is no channel." }))),
  state.docs.tunnels && !listed.length && card("", soft("There is no tunnel. ", el("code", {}, "streamclient tunnels create orders my-tunnel"),
    " makes one."))];
}
function faults() {
  const known = state.docs.faults, streams = withStream().map((each) => each.name);
  const fields = [["Rule", "rule", (rule) => el("code", {}, JSON.stringify(rule))], ["#Struck", "struck", number], ["#Seen", "seen", number],
    ["Action", "id", (fault) => button("Remove", "remove-fault", { "data-fault": fault, "aria-label": "Remove fault " + fault })]];
  return [
    head("Faults", "What clients should bear, whenever you like."),
    card("Active", known && grid(fields, known.faults, { empty: "No fault is active." })),
    columns(
      card("Ready ones", READY_FAULTS.map(([name, about, rule]) => el("p", { class: "row" },
        button(name, "add-fault", { "data-rule": JSON.stringify(rule) }), el("span", { class: "soft" }, about)))),
      card("A rule of your own", el("form", { "data-act": "own-fault" }, el("label", {}, "Rule as JSON",
        el("textarea", { name: "rule", rows: 4, cols: 60, spellcheck: "false" }, OWN_FAULT)), el("button", {}, "Add the rule"))),
      card("Clock", soft(known && `It was moved ahead by ${number(Math.round(known.advanced_seconds))} s. It never goes back.`),
        row([["1 min", 60], ["1 h", 3600], ["24 h", 86400]].map(([text, seconds]) => button("Ahead by " + text, "advance", { "data-seconds": seconds })))),
      card("Streams", streams.length ? el("form", { "data-act": "expire" }, choice("table", "Stream of", streams),
        row(el("button", { value: "expire-iterators" }, "Expire its iterators"),
        el("button", { value: "trim" }, state.confirm === "trim all" ? "Delete all its records now" : "Trim it…"))) : soft("No table has a stream."))),
  ];
}
const answer = (status, { code }) => (status < 400 ? String(status) : sign("bad", `${status} ${code}`));
const HEAD_FIELDS = [["Time", "at_micros", time], ["Operation", "operation"], ["Table", (each) => each.tables.join(", ")], ["Caller", "caller"],
  ["Answer", "http_status", answer], ["#Rows", "rows", number], ["#ms", "millis", String]];
const COUNT_FIELDS = [["Operation", "operation"], ["Table", "table"], ["#Requests", "requests", number], ["#Errors", "errors", number],
  ["#Rows read", "rows_read", number], ["#Rows written", "rows_written", number]];
function requests() {
  const known = state.held || state.docs.requests;
  const heads = (known?.heads || []).filter((each) => matches(each.operation, each.tables, each.caller, each.http_status, each.code));
  return [
    head("Requests", "Heads of the newest 500, noted while a console is open."),
    card("", row(search("Filter"), button("Hold", "hold", { "aria-pressed": String(!!state.held) }), el("span", { class: "soft" }, `${heads.length} shown`)),
      el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Requests" },
        grid(HEAD_FIELDS, heads, { empty: "No request has come since this page was opened.", keep: true }))),
    card("Counters", button("Set all to zero", "reset-requests"), grid(COUNT_FIELDS, state.docs.requests?.counts || [], { empty: "Nothing is counted." })),
  ];
}
// --- what people do -----------------------------------------------------------------------------------------------
const change = (name, body, method = "POST") => call(method, "server/" + name, body);
function twice(what, act) { // the first click asks for confirmation, the second click acts
  if (state.confirm !== what) { state.confirm = what; return undefined; }
  state.confirm = ""; return act();
}
Object.assign(ACTS, {
  hold: () => { state.held = state.held ? null : state.docs.requests; },
  "more-keys": () => { state.keyLines += 1; }, "more-columns": () => { state.columnLines += 1; },
  split: (data) => change("split", { table: data.table, shard_id: state.shard }),
  merge: (data) => {
    const { bands } = state.docs["story:" + data.table], chosen = bands.find((band) => band.shard === state.shard);
    return change("merge", { table: data.table, shard_a: chosen.shard, shard_b: openNeighbour(bands, chosen).shard });
  },
  trim: (data) => twice("trim " + state.shard, () => change("trim", { table: data.table, shard_id: state.shard })),
  "add-fault": (data) => change("faults", JSON.parse(data.rule)),
  "remove-fault": (data) => change("faults", { id: Number(data.fault) }, "DELETE"),
  "reset-requests": () => change("requests", {}, "DELETE"),
  advance: (data) => change("advance-clock", { seconds: Number(data.seconds) }),
  "delete-row": (data) => {
    const [name] = place().words, { key } = state.docs["rows:" + name].rows.find((each) => each.id === data.row);
    return change(`tables${path(name)}/rows`, { key }, "DELETE");
  },
});
Object.assign(FORMS, {
  "own-fault": (form) => change("faults", JSON.parse(form.get("rule"))),
  expire: (form, what) => {
    const table = form.get("table");
    return what === "trim" ? twice("trim all", () => change("trim", { table })) : change("expire-iterators", { table });
  },
  "new-table": async (form) => {
    const key = Array.from({ length: state.keyLines }, (_, at) => ({ name: form.get("key" + at), type: form.get("type" + at) })).filter((each) => each.name);
    await change("tables", { name: form.get("name"), key });
    location.hash = path("tables", form.get("name"));
  },
  put: async (form) => {
    const [name] = place().words, key = knownTable(name).key.map((part) => ({ ...part, text: form.get("key " + part.name) }));
    const others = Array.from({ length: state.columnLines }, (_, at) => ({ name: form.get("column" + at), type: form.get("type" + at),
      text: form.get("value" + at) }));
    const before = new Set((state.docs["changes:" + name]?.changes || []).map((each) => each.id));
    state.own = { table: name, key: key.map((each) => each.text), began: performance.now(), id: "", before };
    state.ownText = "on its way";
    try { await change(`tables${path(name)}/rows`, { columns: [...key, ...others.filter((each) => each.name)] }); } catch (error) {
      Object.assign(state, { own: null, ownText: "" }); throw error;
    }
  },
});
