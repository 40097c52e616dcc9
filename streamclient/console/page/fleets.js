"use strict";
/* The pages of fleets: overview, fleet, shard, stream, moves, parked records. Situations have the same names as in `explain`. */
const SOON_OVER = new Set(["waits-for-parent", "changing-hands", "paused", "paused-by-program", "pause-pending", "free", "no-row-yet", "owner-dead",
  "owner-silent", "owner-says", "not-picked-up", "not-handed-over", "given-up", "user-code-runs", "old-processor-runs", "waits-for-thread", "no-checkpoint"]);
const LIVES = { living: "good", silent: "warn", unseen: "warn", dead: "bad" }, MOST_SQUARES = 2000, MOST_WORST = 25, MOST_LANES = 40, MOST_MOVES = 200;
const DETAIL_MILLIS = 4000; // the shortest time between two requests for the details of a shard
const ORDERS = { // command: [text of its button, fields of its form]
  pause: ["Pause", () => field("option for", "For, such as 15m; empty: until it is resumed")],
  resume: ["Resume", () => []],
  move: ["Move", () => field("option to", "To worker", { required: true })],
  release: ["Release", () => el("label", { class: "inline" }, el("input", { type: "checkbox", name: "option force" }), "The owner's process is gone")],
  park: ["Park a record", () => field("option record", "Record; empty: the one at which the shard stopped")],
};
Object.assign(PAGES.fleet, { // name: [title, function that names the documents, function that makes the nodes]
  "": ["Overview", () => ["fleets", ...worstFleets().flatMap((name) => ["story:" + name, "moves:" + name])], fleetsOverview],
  fleet: ["Fleet", (name) => ["fleet:" + name], fleetPage],
  shard: ["Shard", (name) => ["story:" + name], shardPage],
  stream: ["Stream", (name) => ["story:" + name], fleetStream],
  moves: ["Moves", (name) => ["moves:" + name], movesPage],
  parked: ["Parked", (name) => ["parked:" + name], parkedPage],
});
NAV.fleet = (page, here) => [el("h2", {}, "Fleets"), ...state.docs.about.fleets.flatMap((name, _, { length }) => {
  const within = (each, value) => pageLink(PAGES.fleet[each][0], path("fleets", name, each), here === name && each === page, { value, within: true });
  const value = troublesOf(name).length, isOpen = length === 1 || here === name;
  return [pageLink(length === 1 ? "Fleet" : name, path("fleets", name), here === name && (page === "fleet" || page === "shard"), { value, kind: "bad" }),
    ...(isOpen ? [within("stream"), within("moves"), within("parked", state.docs["parked:" + name]?.count)] : [])];
})];
// --- small parts --------------------------------------------------------------------------------------------------
const troublesOf = (name) => (state.docs.verdict?.troubles || []).filter((each) => each.fleet === name && each.urgency !== "told");
const worstFleets = () => { // the fleet with the worst trouble, which the picture shows
  const { about: { fleets }, verdict } = state.docs, worst = (verdict?.troubles || []).map((each) => each.fleet).find((name) => fleets.includes(name));
  return [worst || fleets[0]].filter(Boolean);
};
const level = (line) => (line.moves ? "good" : SOON_OVER.has(line.situation) ? "warn" : "bad");
const shardPath = (name, shard) => path("fleets", name, "shards", shard);
const shardLink = (name, shard) => link(Draw.short(shard), shardPath(name, shard), { class: "id", title: shard });
const toShard = (name) => (shard) => { location.hash = shardPath(name, shard); };
const plain = (value) => (value !== null && typeof value === "object" ? value.text ?? value.base64 ?? JSON.stringify(value) : String(value ?? "–"));
const pair = (each) => (Array.isArray(each) ? each : [each.name, each.text ?? each.value ?? each.operation]);
const pairs = (values) => (Array.isArray(values) ? values.map(pair) : Object.entries(values || {}));
const named = (values) => listed(pairs(values).map(([name, value]) => [el("span", { class: "soft" }, name + " "), el("code", {}, plain(value))]));
const code = (text) => el("code", {}, text);
const rate = (value) => number(value === null || value === undefined ? value : Math.round(value));
const atMost = (seconds, line) => (line.lag_is_bound ? "at most " : "") + lasting(seconds);
const known = (values) => values.filter((each) => each !== null && each !== undefined);
const largest = (values) => (known(values).length ? Math.max(...known(values)) : null);
const sum = (values) => (known(values).length ? known(values).reduce((total, each) => total + each, 0) : null);
function stale(name, { problem, read_micros, next_seconds }) { // greys old data, and returns a line with their age
  if (!problem) return null;
  state.isOld = true;
  return el("p", {}, sign("bad", `${name}: the data are ${read_micros ? lasting((now() - read_micros) / 1e6) : "–"} old: ${closed(problem)}`),
    next_seconds ? ` The next reading comes within ${lasting(next_seconds)}.` : "");
}
function ready(title, doc, show) {
  if (!doc) return [head(title, WAITS)];
  return doc.error ? [head(title), card("", el("p", {}, prose(doc.error.text)), el("p", {}, prose(doc.error.advice || "")))] : show();
}
function sentence(text, line) { // marks the cause, which follows the colon of a trouble's line
  const cause = line.slice(line.indexOf(": ") + 2), at = cause.length > line.length - 2 ? -1 : text.indexOf(cause);
  return at < 0 ? prose(text) : [prose(text.slice(0, at)), el("code", { class: "cause" }, cause), el("small", {}, prose(text.slice(at + cause.length)))];
}
// --- overview -----------------------------------------------------------------------------------------------------
const FLEET_FIELDS = [["Fleet", "id", (name) => link(name, path("fleets", name))],
  ["Verdict", "sentence", (text, each) => sign(each.is_well === null ? "idle" : each.is_well && !each.problem ? "good" : "bad", text)],
  ["#Workers", "workers", number], ["#Move", "moving", (moving, each) => (moving === null ? "–" : `${number(moving)} of ${number(each.shards)}`)],
  ["#Records/s", "records_per_second", rate], ["#Longest lag", "longest_lag_seconds", lasting], ["#Loss in", "seconds_to_loss", lasting]];
