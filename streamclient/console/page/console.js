"use strict";
/* The frame of the console: it follows documents of /api/v1/ and shows the pages in server.js and fleets.js. A page is a function that
   returns nodes. `morph` changes only nodes that differ, so that an update does not move the focus. Texts are never parsed as HTML. */
const { el, morph, number, shown } = Nodes;
const API = "api/v1/";
const HIDDEN_MILLIS = 5000; // a tab that was hidden for this time ends its feed
const SILENCE_MILLIS = 30000; // the server writes every 15 s; if a proxy holds that back, the page polls
const SPOKEN_MILLIS = 10000; // the shortest time between two messages to a screen reader
const MOST_SHOWN = 60; // rows or buttons: with more of them, the way through the page by Tab is too long
const WAITS = "The first answer is on its way.";
const FRESH = { shard: "", filter: "", held: null, own: null, ownText: "", keyLines: 1, columnLines: 1, confirm: "", notice: "", open: new Set(),
  action: "", plan: null, detail: null, records: null, cause: "", record: "", copied: "" }; // the state that a change of page resets
const state = { ...FRESH, key: "", docs: {}, feed: null, failures: 0, good: 0, problem: "", polls: false, have: 0, minutes: 5, ahead: 0, sorts: {},
  spoken: "", spokenAt: 0, path: "", wanted: "" };
