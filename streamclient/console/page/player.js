"use strict";
/* The player of a simulated history: Player.show(element, history, {at, shard}). Times in a history are seconds. */
const Player = (() => {
  const MICROS = 1e6, GUTTER = 56, NARROW_GUTTER = 40, MOST_NAMES = 12, MOST_RECORDS = 14;
  const SPEEDS = [1, 10, 60];
  const FILTERS = [["fault", "Faults"], ["owner", "Owners"], ["trouble", "Troubles"], ["position", "Positions"]];
  const CHANGES = new Set([
    "start", "twin", "stop", "split", "merge", "done", "replace", "pause", "rewind", "release", "move", "take out",
    "hold", "hold all", "calm",
  ]);
  const STATES = {
    running: ["●", "well"], frozen: ["‖", "late"], killed: ["✕", "bad"], died: ["✕", "bad"],
    stopped: ["■", "idle"], "not there": ["–", "idle"],
  };
  const CHOOSE = "Choose a shard in the picture or in the table, to see when its records were written and stored as read.";
  let shown = null; // the one player of the page

  /* --- nodes --- */
  function node(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const name in attributes || {}) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), attributes[name]);
      else if (attributes[name] !== null) made.setAttribute(name, attributes[name]);
    }
    made.append(...children);
    return made;
  }
  function say(target, text) {
    if (target.textContent !== text) target.textContent = text;
  }
  function set(target, name, value) {
    if (target.getAttribute(name) !== value) target.setAttribute(name, value);
  }
  /* Rows of cells; a cell is a text, or {text, mark, level, colour, onclick}. Only cells that differ are touched. */
  function fill(body, heads, rows) {
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((cells, place) => {
      const row = body.rows[place] || body.appendChild(node("tr", { role: "row" }));
      cells.forEach((cell, column) => {
        const given = typeof cell === "object" ? cell : { text: cell };
        let target = row.cells[column];
        if (!target) row.append(target = node("td", { role: "cell", "data-label": heads[column] }));
        const key = [given.text, given.mark, given.colour].join("|");
        target.chosen = given.onclick;
        if (target.key === key) return;
        target.key = key;
        const parts = [];
        if (given.colour) parts.push(node("span", { class: "swatch " + given.colour }));
        if (given.mark) parts.push(node("span", { class: "state-" + given.level, "aria-hidden": "true" }, given.mark + " "));
        if (!given.onclick) parts.push(given.text);
        else parts.push(node("button", { type: "button", class: "link", onclick: () => target.chosen() }, given.text));
        target.replaceChildren(...parts);
      });
    });
  }
  function table(caption, heads, isWide) {
    const body = node("tbody", { role: "rowgroup" }); // roles are said, because a phone shows rows as cards
    const titles = heads.map((each) => node("th", { scope: "col", role: "columnheader" }, each));
    const head = node("thead", { role: "rowgroup" }, node("tr", { role: "row" }, ...titles));
    const whole = node("table", { class: isWide ? "cards" : null, role: "table" }, head, body);
    whole.prepend(node("caption", { class: "unseen" }, caption));
    return { body, heads, whole };
  }

  /* --- the history, ready for questions about a moment --- */
  function prepared(history) {
    const shards = new Map();
    for (const shard of history.shards) {
      const times = [];
      [...shard.records].forEach((digit, place) => {
        const at = history.writes[shard.first_write + place];
        for (let number = 0; number < Number(digit); number += 1) times.push(at);
      });
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
    const spans = spansOf(shards, workers), lanes = lanesOf(history, workers, names);
    return { history, shards, workers, names, colours: Draw.colours(names), spans, lanes };
  }
  /* The time of each owner, cut where its process begins or ends. */
  function spansOf(shards, workers) {
    const spans = [];
    for (const shard of shards.values()) {
      for (const { who, from, to } of shard.owners) {
        let since = from;
        const add = (until, isDead) => {
          const span = { shard: shard.shard, owner: who, from_micros: since * MICROS, to_micros: until * MICROS };
          if (until > since) spans.push({ ...span, is_dead: isDead });
          since = Math.max(since, until);
        };
        for (const life of (workers.get(who) || { lives: [] }).lives) {
          if (life.end <= since || life.started >= to) continue;
          add(Math.min(life.started, to), true);
          add(Math.min(life.end, to), false);
        }
        add(to, true);
      }
    }
    return spans;
  }
  function lanesOf(history, workers, names) {
    const micros = ({ shard, from, to }) => ({ shard, from_micros: from * MICROS, to_micros: to * MICROS });
    const faults = history.faults.map((fault) => ({
      at_micros: fault.at * MICROS,
      until_micros: (fault.at + fault.seconds) * MICROS,
      kind: fault.kind === "crash" ? "killed" : CHANGES.has(fault.kind) ? "change" : "fault",
      text: seconds(fault.at) + " " + fault.text,
    }));
    const lanes = names.map((name) => ({
      name,
      spans: workers.get(name).owned.map(micros),
      lives: workers.get(name).lives.map((life) => ({
        from_micros: life.started * MICROS,
        to_micros: life.end * MICROS,
        manner: life.manner,
        frozen: life.frozen.map(([since, until]) => [since * MICROS, until * MICROS]),
      })),
    }));
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
  function ownerAt(shard, at) {
    const found = shard.owners.find(({ from, to }) => from <= at && at < to);
    return found ? found.who : "";
  }
  function stateOf(worker, at) {
    const life = worker && worker.lives.filter((each) => each.started <= at).pop();
    if (!life) return "not there";
    if (life.ended !== null && life.ended <= at) return life.manner;
    return life.frozen.some(([since, until]) => since <= at && at < until) ? "frozen" : "running";
  }
  function shardAt(known, shard, at) {
    const stored = countUpTo(shard.stored, at), written = countUpTo(shard.times, at);
    const place = stored ? shard.places[stored - 1] : 0, isClosed = shard.closed !== null && shard.closed <= at;
    const end = isClosed ? shard.closed : at, owner = ownerAt(shard, at);
    const isRead = place >= written, state = owner ? stateOf(known.workers.get(owner), at) : "";
    const isFinished = place === Infinity;
    const readTo = isRead ? end : Math.min(shard.times[place], end);
    return { shard, written, place, owner, isFinished, state, readTo };
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
      const hasLeft = shard.left !== null && shard.left <= at;
      finished.set(shard.shard, facts.isFinished || hasLeft);
      written += facts.written;
      waiting += Math.max(facts.written - facts.place, 0);
      const word = situation(facts, finished);
      bands.push({
        shard: shard.shard, parents: shard.parents, low: shard.low, high: shard.high, is_range_known: true,
        opened_micros: shard.opened * MICROS,
        closed_micros: shard.closed === null ? null : shard.closed * MICROS,
        owner: facts.owner, read_to_micros: facts.readTo * MICROS, situation: word,
        moves: word !== "owner-dead" && word !== "owner-frozen",
      });
    }
    const story = { from_micros: 0, now_micros: at * MICROS, loss_micros: null, bands, spans: known.spans };
    return { story, written, waiting, finished };
  }

  /* --- words --- */
  function seconds(at) {
    return at.toFixed(1) + " s";
  }
  function lasting(total) {
    const minutes = Math.floor(total / 60);
    return (minutes ? minutes + " min " : "") + Math.round(total - minutes * 60) + " s";
  }
  function grouped(number) {
    return String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  }
  function address(history, at, shard) {
    const asked = new URLSearchParams({ seed: history.seed, at: at.toFixed(1) });
    if (shard) asked.set("shard", shard);
    return "#/history?" + asked;
  }
  /* The moment and the shard that an address asks for. */
  function asked(hash) {
    const given = new URLSearchParams(hash.split("?")[1] || ""), at = given.get("at");
    return { at: at !== null && isFinite(at) && at !== "" ? Number(at) : null, shard: given.get("shard") };
  }

  /* --- the page --- */
  function heading(history) {
    const broken = history.violation;
    const verdict = broken
      ? node("span", { class: "state-bad" }, "▲ law broken")
      : node("span", { class: "state-well" }, "● no law broken");
    const facts = [" · " + grouped(history.handled) + " events · " + lasting(history.seconds) + " of simulated time"];
    if (history.digest) facts.push(" · digest ", node("code", null, history.digest));
    const title = node("h1", { tabindex: "-1" }, "History of seed " + history.seed);
    return node("header", null, title, node("p", { class: "facts" }, verdict, ...facts));
  }
  function violationCard(view, broken) {
    const where = broken.shard ? " of " + broken.shard : "";
    const title = node("h2", null, "The law “" + broken.law + "”" + where + " is broken");
    const lead = () => go(view, broken.at, broken.shard || null);
    const button = node("button", { type: "button", onclick: lead }, "Go to " + broken.at.toFixed(3) + " s");
    return node("section", { class: "card broken" }, title, node("p", null, broken.text), button);
  }
  function build(element, history) {
    const view = { element, history, known: prepared(history), hidden: new Set() };
    Object.assign(view, { at: 0, shard: null, timer: null, speed: 10 });
    const parts = (view.parts = {
      play: node("button", { type: "button", class: "primary", onclick: () => (view.timer ? pause : play)(view) }, "Play"),
      time: node("output", { class: "time" }),
      slider: node("input", { type: "range", min: "0", max: history.seconds, step: "any", "aria-label": "Moment" }),
      speed: node("select", { "aria-label": "Speed" }),
      link: node("a", { class: "button" }, "Link to this moment"),
      status: node("p", { role: "status", class: "unseen" }),
      lanes: node("div", { class: "drawing" }),
      river: node("div", { class: "drawing" }),
      list: node("ol"),
      counts: node("p"),
      records: node("div"),
      workers: table("Workers", ["Worker", "Is", "Reads", "Owns only"], true),
      shards: table("Shards", ["Shard", "Opened", "Closed", "Owner", "Read to", "Situation"], true),
    });
    parts.events = node("div", { class: "events", tabindex: "0", role: "group", "aria-label": "List of events" }, parts.list);
    parts.all = node("details", { class: "card" }, node("summary", null, "Shards as a table"), parts.shards.whole);
    parts.speed.append(...SPEEDS.map((each) => node("option", { value: each }, each + "×")));
    parts.speed.value = view.speed;
    element.replaceChildren(
      heading(history),
      ...(history.violation ? [violationCard(view, history.violation)] : []),
      node("section", { class: "card", "aria-label": "Drawings" }, toolbar(view), parts.lanes, parts.river, legend()),
      node("div", { class: "player-columns" }, eventsCard(view), node("div", null,
        node("section", { class: "card" }, node("h2", null, "At this moment"), parts.counts, parts.workers.whole),
        node("section", { class: "card" }, node("h2", null, "Records of one shard"), parts.records))),
      parts.all, parts.status);
    parts.all.addEventListener("toggle", () => render(view));
    parts.slider.addEventListener("input", () => go(view, Number(parts.slider.value)));
    parts.speed.addEventListener("change", () => { view.speed = Number(parts.speed.value); });
    parts.lanes.addEventListener("pointerdown", (event) => drag(view, event));
    parts.river.addEventListener("pointerdown", (event) => {
      if (!event.target.classList.contains("band-button")) drag(view, event);
    });
    return view;
  }
  function toolbar(view) {
    const { play, time, slider, speed, link } = view.parts;
    const before = node("button", { type: "button", "aria-label": "Event before", onclick: () => step(view, -1) }, "‹");
    const after = node("button", { type: "button", "aria-label": "Next event", onclick: () => step(view, 1) }, "›");
    const bar = node("div", { class: "toolbar", role: "group", "aria-label": "Player" });
    bar.append(before, play, after, time, slider, speed, link);
    return bar;
  }
  function legend() {
    const sign = (mark, kind) => (mark ? node("b", { class: kind, "aria-hidden": "true" }, mark + " ") : "");
    const item = (mark, kind, text) => node("li", null, sign(mark, kind), text);
    return node("ul", { class: "legend" },
      item("✕", "fault-killed", "killed"), item("▼", "fault-fault", "fault; its band is how long"),
      item("◆", "fault-change", "split, merge, start, stop, order"), item("", "", "hatched: the worker is not there"),
      item("", "", "below: solid is stored as read, pale waits, a red frame has a dead or frozen owner"));
  }
  function eventsCard(view) {
    const { events, events_left_out: left } = view.history, { events: box, list } = view.parts;
    view.times = events.map((event) => event[0]);
    view.rows = [];
    const rows = () => events.map(([at, who, kind, shard, text], place) => {
      const row = node("li", { class: kind });
      row.append(node("time", null, at.toFixed(1)), node("span", { class: "who" }, who));
      row.append(node("span", { class: "what" }, (shard ? shard + " " : "") + text));
      row.place = place;
      return row;
    });
    requestAnimationFrame(() => setTimeout(() => { // after the first picture, which does not wait for the list
      list.append(...(view.rows = rows()));
      view.place = undefined;
      renderEvents(view);
    }));
    list.addEventListener("click", (event) => {
      const row = event.target.closest("li");
      if (row) go(view, events[row.place][0], events[row.place][3] || view.shard);
    });
    const filters = FILTERS.map(([kind, name]) => node("button", {
      type: "button", class: "chip", "aria-pressed": "true",
      onclick: (event) => {
        const isHidden = !view.hidden.has(kind);
        view.hidden[isHidden ? "add" : "delete"](kind);
        set(event.currentTarget, "aria-pressed", String(!isHidden));
        box.classList.toggle("without-" + kind, isHidden);
      },
    }, name));
    const chips = node("div", { class: "chips", role: "group", "aria-label": "Kinds of events" }, ...filters);
    const card = node("section", { class: "card" }, node("div", { class: "card-head" }, node("h2", null, "Events"), chips));
    if (left) {
      const words = grouped(left) + " events are left out: of the least important kinds, and the oldest of these.";
      card.append(node("p", { class: "note" }, words));
    }
    card.append(box);
    return card;
  }

  /* --- moving --- */
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
    view.wanted = place;
    go(view, events[place][0]);
    const [at, who, , shard, text] = events[place];
    say(view.parts.status, [seconds(at), who, shard, text].join(" "));
  }
  function play(view) {
    if (view.at >= view.history.seconds) view.at = 0;
    let last = performance.now();
    say(view.parts.play, "Pause");
    const turn = (now) => {
      if (!isThere(view)) return pause(view);
      view.timer = requestAnimationFrame(turn);
      const at = view.at + ((now - last) / 1000) * view.speed;
      last = now;
      go(view, at);
      if (view.at >= view.history.seconds) pause(view);
    };
    view.timer = requestAnimationFrame(turn);
  }
  function pause(view) {
    if (view.timer) cancelAnimationFrame(view.timer);
    view.timer = null;
    say(view.parts.play, "Play");
  }
  function gutter(view) {
    return view.element.clientWidth < 560 ? NARROW_GUTTER : GUTTER;
  }
  function drag(view, event) {
    pause(view);
    const target = event.currentTarget;
    const move = (moved) => go(view, Draw.moment(target, moved.clientX, view.known.lanes, gutter(view)) / MICROS);
    target.setPointerCapture(event.pointerId);
    move(event);
    target.addEventListener("pointermove", move);
    const end = () => target.removeEventListener("pointermove", move);
    target.addEventListener("pointerup", end, { once: true });
    target.addEventListener("pointercancel", end, { once: true });
  }
  /* Whether the player is still on the page: the console may have put another page into its element. */
  function isThere(view) {
    return view.parts.play.isConnected;
  }
  document.addEventListener("keydown", (event) => {
    const view = shown, tag = event.target.tagName;
    if (!view || !isThere(view) || event.altKey || event.ctrlKey || event.metaKey || tag === "SELECT") return;
    if (event.key === " " && !["BUTTON", "A", "SUMMARY"].includes(tag)) view.timer ? pause(view) : play(view);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") step(view, event.key === "ArrowLeft" ? -1 : 1);
    else return;
    event.preventDefault();
  });

  /* --- a moment --- */
  function render(view) {
    const { known, parts, at } = view, { story, written, waiting, finished } = storyAt(known, at);
    const { until_micros } = known.lanes;
    const options = { gutter: gutter(view), colours: known.colours, until_micros, now_micros: at * MICROS };
    const label = (micros) => seconds(micros / MICROS);
    Draw.lanes(parts.lanes, known.lanes, { ...options, name: "Faults, and for each worker its lives and leases" });
    Draw.river(parts.river, story, {
      ...options, label, height: known.shards.size > 40 ? 420 : 280, chosen: view.shard,
      onShard: (name) => go(view, view.at, name),
    });
    say(parts.time, seconds(at));
    parts.slider.value = at;
    set(parts.slider, "aria-valuetext", seconds(at));
    set(parts.link, "href", address(view.history, at, view.shard));
    const [all, read, left] = [written, written - waiting, waiting].map(grouped);
    say(parts.counts, all + " records written, " + read + " stored as read, " + left + " wait.");
    fill(parts.workers.body, parts.workers.heads, known.names.map((name) => workerRow(view, name, finished)));
    if (parts.all.open) {
      const chooses = (shard) => ({ text: shard, onclick: () => go(view, view.at, shard) });
      const rows = Draw.table(story, label).map(([shard, ...rest]) => [chooses(shard), ...rest]);
      fill(parts.shards.body, parts.shards.heads, rows);
    }
    renderEvents(view);
    renderRecords(view);
  }
  function workerRow(view, name, finished) {
    const worker = view.known.workers.get(name), state = stateOf(worker, view.at);
    const at = ({ from, to }) => from <= view.at && (view.at < to || to >= view.history.seconds);
    const owns = worker.owned.filter(at).map((span) => span.shard).filter((shard) => !finished.get(shard));
    const isThereNow = state === "running" || state === "frozen", isJava = worker.lives[0].client === "java";
    const found = isJava ? owns : worker.read.filter(at).map((span) => span.shard); // a Java worker tells no readers
    const reads = isThereNow ? [...new Set(found)] : [];
    const list = (shards) => (shards.length > MOST_NAMES ? shards.length + " shards" : shards.sort().join(" ")) || "–";
    const [mark, level] = STATES[state], colour = "owner-" + view.known.colours.get(name);
    const only = owns.filter((shard) => !reads.includes(shard));
    return [{ text: name, colour }, { text: state, mark, level }, list(reads), list(only)];
  }
  function renderEvents(view) {
    const { events } = view.history, latest = countUpTo(view.times, view.at + 0.004) - 1;
    const isWanted = view.wanted !== undefined && Math.abs(events[view.wanted][0] - view.at) < 0.005;
    const place = isWanted ? view.wanted : latest;
    view.wanted = undefined;
    if (place === view.place) return;
    if (view.rows[view.place]) view.rows[view.place].removeAttribute("aria-current");
    view.place = place;
    const row = view.rows[place];
    if (!row) return;
    row.setAttribute("aria-current", "true");
    const box = view.parts.events;
    box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight * 0.6;
  }
  function renderRecords(view) {
    const target = view.parts.records, shard = view.known.shards.get(view.shard);
    if (!shard) {
      view.records = null;
      if (!target.querySelector(".note")) target.replaceChildren(node("p", { class: "note" }, CHOOSE));
      return;
    }
    if (!view.records) {
      view.records = { text: node("p"), ...table("Records", ["Record", "Written", "Stored as read", "By"]) };
      target.replaceChildren(view.records.text, view.records.whole);
    }
    const facts = shardAt(view.known, shard, view.at), first = Math.max(facts.written - MOST_RECORDS, 0), rows = [];
    for (let record = facts.written - 1; record >= first; record -= 1) {
      const stored = shard.places.findIndex((place, number) => place > record && shard.stored[number] <= view.at);
      const at = shard.stored[stored], end = stored < 0 ? ["waits", "–"] : [seconds(at), ownerAt(shard, at) || "–"];
      rows.push([String(record), seconds(shard.times[record]), ...end]);
    }
    const from = shard.parents.length ? ", from " + shard.parents.join(" and ") : "";
    const counts = facts.written + " records written, " + Math.min(facts.place, facts.written) + " stored as read";
    say(view.records.text, shard.shard + from + ": " + counts + (first ? "; the newest " + MOST_RECORDS + ":" : ":"));
    fill(view.records.body, view.records.heads, rows);
  }

  function show(element, history, given) {
    const { at = null, shard = null } = given || {};
    if (!shown || shown.element !== element || shown.history !== history || !isThere(shown)) {
      if (shown) pause(shown);
      shown = build(element, history);
    }
    const broken = at === null ? history.violation : null;
    go(shown, at !== null ? at : broken ? broken.at : history.seconds, shard || (broken ? broken.shard : null));
  }

  return { show, asked };
})();