function fleetsOverview() {
  const { verdict, about } = state.docs, fleets = state.docs.fleets?.fleets, [name] = worstFleets(), story = state.docs["story:" + name];
  if (!name) return [head("No fleet was found"), card("First steps", soft("No table of this instance is a status table. A worker makes one when it starts:"),
    command("streamclient sample console"), soft("Or name the tables:"), command("streamclient console TABLE:STATUS_TABLE"))];
  const doc = state.docs["moves:" + name], moves = doc?.moves, waits = (of) => soft(of?.error ? of.error.text : WAITS);
  const lately = (each) => el("li", { "data-id": each.id }, time(each.at_micros), el("span", {}, shardLink(name, each.shard), " ", moveWords(each)));
  return [
    (fleets || []).map((each) => stale(each.id, each)),
    verdict && !verdict.error ? fleetVerdict(verdict, fleets || []) : head("Overview", waits(verdict).textContent),
    card("Fleets", fleets ? grid(FLEET_FIELDS, fleets, { name: "fleets", empty: "No fleet is followed." }) : soft(WAITS)),
    columns(
      card("Stream of " + name, story?.bands ? [river("overview", story, 220, toShard(name)), owners(story)] : waits(story),
        link("As a table", path("fleets", name, "stream"))),
      card("Lately", moves?.length ? el("ul", { class: "moves" }, moves.slice(0, 8).map(lately)) : moves ? soft("Nothing has moved.") : waits(doc),
        link("All moves", path("fleets", name, "moves")))),
  ];
}
function fleetVerdict(verdict, fleets) {
  const worst = verdict.is_well ? null : verdict.troubles[0], others = verdict.troubles.filter((each) => each !== worst), last = verdict.last_trouble;
  const of = (name) => fleets.map((each) => each[name]), losses = known(of("seconds_to_loss"));
  const bad = () => [["Records waiting", number(worst.records_waiting)], ["Loss in", lasting(worst.seconds_to_loss)],
    ["Shards in trouble", number(worst.shards?.length)], ["Shards that wait for them", number(worst.waiting_shards)]];
  const well = () => [["Workers", number(sum(of("workers")))], ["Records/s", rate(sum(of("records_per_second")))],
    ["Longest lag", lasting(largest(of("longest_lag_seconds")))], ["Loss in", lasting(losses.length ? Math.min(...losses) : null)]];
  const other = (each) => el("p", { class: "state " + (["told", "slow"].includes(each.urgency) ? "warn" : "bad"), "data-id": each.id },
    fleets.length > 1 && each.fleet + ": ", prose(each.first_line), " ", link("Look", wayTo(each), { "aria-label": "Look at: " + each.first_line }));
  return framed(!worst,
    el("h1", { tabindex: "-1", class: "state " + (worst ? "bad" : "good") }, worst ? sentence(verdict.sentence, worst.first_line) : verdict.sentence),
    worst && troubleFacts(worst), figures(worst ? bad() : well()), others.slice(0, 6).map(other), others.length > 6 && soft(`and ${others.length - 6} more`),
    last && soft("The last trouble is over: ", last.first_line, last.since_micros && [" It was there since ", time(last.since_micros), " UTC."]));
}
const wayTo = ({ kind, fleet, shard }) => (shard ? shardPath(fleet, shard) : path("fleets", fleet, ...(kind === "parked" ? ["parked"] : [])));
function troubleFacts({ fleet, shard, worker, since_micros, since_is_seen, situation, advice, command: line }) {
  const since = since_micros ? [since_is_seen ? "Seen since " : "Since ", time(since_micros), ` UTC, that is ${lasting((now() - since_micros) / 1e6)}.`]
    : "Its beginning is not known.";
  return [soft(since), told([["Situation", situation], worker && ["Worker", worker], ["What to do", prose(advice)], line && ["Command", command(line)]]),
    row(shard && link("Look at shard " + Draw.short(shard), shardPath(fleet, shard), { class: "button" }),
      link("Look at the fleet", path("fleets", fleet), { class: "button" }))];
}
function moveWords({ kind, from, to, seconds, who, command: line, reason, outcome }) {
  const why = reason && ` (“${reason}”)`;
  if (kind === "order") return [`${who}: ${line}`, why, outcome && `: ${outcome}`];
  return [kind, to && ` by ${to}`, from && `, before ${from}`, seconds !== null && ` after ${lasting(seconds)}`, who && `, ordered by ${who}`, why];
}
// --- one fleet ----------------------------------------------------------------------------------------------------
const WORKER_FIELDS = [["Worker", "worker"],
  ["State", "life", (life, { session }) => sign(LIVES[life] || "warn", life + (session && session.state !== "running" ? ", " + session.state : ""))],
  ["#Shards", "unfinished", number], ["#Records/s", "records_per_second", rate], ["It says", ({ session }) => (session ? session.trouble || "well"
    : "no session row")]];