const PAGES = { local: {}, fleet: {} }; // for each mode, by name: [title, function that names the documents, function that makes the nodes]
const NAV = {}; // for each mode, a function that makes the list of pages
const ACTS = {}, FORMS = {}; // the functions of buttons and forms, by their data-act
// --- small parts --------------------------------------------------------------------------------------------------
const card = (title, ...content) => el("section", { class: "card fresh", "data-id": title }, title && el("h2", {}, title), content);
const columns = (...cards) => el("div", { class: "columns" }, cards);
const row = (...content) => el("div", { class: "row" }, content);
const marked = (content) => content.map((each) => (typeof each === "string" ? prose(each) : each));
const soft = (...content) => el("p", { class: "soft" }, marked(content));
const closed = (text) => (/[.!?]$/.test(text) ? text : text + "."); // adds the full stop if the sentence lacks it
const button = (text, act, more) => el("button", { type: "button", "data-act": act, ...more }, text);
const link = (text, to, more) => el("a", { href: "#" + to, ...more }, text);
const path = (...words) => "/" + words.map((word) => encodeURIComponent(String(word).toWellFormed())).join("/");
const id = (name) => el("span", { class: "id", title: name }, Draw.short(name));
const sign = (level, ...content) => el("span", { class: "state " + level }, marked(content));
const head = (title, about, ...more) => el("div", { class: "row ends" }, el("div", {}, el("h1", { tabindex: "-1" }, title), about && soft(about)), more);
const figures = (pairs) => el("dl", { class: "figures" }, pairs.map(([title, text]) => el("div", {}, el("dt", {}, title), el("dd", {}, text))));
const told = (pairs) => el("dl", { class: "told" }, pairs.filter(Boolean).map(([title, text]) => [el("dt", {}, title), el("dd", {}, text)]));
const listed = (nodes, between = ", ") => nodes.flatMap((each, index) => (index ? [between, each] : [each]));
const framed = (isWell, ...content) => el("section", { class: "card fresh" + (isWell ? "" : " trouble"), "data-id": "verdict" }, content);
const command = (text) => row(el("code", {}, text), button(state.copied === text ? "Copied" : "Copy command", "copy", { "data-text": text }));
const field = (name, label, more) => el("label", {}, label, el("input", { name, autocomplete: "off", spellcheck: "false", ...more }));
const choice = (name, label, values) => el("label", {}, label, el("select", { name }, values.map((each) => el("option", {}, each))));
const search = (label) => el("label", { class: "inline" }, label, el("input", { name: "filter", type: "search", "data-bind": "filter", autocomplete: "off" }));
const prose = (text) => text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? el("code", {}, part) : part)); // shows `code` in backquotes as code
const matches = (...texts) => texts.join(" ").toLowerCase().includes(state.filter.toLowerCase());
const now = () => Date.now() * 1000 + state.ahead; // the time by the service's clock, in microseconds
const isFleet = () => state.docs.about?.mode === "fleet";
const pages = () => PAGES[isFleet() ? "fleet" : "local"];
const count = (value, one, many = one + "s") => (value === 1 ? "1 " + one : `${number(value)} ${many}`);
const empty = (text) => (text === null || text === undefined || text === "" ? "–" : text);
const time = (micros) => micros ? el("time", { title: new Date(micros / 1000).toLocaleString() }, Draw.time(micros)) : "–";
function lasting(seconds) { // a duration in seconds as text, like `duration` in times.py
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return Math.max(0, seconds).toFixed(1) + " s";
  const whole = Math.round(seconds);
  for (const [unit, size, smaller, divisor] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
    const rest = Math.floor((whole % size) / divisor);
    if (whole >= size) return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${smaller}` : "");
  }
  return whole + " s";
}
/* A table of items. Each field is [title, name of a member or function, function that shows the value]. With a `name`, a click sorts it. */
function grid(fields, items, { name, empty: none, key = "id", chosen, kind = () => null, keep } = {}) {
  const by = name && state.sorts[name], value = (field, each) => (typeof field[1] === "function" ? field[1](each) : each[field[1]]);
  const compared = (a, b) => (a === b ? 0 : (a ?? "") === "" ? 1 : (b ?? "") === "" ? -1 : (a < b ? -1 : 1) * (by.isDown ? -1 : 1)); // unknown values come last
  const sorted = by ? [...items].sort((a, b) => compared(value(fields[by.index], a), value(fields[by.index], b))) : items;
  const cell = (field, each) => (field[2] ? field[2](value(field, each), each) : empty(value(field, each)));
  const rows = sorted.map((each) => ({ id: each[key], kind: kind(each), keep, cells: fields.map((field) => cell(field, each)) }));
  const order = (index) => (by?.index === index ? (by.isDown ? "descending" : "ascending") : null), arrows = { descending: " ↓", ascending: " ↑", null: "" };
  const heading = (title, index) => button(title + arrows[order(index)], "sort", { class: "link", "data-name": name, "data-index": index,
    "data-kind": fields[index][0][0] });
  return Nodes.table(fields.map((field) => field[0]), rows, { empty: none, chosen, name, ...(name ? { order, heading } : {}) });
}
function more(key, title, content) { // a button that shows or hides its content
  const isOpen = state.open.has(key);
  return el("div", { "data-id": "more " + key }, button(title, "more", { class: "link", "data-key": key, "aria-expanded": String(isOpen) }),
    isOpen && content());
}
function picture(key, draw) { // a box for a drawing; `draw` is called once the box is on the page
  queueMicrotask(() => {
    const there = document.querySelector(`[data-id="${CSS.escape("picture " + key)}"]`);
    if (there) draw(there);
  });
  return el("div", { class: "picture drawing", "data-keep": true, "data-id": "picture " + key });
}
function river(key, story, height, onShard, changes) {
  return picture(key, (box) => story?.bands && Draw.river(box, story, { height, chosen: state.shard, minutes: state.minutes, onShard,
    dots: state.minutes !== 5 ? [] : (changes || []).map((each) => ({ ...each, colour: each.id === state.own?.id ? "var(--own)" : "" })) }));
}
function streamPage(name, key, story, { onShard, changes, shardCard, others, cell, note }) { // the shards as a picture and as a table
  if (!story || story.error) return [head("Stream of " + name), card("", soft(story ? story.error.text : WAITS))];
  const choices = [[5, "5 min"], [20, "20 min"], [60, "60 min"], [0, "all"]].map(([minutes, text]) =>
    button(text, "minutes", { "data-minutes": minutes, "aria-pressed": String(state.minutes === minutes) }));
  const kept = new Map((story.shards || []).map((each) => [each.id, each]));
  const fields = [["Shard", "0", cell], ...["Opened", "Closed", "Reader", "Read to", "State"].map((title, index) => [title, String(index + 1), String]),
    ["Keys", ([shard]) => kept.get(shard)?.keys], ["#Records", ([shard]) => kept.get(shard)?.records, number]];
  const times = el("div", { class: "row", role: "group", "aria-label": "Time shown" }, choices);
  return [head("Stream of " + name, "Keys from top to bottom, time from left to right.", times), others,
    card("", river(key, story, Math.max(260, Math.min(600, story.bands.length * 14)), onShard, changes), soft(note), owners(story)),
    shardCard, card("As a table", grid(fields, Draw.table(story), { key: "0", empty: "There is no shard.", chosen: state.shard }))];
}
function owners(story) { // the legend: the colour of each owner
  const names = Draw.owners(story), colours = Draw.colours(names), shown = names.slice(0, 12);
  const item = (name) => el("li", {}, el("span", { class: "swatch owner-" + colours.get(name) }), name), rest = names.length - shown.length;
  return names.length > 0 && el("ul", { class: "legend" }, shown.map(item), rest > 0 && el("li", {}, `and ${rest} more`));
}
// --- showing ------------------------------------------------------------------------------------------------------
function place() {
  const [text, query] = location.hash.replace(/^#\/?/, "").split("?");
  let name = "", words = [];
  try { [name, ...words] = text.split("/").map(decodeURIComponent); } catch { /* an address that no link has */ }
  if (name === "fleets") [name, words] = [{ undefined: "fleet", shards: "shard" }[words[1]] || words[1], [words[0], ...words.slice(2)]];
  return { name: Object.hasOwn(pages(), name) ? name : "", words, query: new URLSearchParams(query || "") };
}
function topics() {
  const { name, words } = place();
  return [...new Set(["verdict", ...(isFleet() ? [] : ["tables"]), ...pages()[name][1](...words)])];
}
function pageLink(title, to, isHere, { value, kind = "", within } = {}) {
  const counted = value ? el("span", { class: "count " + kind }, number(value)) : null;
  return link([title, counted], to, { class: within ? "within" : null, "aria-current": isHere ? "page" : null });
}
function render() {
  const { name, words } = place(), { about, verdict } = state.docs;
  state.isOld = false; morph(document.getElementById("page"), pages()[name][2](...words).flat().filter(Boolean));
  document.body.classList.toggle("old", state.isOld);
  if (state.focus) { state.focus = false; document.querySelector('[data-id="plan"] h3')?.focus(); } // a requested plan is shown
  morph(document.getElementById("pages"), [pageLink("Overview", "/", name === ""), ...(about ? NAV[isFleet() ? "fleet" : "local"](name, ...words) : []),
    el("h2", {}, "Simulation"), pageLink("History", "/history", name === "history")].flat());
  const where = about && `${about.endpoint.replace("http://", "")}, instance ${about.instance}`;
  morph(document.getElementById("where"), about ? [document.createTextNode(shown(where))] : []);
  const age = Math.round((Date.now() - state.good) / 1000), every = about?.interval_millis;
  const live = state.polls ? ", by polling" : every >= 1000 ? `, every ${every / 1000} s` : every ? `, at most every ${every} ms` : "";
  morph(document.getElementById("live"), [
    state.problem ? sign("bad", state.problem + (state.good ? `; data are ${age} s old` : "")) : sign("", "live", el("span", { class: "soft" }, live)),
    isFleet() && !about.allows_actions && el("span", { class: "tag" }, "read-only")].filter(Boolean));
  document.body.classList.toggle("stale", !!state.problem);
  const notice = () => el("div", { class: "card" }, el("p", {}, prose(state.notice)), button("Close", "close-notice"));
  morph(document.getElementById("notice"), state.notice ? [notice()] : []);
  document.title = [pages()[name][0], ...words, "streamclient console"].map(shown).join(" – ");
  const sentence = state.problem || verdict?.sentence || "";
  if (sentence !== state.spoken && Date.now() - state.spokenAt > SPOKEN_MILLIS) {
    Object.assign(state, { spoken: sentence, spokenAt: Date.now() });
    document.getElementById("said").textContent = shown(sentence);
  }
}
let due = false, hiding;
function soon() { if (!due) { due = true; requestAnimationFrame(() => { due = false; render(); }); } }
function player() {
  const { query } = place();
  return [head("History", "A file of streamclient simulate --page; it stays in this browser."),
    card("", el("label", {}, "File", el("input", { type: "file", name: "history", "data-bind": "history", accept: ".html,.json" }))),
    el("div", { "data-keep": true, "data-id": "player" }), void queueMicrotask(() => {
      const there = document.querySelector('[data-id="player"]');
      if (!there || !state.history || there.shown === state.history) return;
      there.shown = state.history;
      Player.show(there, state.history, { at: Number(query.get("at")) || 0, shard: query.get("shard") || "" });
    })];
}
PAGES.local.history = PAGES.fleet.history = ["History", () => [], player];
// --- data ---------------------------------------------------------------------------------------------------------
const headers = (more) => ({ ...(state.key ? { Authorization: "Bearer " + state.key } : {}), ...more });
async function call(method, where, body) {
  const sent = { method, headers: headers(method === "GET" ? {} : { "Content-Type": "application/json" }), body: body && JSON.stringify(body) };
  const content = await (await fetch(API + where, sent)).json();
  if (content.error) throw Object.assign(new Error([content.error.text, content.error.advice].filter(Boolean).map(closed).join(" ")), content.error);
  return content;
}
async function act(change) {
  try { state.notice = ""; await change(); } catch (error) { state.notice = error.message; }
  soon();
}
function took(message) {
  const old = state.docs[message.of], made = message.document || (old && patched(old, message.patch));
  if (!made) return;
  state.docs[message.of] = made;
  const read = made.read_micros || Math.max(0, ...(made.fleets || []).map((each) => each.read_micros || 0));
  if (read && !made.problem) state.ahead = read - Date.now() * 1000;
  if (state.own && !state.own.id && message.of === "changes:" + state.own.table) {
    const mine = made.changes.find((each) => each.kind === "PUT" && !state.own.before.has(each.id) &&
      state.own.key.every((text, index) => each.key[index].text === text));
    if (mine) { state.own.id = mine.id; state.ownText = `arrived after ${Math.round(performance.now() - state.own.began)} ms`; }
  }
}
function patched(old, patch) { // applies a patch, whose form `patch_of` in feeds.py describes
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
  let alive, wanted;
  const heard = () => { clearTimeout(alive); alive = setTimeout(() => { state.polls = true; feed.abort("silent"); }, SILENCE_MILLIS); };
  try {
    heard();
    if (!state.docs.about) { state.docs.about = await call("GET", "about"); moved(); state.minutes = isFleet() ? 20 : 5; soon(); }
    wanted = topics().join();
    if (state.wanted !== wanted) Object.assign(state, { wanted, have: 0 }); // ids are of one page
    const asked = topics().map(encodeURIComponent).join(",") + (state.polls ? "&have=" + state.have : "");
    const answer = await fetch(API + "feed?of=" + asked, { headers: headers(), signal: feed.signal });
    if (!answer.ok) throw new Error((await answer.json()).error.text);
    const back = () => { heard(); Object.assign(state, { good: Date.now(), failures: 0, problem: "" }); };
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
        if (topics().join() !== wanted && state.feed === feed) { follow(); return; }
        soon();
      }
    }
    if (state.feed === feed) follow();
  } catch (error) {
    if (state.feed !== feed || (feed.signal.aborted && feed.signal.reason !== "silent")) return;
    if (feed.signal.reason === "silent") { state.have = 0; follow(); return; }
    state.problem = error instanceof TypeError ? "the server does not answer" : error.message;
    const pause = Math.min(60, 2 ** ++state.failures) * (0.75 + Math.random() / 2);
    setTimeout(() => { if (state.feed === feed) follow(); }, pause * 1000); soon();
  } finally { clearTimeout(alive); }
}
// --- what people do -----------------------------------------------------------------------------------------------
Object.assign(ACTS, {
  skip: () => document.getElementById("page").focus(),
  theme: () => {
    const given = document.documentElement.dataset.theme, isDark = given ? given === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    setTheme(isDark ? "light" : "dark");
  },
  minutes: (data) => { state.minutes = Number(data.minutes); },
  choose: (data) => { state.shard = data.shard; },
  more: (data) => { if (!state.open.delete(data.key)) state.open.add(data.key); },
  sort: ({ name, index, kind }) => { // a column of numbers begins with the largest number
    const by = state.sorts[name], at = Number(index);
    state.sorts[name] = { index: at, isDown: by?.index === at ? !by.isDown : kind === "#" };
  },
  "close-notice": () => { state.notice = ""; },
  copy: async ({ text }) => { await navigator.clipboard.writeText(text); state.copied = text; },
});
function setTheme(theme) { document.documentElement.dataset.theme = theme; localStorage.setItem("theme", theme); }
function moved() { // after a change of page, resets the state of the page before
  const { name, words } = place(), here = [name, ...words].join("/");
  if (here !== state.path) Object.assign(state, FRESH, { path: here, open: new Set() });
}
document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-act]");
  if (!target || target.tagName === "FORM") { state.confirm = event.target.closest("form") ? state.confirm : ""; return; }
  if (target.tagName === "A") event.preventDefault();
  if (target.dataset.act !== "trim") state.confirm = "";
  act(() => ACTS[target.dataset.act](target.dataset));
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  act(() => FORMS[event.target.dataset.act](new FormData(event.target), event.submitter?.value, event.target.dataset));
});
document.addEventListener("input", (event) => { if (event.target.dataset.bind === "filter") { state.filter = event.target.value; soon(); } });
document.addEventListener("change", async (event) => {
  if (event.target.dataset.bind !== "history" || !event.target.files[0]) return;
  const text = await event.target.files[0].text();
  act(() => { state.history = JSON.parse(text.startsWith("{") ? text : text.match(/<script type="application\/json"[^>]*>([^]*?)<\/script>/)[1]); });
});
window.addEventListener("hashchange", () => {
  moved(); render();
  (document.querySelector("#page h1") || document.getElementById("page")).focus();
  window.scrollTo(0, 0); follow();
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => { state.feed?.abort(); state.feed = null; }, HIDDEN_MILLIS);
  else if (!state.feed) follow();
});
setInterval(() => { if (state.problem || state.spoken !== state.docs.verdict?.sentence) soon(); }, 1000);
document.addEventListener("DOMContentLoaded", () => {
  const key = location.hash.match(/^#key=([\w-]+)$/);
  if (key) { sessionStorage.setItem("key", key[1]); history.replaceState(null, "", location.pathname); }
  state.key = sessionStorage.getItem("key") || "";
  if (localStorage.getItem("theme")) setTheme(localStorage.getItem("theme"));
  moved(); render(); follow();
});
