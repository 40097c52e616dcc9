"use strict";
/* The player of a simulated history: Player.show(element, history, {at, shard}). Times in a history are seconds. */
const Player = (() => {
  const { el, morph, table, number } = Nodes;
  const MICROS = 1e6, GUTTER = 56, NARROW_GUTTER = 40, MOST_NAMES = 12, MOST_RECORDS = 14, SPEEDS = [1, 10, 60];
  const FILTERS = [["fault", "Faults"], ["owner", "Owners"], ["trouble", "Troubles"], ["position", "Positions"]];
  const CHANGES = new Set(["start", "twin", "stop", "split", "merge", "done", "replace", "pause", "rewind", "release", "move", "take out",
    "hold", "hold all", "calm"]);
  const STATES = { running: ["●", "well"], frozen: ["‖", "late"], killed: ["✕", "bad"], died: ["✕", "bad"], stopped: ["■", "idle"],
    "not there": ["–", "idle"] };
  const LEGEND = [["✕", "fault-killed", "killed"], ["▼", "fault-fault", "fault; its band is how long"],
    ["◆", "fault-change", "split, merge, start, stop, order"], ["", "", "hatched: the worker is not there"],
    ["", "", "below: solid is stored as read, pale waits, a red frame has a dead or frozen owner"]];
  const CHOOSE = "Choose a shard in the picture or in the table, to see when its records were written and stored as read.";
  let shown = null; // the player that the page shows now
  const say = (target, text) => { if (target.textContent !== text) target.textContent = text; };
  /* --- the history, prepared for looking up a moment --- */
  function prepared(history) {
    const shards = new Map();
    for (const shard of history.shards) {
      const times = [...shard.records].flatMap((digit, place) => Array(Number(digit)).fill(history.writes[shard.first_write + place]));
      shards.set(shard.shard, { ...shard, times, stored: [], places: [], owners: [] });
    }
    for (const [at, name, place] of history.checkpoints) {
      shards.get(name).stored.push(at);
      shards.get(name).places.push(place === null ? Infinity : place); // the end of the shard
    }
    const workers = new Map();
    for (const life of history.lives) {
      if (!workers.has(life.worker)) workers.set(life.worker, { lives: [], owned: [], read: [] });
      workers.get(life.worker).lives.push({ ...life, end: life.ended === null ? history.seconds : life.ended });
    }
    const ofLabel = new Map(history.lives.map((life) => [life.label, workers.get(life.worker)]));
    for (const [shard, who, from, to, how] of history.spans) {
      const worker = how === "reads" ? ofLabel.get(who) : workers.get(who);
      if (how === "owns") shards.get(shard).owners.push({ who, from, to });
      if (worker) worker[how === "reads" ? "read" : "owned"].push({ shard, from, to });
    }
    const names = [...workers.keys()].sort(new Intl.Collator("en", { numeric: true }).compare);
    return { history, shards, workers, names, colours: Draw.colours(names), spans: spansOf(shards, workers), lanes: lanesOf(history, workers, names) };
  }
  /* The time spans of each owner of each shard, cut at the beginning and end of the owner's process. */
  function spansOf(shards, workers) {
    const spans = [];
    for (const shard of shards.values()) {
      for (const { who, from, to } of shard.owners) {
        let since = from;
        const add = (until, isDead) => {
          const span = { shard: shard.shard, owner: who, from_micros: since * MICROS, to_micros: until * MICROS, is_dead: isDead };
          if (until > since) spans.push(span);
          since = Math.max(since, until);
        };
        for (const life of (workers.get(who) || { lives: [] }).lives) {
          if (life.end <= since || life.started >= to) continue;
          add(Math.min(life.started, to), true); add(Math.min(life.end, to), false);
        }
        add(to, true);
      }
    }
    return spans;
  }
  function lanesOf(history, workers, names) {
    const micros = ({ shard, from, to }) => ({ shard, from_micros: from * MICROS, to_micros: to * MICROS });
    const faults = history.faults.map((fault) => ({
      at_micros: fault.at * MICROS, until_micros: (fault.at + fault.seconds) * MICROS,
      kind: fault.kind === "crash" ? "killed" : CHANGES.has(fault.kind) ? "change" : "fault", text: seconds(fault.at) + " " + fault.text, }));
    const lanes = names.map((name) => ({
      name, spans: workers.get(name).owned.map(micros), lives: workers.get(name).lives.map((life) => ({
        from_micros: life.started * MICROS, to_micros: life.end * MICROS, manner: life.manner,
        frozen: life.frozen.map(([since, until]) => [since * MICROS, until * MICROS]), })), }));
    return { from_micros: 0, until_micros: history.seconds * MICROS, lanes, faults };
  }
  function countUpTo(times, at) {
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= at) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  const ownerAt = (shard, at) => shard.owners.find(({ from, to }) => from <= at && at < to)?.who || "";
  function stateOf(worker, at) {
    const life = worker && worker.lives.filter((each) => each.started <= at).pop();
    if (!life) return "not there";
    if (life.ended !== null && life.ended <= at) return life.manner;
    return life.frozen.some(([since, until]) => since <= at && at < until) ? "frozen" : "running";
  }
  function shardAt(known, shard, at) {
    const stored = countUpTo(shard.stored, at), written = countUpTo(shard.times, at), place = stored ? shard.places[stored - 1] : 0;
    const end = shard.closed !== null && shard.closed <= at ? shard.closed : at, owner = ownerAt(shard, at);
    const state = owner ? stateOf(known.workers.get(owner), at) : "";
    return { shard, written, place, owner, state, isFinished: place === Infinity, readTo: place >= written ? end : Math.min(shard.times[place], end) };
  }
  function situation(facts, finished) {
    if (facts.isFinished) return "finished";
    if (facts.shard.parents.some((name) => !finished.get(name))) return "waits-for-parent";
    if (!facts.owner) return facts.shard.stored.length || facts.place ? "free" : "no-row-yet";
    if (facts.state === "frozen") return "owner-frozen";
    if (facts.state !== "running") return "owner-dead";
    return facts.place < facts.written ? "reading" : "caught-up";
  }
  function storyAt(known, at) {
    const bands = [], finished = new Map();
    let written = 0, waiting = 0;
    for (const shard of known.shards.values()) {
      if (shard.opened > at) continue;
      const facts = shardAt(known, shard, at);
      finished.set(shard.shard, facts.isFinished || (shard.left !== null && shard.left <= at));
      written += facts.written; waiting += Math.max(facts.written - facts.place, 0);
      const word = situation(facts, finished);
      bands.push({
        shard: shard.shard, parents: shard.parents, low: shard.low, high: shard.high, is_range_known: true, owner: facts.owner,
        opened_micros: shard.opened * MICROS, closed_micros: shard.closed === null ? null : shard.closed * MICROS,
        read_to_micros: facts.readTo * MICROS, situation: word, moves: word !== "owner-dead" && word !== "owner-frozen", });
    }
    return { story: { from_micros: 0, now_micros: at * MICROS, loss_micros: null, bands, spans: known.spans }, written, waiting, finished };
  }
  /* --- words --- */
  const seconds = (at) => at.toFixed(1) + " s";
  function lasting(total) {
    const minutes = Math.floor(total / 60);
    return (minutes ? minutes + " min " : "") + Math.round(total - minutes * 60) + " s";
  }
  const address = (history, at, shard) => "#/history?" + new URLSearchParams({ seed: history.seed, at: at.toFixed(1), ...(shard ? { shard } : {}) });
  /* The moment and the shard in the address of the page. */
  function asked(hash) {
    const given = new URLSearchParams(hash.split("?")[1] || ""), at = given.get("at");
    return { at: at !== null && isFinite(at) && at !== "" ? Number(at) : null, shard: given.get("shard") };
  }
  /* --- the page --- */
  function heading(history) {
    const verdict = history.violation ? el("span", { class: "state-bad" }, "▲ law broken") : el("span", { class: "state-well" }, "● no law broken");
    const digest = history.digest ? [" · digest ", el("code", {}, history.digest)] : null;
    const facts = ` · ${number(history.handled)} events · ${lasting(history.seconds)} of simulated time`;
    return el("header", {}, el("h1", { tabindex: "-1" }, "History of seed " + history.seed), el("p", { class: "facts" }, verdict, facts, digest));
  }
  function violationCard(view, broken) {
    const title = el("h2", {}, `The law “${broken.law}”${broken.shard ? " of " + broken.shard : ""} is broken`);
    const lead = el("button", { type: "button", click: () => go(view, broken.at, broken.shard || null) }, `Go to ${broken.at.toFixed(3)} s`);
    return el("section", { class: "card broken" }, title, el("p", {}, broken.text), lead);
  }
  function build(element, history) {
    const view = { element, history, known: prepared(history), hidden: new Set(), at: 0, shard: null, timer: null, speed: 10 };
    const parts = (view.parts = {
      play: el("button", { type: "button", class: "first", click: () => (view.timer ? pause : play)(view) }, "Play"), time: el("output", { class: "time" }),
      slider: el("input", { type: "range", min: "0", max: history.seconds, step: "any", "aria-label": "Moment" }),
      speed: el("select", { "aria-label": "Speed" }, SPEEDS.map((each) => el("option", { value: each, selected: each === view.speed }, each + "×"))),
      link: el("a", { class: "button" }, "Link to this moment"), status: el("p", { role: "status", class: "hidden" }),
      lanes: el("div", { class: "drawing" }), river: el("div", { class: "drawing" }), list: el("ol"), moment: el("div"), records: el("div"), shards: el("div"),
    });
    parts.events = el("div", { class: "events", tabindex: "0", role: "group", "aria-label": "List of events" }, parts.list);
    parts.all = el("details", { class: "card", toggle: () => render(view) }, el("summary", {}, "Shards as a table"), parts.shards);
    morph(element, []); // remove a former player
    element.append(heading(history), history.violation ? violationCard(view, history.violation) : "",
      el("section", { class: "card", "aria-label": "Drawings" }, toolbar(view), parts.lanes, parts.river,
        el("ul", { class: "legend" }, LEGEND.map(([mark, kind, text]) => el("li", {}, mark && el("b", { class: kind, "aria-hidden": "true" }, mark + " "),
          text)))), el("div", { class: "player-columns" }, eventsCard(view), el("div", {},
        el("section", { class: "card" }, el("h2", {}, "At this moment"), parts.moment),
        el("section", { class: "card" }, el("h2", {}, "Records of one shard"), parts.records))), parts.all, parts.status);
    parts.shards.addEventListener("click", (event) => {
      const chosen = event.target.closest("button");
      if (chosen) go(view, view.at, chosen.dataset.shard);
    });
    parts.slider.addEventListener("input", () => go(view, Number(parts.slider.value)));
    parts.speed.addEventListener("change", () => { view.speed = Number(parts.speed.value); });
    parts.lanes.addEventListener("pointerdown", (event) => drag(view, event));
    parts.river.addEventListener("pointerdown", (event) => { if (!event.target.classList.contains("band-button")) drag(view, event); });
    return view;
  }
  function toolbar(view) {
    const { play, time, slider, speed, link } = view.parts;
    const by = (label, mark, steps) => el("button", { type: "button", "aria-label": label, click: () => step(view, steps) }, mark);
    return el("div", { class: "toolbar", role: "group", "aria-label": "Player" }, by("Event before", "‹", -1), play, by("Next event", "›", 1), time, slider,
      speed, link);
  }
  function eventsCard(view) {
    const { events, events_left_out: left } = view.history, { events: box, list } = view.parts;
    view.times = events.map((event) => event[0]); view.rows = [];
    requestAnimationFrame(() => setTimeout(() => { // fill the list after the first picture is drawn
      view.rows = events.map(([at, who, kind, shard, text], place) => Object.assign(el("li", { class: kind },
        el("time", {}, at.toFixed(1)), el("span", { class: "who" }, who), el("span", { class: "what" }, (shard ? shard + " " : "") + text)), { place }));
      list.append(...view.rows); view.place = undefined; renderEvents(view);
    }));
    list.addEventListener("click", (event) => {
      const row = event.target.closest("li");
      if (row) go(view, events[row.place][0], events[row.place][3] || view.shard);
    });
    const filter = ([kind, name]) => el("button", { type: "button", class: "chip", "aria-pressed": "true", click: (event) => {
      const isHidden = !view.hidden.has(kind);
      view.hidden[isHidden ? "add" : "delete"](kind);
      event.currentTarget.setAttribute("aria-pressed", String(!isHidden));
      box.classList.toggle("without-" + kind, isHidden);
    } }, name);
    const note = left ? el("p", { class: "soft" }, number(left) + " events are left out: of the least important kinds, and the oldest of these.") : null;
    return el("section", { class: "card" }, el("div", { class: "row ends" }, el("h2", {}, "Events"),
      el("div", { class: "row", role: "group", "aria-label": "Kinds of events" }, FILTERS.map(filter))), note, box);
  }
  /* --- moving in time --- */
  function go(view, at, shard) {
    view.at = Math.min(Math.max(at, 0), view.history.seconds);
    if (shard !== undefined) view.shard = shard && view.known.shards.has(shard) ? shard : null;
    render(view);
  }
  function step(view, by) {
    pause(view);
    const { events } = view.history;
    let place = view.place === undefined ? -1 : view.place;
    if (by < 0 && place >= 0 && events[place][0] < view.at - 0.005) place += 1;
    do place += by; while (events[place] && view.hidden.has(events[place][2]));
    if (!events[place]) return go(view, by < 0 ? 0 : view.history.seconds);
    view.wanted = place; go(view, events[place][0]);
    const [at, who, , shard, text] = events[place];
    say(view.parts.status, [seconds(at), who, shard, text].map(Nodes.shown).join(" "));
  }
  function play(view) {
    if (view.at >= view.history.seconds) view.at = 0;
    let last = performance.now();
    say(view.parts.play, "Pause");
    const turn = (now) => {
      if (!isThere(view)) return pause(view);
      view.timer = requestAnimationFrame(turn);
      const at = view.at + ((now - last) / 1000) * view.speed;
      last = now; go(view, at);
      if (view.at >= view.history.seconds) pause(view);
    };
    view.timer = requestAnimationFrame(turn);
  }
  function pause(view) {
    if (view.timer) cancelAnimationFrame(view.timer);
    view.timer = null; say(view.parts.play, "Play");
  }
  const gutter = (view) => view.element.clientWidth < 560 ? NARROW_GUTTER : GUTTER;
  function drag(view, event) {
    pause(view);
    const target = event.currentTarget;
    const move = (moved) => go(view, Draw.moment(target, moved.clientX, view.known.lanes, gutter(view)) / MICROS);
    target.setPointerCapture(event.pointerId); move(event); target.addEventListener("pointermove", move);
    for (const end of ["pointerup", "pointercancel"]) target.addEventListener(end, () => target.removeEventListener("pointermove", move), { once: true });
  }
  /* Whether the player is still on the page: the console may have shown another page in its place. */
  const isThere = (view) => view.parts.play.isConnected;
  document.addEventListener("keydown", (event) => {
    const view = shown, tag = event.target.tagName;
    if (!view || !isThere(view) || event.altKey || event.ctrlKey || event.metaKey || tag === "SELECT") return;
    if (event.key === " " && !["BUTTON", "A", "SUMMARY"].includes(tag)) view.timer ? pause(view) : play(view);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") step(view, event.key === "ArrowLeft" ? -1 : 1);
    else return;
    event.preventDefault();
  });
  /* --- drawing one moment --- */
  function render(view) {
    const { known, parts, at } = view, { story, written, waiting, finished } = storyAt(known, at);
    const options = { gutter: gutter(view), colours: known.colours, until_micros: known.lanes.until_micros, now_micros: at * MICROS };
    const label = (micros) => seconds(micros / MICROS);
    Draw.lanes(parts.lanes, known.lanes, { ...options, name: "Faults, and for each worker its lives and leases" });
    Draw.river(parts.river, story, {
      ...options, label, height: known.shards.size > 40 ? 420 : 280, chosen: view.shard, onShard: (name) => go(view, view.at, name), });
    say(parts.time, seconds(at)); parts.slider.value = at; parts.slider.setAttribute("aria-valuetext", seconds(at));
    parts.link.setAttribute("href", address(view.history, at, view.shard));
    const counts = `${number(written)} records written, ${number(written - waiting)} stored as read, ${number(waiting)} wait.`;
    const workers = known.names.map((name) => ({ id: name, cells: workerCells(view, name, finished) }));
    morph(parts.moment, [el("p", {}, counts), table(["Worker", "Is", "Reads", "Owns only"], workers, { name: "Workers" })]);
    if (parts.all.open) {
      const rows = Draw.table(story, label).map(([shard, ...rest]) => ({ id: shard, cells: [
        el("button", { type: "button", class: "link", "data-shard": shard }, shard), ...rest] }));
      morph(parts.shards, [table(["Shard", "Opened", "Closed", "Owner", "Read to", "Situation"], rows, { name: "Shards" })]);
    }
    renderEvents(view); morph(parts.records, recordsOf(view));
  }
  function workerCells(view, name, finished) {
    const worker = view.known.workers.get(name), state = stateOf(worker, view.at);
    const at = ({ from, to }) => from <= view.at && (view.at < to || to >= view.history.seconds);
    const owns = worker.owned.filter(at).map((span) => span.shard).filter((shard) => !finished.get(shard));
    const isThereNow = state === "running" || state === "frozen", isJava = worker.lives[0].client === "java";
    const found = isJava ? owns : worker.read.filter(at).map((span) => span.shard); // for a Java worker, the history has no readers
    const reads = isThereNow ? [...new Set(found)] : [], only = owns.filter((shard) => !reads.includes(shard));
    const list = (shards) => (shards.length > MOST_NAMES ? shards.length + " shards" : shards.sort().join(" ")) || "–";
    const [mark, level] = STATES[state], swatch = el("span", { class: "swatch owner-" + view.known.colours.get(name) });
    return [[swatch, name], [el("span", { class: "state-" + level, "aria-hidden": "true" }, mark + " "), state], list(reads), list(only)];
  }
  function renderEvents(view) {
    const { events } = view.history, latest = countUpTo(view.times, view.at + 0.004) - 1;
    const isWanted = view.wanted !== undefined && Math.abs(events[view.wanted][0] - view.at) < 0.005, place = isWanted ? view.wanted : latest;
    view.wanted = undefined;
    if (place === view.place) return;
    view.rows[view.place]?.removeAttribute("aria-current"); view.place = place;
    const row = view.rows[place], box = view.parts.events;
    if (!row) return;
    row.setAttribute("aria-current", "true");
    box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight * 0.6;
  }
  function recordsOf(view) {
    const shard = view.known.shards.get(view.shard);
    if (!shard) return [el("p", { class: "soft" }, CHOOSE)];
    const facts = shardAt(view.known, shard, view.at), first = Math.max(facts.written - MOST_RECORDS, 0), rows = [];
    for (let record = facts.written - 1; record >= first; record -= 1) {
      const stored = shard.places.findIndex((place, at) => place > record && shard.stored[at] <= view.at), at = shard.stored[stored];
      rows.push({ id: record, cells: [String(record), seconds(shard.times[record]), ...(stored < 0 ? ["waits", "–"] : [seconds(at), ownerAt(shard, at)
        || "–"])] });
    }
    const from = shard.parents.length ? ", from " + shard.parents.join(" and ") : "";
    const counts = `${facts.written} records written, ${Math.min(facts.place, facts.written)} stored as read`;
    return [el("p", {}, `${shard.shard}${from}: ${counts}${first ? "; the newest " + MOST_RECORDS + ":" : ":"}`),
      table(["Record", "Written", "Stored as read", "By"], rows, { name: "Records", empty: "None." })];
  }
  function show(element, history, { at = null, shard = null } = {}) {
    if (!shown || shown.element !== element || shown.history !== history || !isThere(shown)) {
      if (shown) pause(shown);
      shown = build(element, history);
    }
    const broken = at === null ? history.violation : null;
    go(shown, at !== null ? at : broken ? broken.at : history.seconds, shard || (broken ? broken.shard : null));
  }
  return { show, asked };
})();
const embedded = document.getElementById("history"); // the history in a file of `page_file`
if (embedded) {
  const page = document.getElementById("page"), history = JSON.parse(embedded.textContent);
  const showAsked = () => Player.show(page, history, Player.asked(location.hash));
  addEventListener("hashchange", showAsked); showAsked();
}