const shardFields = (name) => [["Shard", "shard", (shard) => shardLink(name, shard)], ["State", "situation", (text, each) => sign(level(each), text)],
  ["Owner", "owner"], ["#Lag", "lag_seconds", atMost], ["#Records/s", "records_per_second", rate], ["#Loss in", "seconds_to_loss", lasting]];
const shardTable = (name, lines, empty) => grid(shardFields(name), lines, { name: "shards", key: "shard", empty });
const OWNER_FIELDS = [["Worker", "owner", (owner) => owner || "no owner"], ["#Shards", "shards", number], ["#Move", "moving", number],
  ["#Do not move", (each) => each.shards - each.moving, number], ["#Longest lag", "lag", lasting]];
function fleetPage(name) {
  const doc = state.docs["fleet:" + name];
  return ready("Fleet " + name, doc, () => {
    const { totals, groups, lag, verdict, next_seconds: next } = doc, { workers, shards, moving, finished, records_per_second, longest_lag_seconds } = totals;
    const lagTable = () => grid([["Time", "0", time], ["Longest lag", "1", lasting]], lag, { key: "0" });
    const draw = (box) => Draw.line(box, lag, { name: "The longest lag over time. The table says the same.", text: lasting });
    return [
      head("Fleet " + name, [`Status table ${doc.status_table}, records are kept for ${number(doc.expiration_hours)} h`, next
        && `, read within ${lasting(next)}`, "."]),
      stale(name, doc),
      framed(verdict?.is_well, verdict && sign(verdict.is_well ? "good" : "bad", verdict.sentence),
        figures([["Workers", number(workers)], ["Shards that move", `${number(moving)} of ${number(shards)}`], ["Finished", number(finished)],
          ["Records/s", rate(records_per_second)], ["Longest lag", lasting(longest_lag_seconds)]])),
      columns(
        card("Workers", grid(WORKER_FIELDS, doc.workers || [], { name: "workers", key: "worker", empty: "No worker has a row in the status table." })),
        card("Longest lag of the last hour", known(lag.map((point) => point[1])).length < 2 ? soft("It is drawn once two readings have told it.")
          : [picture("lag", draw), more("lag", "Lag as a table", lagTable)])),
      groups ? groupsCards(name, groups) : shardsCard(name, doc.shards || []),
    ];
  });
}
function shardsCard(name, all) {
  const lines = all.filter((each) => matches(each.shard, each.owner, each.situation, each.first_line)), stuck = lines.filter((each) => !each.moves);
  const says = `${number(lines.length)} of ${count(all.length, "unfinished shard")}, ${count(stuck.length, "does", "do")} not move`;
  const meter = row(search("Filter"), el("span", { class: "soft" }, says)), byOwner = new Map();
  if (lines.length <= MOST_SHOWN) return card("Shards", meter, shardTable(name, lines, "No shard is unfinished."));
  for (const each of [...lines].sort((a, b) => (a.shard < b.shard ? -1 : 1))) byOwner.set(each.owner, [...(byOwner.get(each.owner) || []), each]);
  const groups = [...byOwner].sort(([a], [b]) => (a < b ? -1 : 1));
  const square = (each) => ({ shard: each.shard, level: level(each), text: `${each.shard}: ${each.situation}` });
  const squares = groups.map(([owner, shards]) => [owner || "no owner", shards.map(square)]);
  const draw = (box) => Draw.squares(box, squares, { onShard: toShard(name), name: "A square for each shard, by worker. The tables say the same." });
  const owners = groups.map(([owner, shards]) => ({ owner, shards: shards.length, moving: shards.filter((each) => each.moves).length,
    lag: largest(shards.map((each) => each.lag_seconds)) }));
  return [
    card("Shards", meter, lines.length <= MOST_SQUARES && picture("squares", draw),
      soft("Full: it moves. Half: it waits, or ends by itself. Crossed: it does not move."), more("squares", "All as a table", () => shardTable(name, lines))),
    card("By worker", grid(OWNER_FIELDS, owners, { name: "owners", key: "owner" })), worstCard(name, stuck.slice(0, MOST_WORST), stuck.length - MOST_WORST),
  ];
}
const worstCard = (name, lines, rest) => card("Do not move", shardTable(name, lines, "Every shard moves."), rest > 0 && soft(`and ${number(rest)} more`));
function groupsCards(name, { lag_classes: classes, workers, not_moving: worst, not_moving_more: rest }) {
  const lines = workers.filter((each) => matches(each.id, each.health));
  const fields = [["Worker", "id", (worker) => worker || "no owner"], ["Health", "health", (text) => (text ? sign(text === "well" ? "good" : "warn", text)
    : "–")],
    ...classes.map((title, index) => ["#" + title, (each) => each.counts[index], number]), ["#Shards", "shards", number], ["#Move", "moving", number]];
  return [
    card("Shards by worker and lag", row(search("Filter"), el("span", { class: "soft" }, count(lines.length, "line"))),
      el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Shards by worker and lag" },
        grid(fields, lines, { name: "groups", empty: "No worker holds a shard." }))),
    worstCard(name, worst, rest),
  ];
}
function fleetStream(name) {
  return streamPage(name, "fleet", state.docs["story:" + name], { onShard: toShard(name), cell: (shard) => shardLink(name, shard),
    note: "Solid is read, pale waits, a red frame does not move. A shard begins and ends where a reading showed it first." });
}
// --- one shard ----------------------------------------------------------------------------------------------------
async function readDetail(name, shard) { // called with each update of the page
  if (state.detail && Date.now() - state.detail.asked < DETAIL_MILLIS) return;
  const asked = Date.now(), here = state.path, before = state.detail?.doc;
  let doc;
  state.detail = { asked, doc: before };
  try { doc = await call("GET", `fleets${path(name)}/shards${path(shard)}`); } catch (error) { doc = before || { error: { text: error.message } }; }
  if (state.path === here) { state.detail = { asked, doc }; soon(); }
}
const HISTORY_FIELDS = [["Time", "at_micros", time], ["Who", "who"], ["Command", "command", code], ["Reason", "reason"], ["Outcome", "outcome"]];
function shardPage(name, shard) {
  const story = state.docs["story:" + name], bands = story?.bands || [], own = bands.find((each) => each.shard === shard);
  readDetail(name, shard);
  return ready("Shard " + Draw.short(shard), state.detail.doc, () => {
    const { lease, explanation, history, commands } = state.detail.doc, said = explanation.shards?.[0] || explanation, { root } = said;
    const parents = (lease.parents || own?.parents || []).map((each) => ({ shard: each, is: "parent" }));
    const children = bands.filter((each) => each.parents.includes(shard)).map((each) => ({ shard: each.shard, is: "child" }));
    const family = [...parents, ...children].map((each) => ({ ...bands.find((band) => band.shard === each.shard), ...each }));
    const spans = (story?.spans || []).filter((each) => each.shard === shard).reverse();
    const until = (micros) => (micros >= story.now_micros ? "now" : time(micros));
    return [
      framed(level(said) !== "bad", el("h1", { tabindex: "-1", class: "state " + level(said) }, sentence(said.first_line, said.first_line)),
        told([["Situation", said.situation], root && root !== shard && ["Waits for", shardLink(name, root)], ["What to do", prose(said.advice)],
          ["Shard", code(shard)]]),
        figures([["Owner", empty(lease.owner)], ["Lag", atMost(lease.lag_seconds, lease)], ["Loss in", lasting(lease.seconds_to_loss)],
          ["Age of the checkpoint", lasting(lease.checkpoint_seconds)], ["Records read", number(lease.progress?.records)]])),
      said.situation !== "finished" && card("Actions", actions(name, shard, commands)),
      columns(
        card("Next records", state.records ? recordTable(state.records.records || state.records) : soft("They are read only if you ask."),
          row(button("Read the next records", "records")), !state.docs.about.shows_values && soft("A console with --show-values shows their values.")),
        card("Family", grid([["Shard", "shard", (each) => shardLink(name, each)], ["Is", "is"], ["State", "situation"], ["Owner", "owner"]], family,
          { key: "shard", empty: "No parent and no child is known." })),
        card("Evidence", el("ul", {}, said.evidence.map((each) => el("li", {}, prose(each))))),
        card("Owners and orders", lease.pause && el("p", {}, sign("warn", `Paused by ${lease.pause.by}: ${lease.pause.reason}`)),
          grid([["Owner", "owner"], ["From", "from_micros", time], ["To", "to_micros", until]], spans, { key: "from_micros", empty: "No owner was seen." }),
          grid(HISTORY_FIELDS, history || [], { key: "change", empty: "No operator has changed its lease." }))),
    ];
  });
}
function recordTable(records) {
  const fields = [["Time", "time_micros", time], ["Change", (each) => each.type || each.change], ["Key", "key", named],
    ["Values", "columns", (columns) => (columns?.length ? named(columns) : "–")]];
  return grid(fields, records, { key: "sequence", empty: "No record waits." });
}
function actions(name, shard, commands) {
  const { allows_actions: isAllowed, has_parking: canPark } = state.docs.about, isOff = (each) => !isAllowed || (each === "park" && !canPark);
  return [
    row(Object.keys(ORDERS).map((each) => button(ORDERS[each][0], "action", { "data-action": each, disabled: isOff(each),
      "aria-pressed": isOff(each) ? null : String(state.action === each) }))),
    !isAllowed && [soft("This console is read-only (no --allow-actions). Replace WHY and WORKER in these commands:"), Object.values(commands).map(command)],
    !canPark && soft("Records can be parked by a console with --parking-table or --parking-directory."),
    isAllowed && state.action && orderForm(`fleets${path(name)}/actions`, { command: state.action, shards: [shard], options: {} }, ORDERS[state.action][1]()),
  ];
}
// --- plan, then confirm -------------------------------------------------------------------------------------------
function orderForm(where, body, fields) {
  const key = JSON.stringify(body), { plan } = state;
  return el("div", { "data-id": key }, el("form", { "data-act": "plan", "data-where": where, "data-body": key }, fields,
    field("reason", "Reason, for the audit", { required: true }), row(el("button", { class: "first" }, "Show the plan"))), plan?.key === key && planCard(plan));
}
const changed = (name, { before, after }) => el("div", {}, name + " ", code(`${JSON.stringify(before[name]) ?? "–"} → ${JSON.stringify(after[name]) ?? "–"}`));
const PLAN_FIELDS = [["Shard", "shard", code], ["Write", "write"],
  ["Columns", ({ before, after }) => Object.keys({ ...before, ...after }), (names, each) => names.map((name) => changed(name, each))]];
function planCard({ answer: { report, command: line }, isDone }) {
  const { changes = [], refusals = [], notes = [], status, ...others } = report, isKnown = ([name]) => !["change", "command"].includes(name);
  const facts = Object.entries(others).filter(isKnown).map(([name, each]) => [name, Array.isArray(each) ? listed(each.map(plain)) : plain(each)]);
  return el("div", { class: "plan", "data-id": "plan" }, el("h3", { tabindex: "-1" }, isDone ? "Carried out" : "The plan"),
    soft(isDone ? status || "It was done." : "Nothing is written yet."), facts.length > 0 && told(facts),
    changes.length > 0 && grid([...PLAN_FIELDS, isDone ? ["Outcome", "outcome"] : ["Effect", "effect"]], changes, { key: "shard" }),
    !changes.length && !facts.length && soft("There is nothing to write."), refusals.map((each) => el("p", {}, sign("bad", `${each.shard}: ${each.reason}`))),
    notes.map((each) => soft(each)), line && command(line),
    !isDone && row(button("Carry it out", "carry-out", { class: "first", disabled: refusals.length > 0 }), button("Leave it", "leave")));
}
// --- moves and parked records -------------------------------------------------------------------------------------
function movesPage(name) {
  const doc = state.docs["moves:" + name];
  return ready("Moves of " + name, doc, () => {
    const shown = doc.lanes.slice(0, MOST_LANES), rest = doc.lanes.length - MOST_LANES, ofShard = (each) => shardLink(name, each);
    const spans = shown.flatMap((lane) => lane.spans.map((each) => ({ ...each, worker: lane.id, id: lane.id + each.shard + each.from_micros })));
    const from_micros = Math.min(...spans.map((each) => each.from_micros)), until_micros = Math.max(...spans.map((each) => each.to_micros));
    const lives = [{ from_micros, to_micros: until_micros, manner: "running", frozen: [] }], colours = Draw.colours(shown.map((lane) => lane.id));
    const given = { from_micros, until_micros, faults: [], lanes: shown.map((lane) => ({ name: lane.id, lives, spans: lane.spans })) };
    const draw = (box) => Draw.lanes(box, given, { now_micros: until_micros, gutter: box.clientWidth < 560 ? 64 : 130, label: Draw.time, colours,
      name: "For each worker, its leases over time. The table says the same." });
    const moves = doc.moves.filter((each) => matches(each.shard, each.kind, each.from, each.to, each.who, each.command, each.reason));
    const by = ({ who, command: line, reason, outcome }) => [empty(who), line && [" ", code(line)], reason && ` (“${reason}”)`, outcome && `: ${outcome}`];
    const held = () => grid([["Worker", "worker"], ["Shard", "shard", ofShard], ["From", "from_micros", time], ["To", "to_micros", time]], spans);
    const at = (micros, each) => [time(micros), each.at_is_seen && el("span", { class: "soft" }, " seen")];
    const fields = [["Time", "at_micros", at], ["Shard", "shard", ofShard], ["What", "kind"], ["From", "from"], ["To", "to"], ["#Took", "seconds", lasting],
      ["By", "who", (_, each) => by(each)]];
    return [
      head("Moves of " + name, ["Complete since ", time(doc.complete_since_micros), " UTC. Of the time before, rows and audit remember the last ones."]),
      card("Leases of each worker", spans.length ? [picture("lanes", draw), more("lanes", "Leases as a table", held)] : soft("No lease was held yet."),
        rest > 0 && soft(`and ${rest} more workers`)),
      card("Moves and orders", meter(moves.slice(0, MOST_MOVES), doc.moves.length), grid(fields, moves.slice(0, MOST_MOVES), { empty: "Nothing has moved." })),
    ];
  });
}
const meter = (shown, all, ...more) => row(search("Filter"), more, el("span", { class: "soft" }, `${number(shown.length)} of ${number(all)} shown`));
const PARKING = { replay: ["Replay", true], discard: ["Discard", false] }; // action: [title of its button, whether it needs a processor]
function parkedPage(name) {
  const doc = state.docs["parked:" + name], { allows_actions: isAllowed, can_replay: canReplay } = state.docs.about;
  const does = (what, title, body, of) => button(title + "…", "parked", { "data-what": what, "data-body": JSON.stringify(body), "aria-label": `${title}: ${of}`,
    disabled: !isAllowed || (PARKING[what][1] && !canReplay) });
  const one = ({ key, record_id: record, time_micros, parked_micros, error, traceback, columns: values }) => [
    told([["Key", named(key)], values && ["Values", named(values)], ["Record", code(record)], ["Written", time(time_micros)], ["Parked", time(parked_micros)],
      ["Error", error]]),
    traceback && el("pre", {}, traceback.split("\n").map((line) => el("div", {}, line))),
    row(does("replay", "Replay its key", { key }, record), does("discard", "Discard it", { record }, record))];
  return ready("Parked records of " + name, doc, () => {
    const chosen = doc.records.find((each) => each.id === state.record), wanted = state.action && JSON.parse(state.action);
    const cause = state.cause || doc.causes[0]?.id; // the shown command is for one cause
    const records = doc.records.filter((each) => (!state.cause || each.cause === state.cause) && matches(JSON.stringify(each.key), each.shard_id, each.error));
    const why = !isAllowed ? "This console is read-only: it was started without --allow-actions." : !canReplay && "A replay needs a console with --processor.";
    const causes = [["Cause", "cause", (text, each) => button(text, "cause", { class: "link", "data-cause": each.id })], ["#Records", "records", number],
      ["#Shards", "shards", number], ["Oldest", "oldest_micros", time], ["Newest", "newest_micros", time],
      ["Action", "id", (cause, { cause: of }) => row(does("replay", "Replay", { cause }, of), does("discard", "Discard", { cause }, of))]];
    const keyButton = (key, each) => button(pairs(key).map(([, value]) => plain(value)).join(" "), "record", { class: "link id", "data-record": each.id });
    const fields = [["Key", "key", keyButton], ["Change", "change"], ["Shard", "shard_id", (shard) => shardLink(name, shard)],
      ["Parked", "parked_micros", time], ["#Attempts", "attempts", number], ["Error", "error"]];
    return [
      head("Parked records of " + name, count(doc.count, "record")), stale(name, doc),
      card("Causes", grid(causes, doc.causes, { empty: "Nothing is parked.", chosen: state.cause }),
        why && doc.count > 0 && [soft(why, isAllowed ? " This command does the same:" : " These commands do the same:"),
          Object.entries(doc.commands).filter(([what]) => !isAllowed || PARKING[what][1]).map(([, line]) => command(`${line} --cause ${cause}`))],
        wanted && orderForm(`fleets${path(name)}/parked/${wanted.what}`, wanted.body, soft(PARKING[wanted.what][0], " ", named(wanted.body)))),
      columns(
        card("Records", meter(records, doc.count, state.cause && button("All causes", "cause", { "data-cause": "" })),
          grid(fields, records, { empty: "No record is shown.", chosen: state.record })),
        card("One record", chosen ? one(chosen) : soft("Choose a record in the table."))),
    ];
  });
}
// --- what people do -----------------------------------------------------------------------------------------------
Object.assign(ACTS, {
  action: ({ action }) => { Object.assign(state, { action: state.action === action ? "" : action, plan: null }); },
  parked: ({ what, body }) => { Object.assign(state, { action: JSON.stringify({ what, body: JSON.parse(body) }), plan: null }); },
  cause: ({ cause }) => { state.cause = cause; },
  record: ({ record }) => { state.record = record; },
  leave: () => { Object.assign(state, { plan: null, action: "" }); },
  records: async () => {
    const [name, shard] = place().words;
    state.records = await call("GET", `fleets${path(name)}/shards${path(shard)}/records`);
  },
  "carry-out": async () => {
    const { where, body, answer, key } = state.plan;
    state.plan = null; // after a refusal, the plan would no longer be valid
    state.plan = { key, isDone: true, answer: await call("POST", where, { ...body, plan: answer.plan }) };
    if (state.detail) state.detail.asked = 0;
    state.focus = true;
  },
});
FORMS.plan = async (form, _, { where, body: key }) => {
  const given = [...form].filter(([name, value]) => name.startsWith("option ") && value), body = { ...JSON.parse(key), reason: form.get("reason") };
  if (body.options) body.options = Object.fromEntries(given.map(([name, value]) => [name.slice(7), name === "option force" || value]));
  state.plan = null; state.plan = { key, where, body, answer: await call("POST", where, body) }; state.focus = true;
};
