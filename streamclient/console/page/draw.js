"use strict";
/* Nodes and drawings of the console and of the player. Only DOM calls make them, and a repeated call changes only parts that differ. */
const Nodes = (() => {
  const SPOKEN = new Set(["title", "aria-label", "aria-valuetext", "data-label"]), BRIEF = 24; // SPOKEN: attributes whose text people read
  /* The text with control and direction marks escaped. Unescaped, they would move or hide the characters beside them. */
  function shown(text) {
    return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu,
      (mark) => "\\u" + mark.codePointAt(0).toString(16).padStart(4, "0"));
  }
  /* A node. Attributes and children that are null, undefined or false are left out. Functions become event listeners. */
  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (typeof value === "function") node.addEventListener(name, value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, SPOKEN.has(name) ? shown(value) : value);
    }
    for (const child of children.flat(5)) if (child !== null && child !== undefined && child !== false) node.append(child.nodeType ? child : shown(child));
    return node;
  }
  /* Changes the children of `parent` to the nodes `wanted`. A child that is the same node type and id is kept and updated. */
  function morph(parent, wanted) {
    let next = parent.firstChild;
    for (const node of wanted) {
      if (node === next) { next = next.nextSibling; continue; }
      if (!next || !same(next, node)) { parent.insertBefore(node, next); continue; }
      if (node.nodeType === 3) { if (next.data !== node.data) next.data = node.data; } else if (!next.hasAttribute("data-keep")) {
        for (const { name } of [...next.attributes]) if (!node.hasAttribute(name)) next.removeAttribute(name);
        for (const { name, value } of node.attributes) if (next.getAttribute(name) !== value) next.setAttribute(name, value);
        morph(next, [...node.childNodes]);
      }
      next = next.nextSibling;
    }
    while (next) { const after = next.nextSibling; next.remove(); next = after; }
  }
  const same = (old, node) => old.nodeName === node.nodeName && (node.nodeType === 3 || (old.getAttribute("data-id") === node.getAttribute("data-id")));
  /* A table of rows {id, cells, kind, keep}. "#" before a title marks numbers. Roles are explicit, because CSS shows rows as cards if narrow.
     heading(title, index) may return a button for a title. order(index) returns the sorting of its column for `aria-sort`. */
  function table(titles, rows, { empty = "Nothing.", chosen, name, heading = (title) => title, order = () => null } = {}) {
    if (!rows.length) return el("p", { class: "soft" }, empty);
    const texts = titles.map((title) => title.replace("#", "")), kind = (index) => (titles[index].startsWith("#") ? "number" : null);
    const head = texts.map((text, index) => el("th", { role: "columnheader", scope: "col", class: kind(index), "aria-sort": order(index) },
      heading(text, index)));
    const cellOf = (cell, index) => {
      const node = el("td", { role: "cell", class: kind(index), "data-label": texts[index] }, cell);
      if (node.textContent.length <= BRIEF) node.classList.add("brief"); // short texts are not broken into lines
      return node;
    };
    const body = rows.map((row) => el("tr", { role: "row", "data-id": row.id, "data-keep": row.keep,
      class: row.kind || (chosen && row.id === chosen ? "chosen" : null) }, row.cells.map(cellOf)));
    return el("table", { class: titles.length > 4 ? "cards" : null, role: "table", "aria-label": name },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" }, body));
  }
  /* A whole number as text, in groups of three digits. An unknown number is a dash. */
  const number = (value) => value === null || value === undefined ? "–" : String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return { shown, el, morph, table, number };
})();
/* Drawings: rivers of shards, lanes of workers, squares and lines. Times are microseconds since any time that the caller chooses. */
const Draw = (() => {
  const SVG = "http://www.w3.org/2000/svg", OWNER_COLOURS = 8;
  const MOST_BUTTONS = 60; // with more, the way by Tab is too long; a table shows the same shards
  const RIVER_LAYERS = ["defs", "ground", "bands", "spans", "dead", "waits", "frames", "dots", "labels", "buttons", "axis", "head"];
  const LANE_LAYERS = ["defs", "ground", "lives", "spans", "ends", "axis", "faults", "head"];
  const RIVER_NAME = "Shards: keys from top to bottom, time from left to right. The table says the same.";
  const AXIS_HEIGHT = 18, FAULTS_HEIGHT = 20, LABEL_HEIGHT = 13, CHARACTER = 7, LINE_HEIGHT = 130, SQUARE = 12, SQUARE_STEP = 15;
  const drawings = new WeakMap(); // for each element, the state of its drawing
  let hatches = 0;
  /* --- nodes --- */
  function made(tag, attributes) {
    const node = document.createElementNS(SVG, tag);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    return node;
  }
  function drawing(element, draw, kind, name, layers) {
    let state = drawings.get(element);
    if (!state) {
      state = { svg: made("svg", { class: kind, role: "img" }), nodes: new Map(), layers: new Map(), round: 0, width: 0 };
      element.replaceChildren(state.svg); drawings.set(element, state);
      new ResizeObserver(() => { if (element.clientWidth && element.clientWidth !== state.width) state.draw(); }).observe(element);
      for (const each of layers) state.svg.append(state.layers.set(each, made("g", { class: "layer-" + each })).get(each));
    }
    if (state.svg.getAttribute("aria-label") !== name) state.svg.setAttribute("aria-label", name);
    return Object.assign(state, { draw, round: state.round + 1, width: element.clientWidth || 600 });
  }
  function put(state, where, key, tag, attributes, text, title) {
    const id = where + " " + key;
    let entry = state.nodes.get(id);
    if (!entry) {
      entry = { node: made(tag), attributes: {} }; state.layers.get(where).append(entry.node);
      state.nodes.set(id, entry);
    }
    entry.round = state.round;
    for (const name in attributes) {
      const value = typeof attributes[name] === "number" ? Math.round(attributes[name] * 10) / 10 : attributes[name];
      if (entry.attributes[name] === value) continue;
      entry.attributes[name] = value;
      if (value === null) entry.node.removeAttribute(name);
      else entry.node.setAttribute(name, name === "aria-label" ? Nodes.shown(value) : value);
    }
    if (text !== undefined && entry.text !== text) entry.node.textContent = Nodes.shown(entry.text = text);
    if (title !== undefined && entry.title !== title) {
      entry.node.replaceChildren(made("title")); entry.node.firstChild.textContent = Nodes.shown(entry.title = title);
    }
    return entry.node;
  }
  function finish(state, height) {
    for (const [id, entry] of state.nodes) if (entry.round !== state.round && state.nodes.delete(id)) entry.node.remove();
    const size = state.width + " " + height;
    if (state.size === size) return;
    state.size = size;
    for (const [name, value] of [["width", state.width], ["height", height], ["viewBox", "0 0 " + size]]) state.svg.setAttribute(name, value);
  }
  /* --- words --- */
  const time = (micros) => new Date(micros / 1000).toISOString().slice(11, 19);
  const short = (name, most = 12) => name.length <= most ? name : most > 12 ? name.slice(0, most - 1) + "…" : name.slice(0, 8);
  function owners(story) { // the names of all owners, in the order of their colours
    return [...new Set([...story.spans, ...story.bands].map((each) => each.owner))].filter(Boolean).sort();
  }
  const colours = (names) => new Map(names.map((name, place) => [name, place % OWNER_COLOURS]));
  const hasEnded = (band, story) => band.closed_micros !== null && band.closed_micros <= story.now_micros;
  function words(band, story, label) {
    const parts = [band.shard, "opened " + (band.opened_micros === null ? "before" : label(band.opened_micros))];
    if (hasEnded(band, story)) parts.push("closed " + label(band.closed_micros));
    parts.push(band.owner ? "owner " + band.owner : "no owner", "read to " + readTo(band, story, label));
    return [...parts, ...(band.situation ? [band.situation] : [])].join(", ");
  }
  function readTo(band, story, label) {
    if (band.read_to_micros === null) return "–";
    return band.read_to_micros < (hasEnded(band, story) ? band.closed_micros : story.now_micros) ? label(band.read_to_micros) : "the end";
  }
  /* --- axis --- */
  function scale(state, given, options) {
    const left = options.gutter || 0, from = given.from_micros, until = options.until_micros || given.until_micros || given.now_micros;
    const width = Math.max(state.width - left - 2, 10);
    return Object.assign((micros) => left + (width * (micros - from)) / Math.max(until - from, 1), { left, right: left + width, from, until });
  }
  function axis(state, x, top, label) {
    const ticks = [6, 2].find((each) => x.right - x.left >= each * 13 * CHARACTER) || 1; // a label has 8 characters; the first one is not centred
    for (let tick = 0; tick <= ticks; tick += 1) {
      const at = x.from + ((x.until - x.from) * tick) / ticks, anchor = tick === 0 ? "start" : tick === ticks ? "end" : "middle";
      put(state, "axis", tick + "/" + ticks, "text", { x: x(at), y: top, "text-anchor": anchor }, label(at));
    }
  }
  function playhead(state, x, now, height) {
    if (now < x.until) put(state, "head", "future", "rect", { class: "future", x: x(now), y: 0, width: Math.max(x.right - x(now), 0), height });
    put(state, "head", "line", "line", { class: "playhead", x1: x(now), x2: x(now), y1: 0, y2: height });
  }
  function hatch(state) {
    if (!state.hatch) state.hatch = "hatch-" + (hatches += 1);
    const pattern = put(state, "defs", "hatch", "pattern",
      { id: state.hatch, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    if (!pattern.firstChild) pattern.append(made("rect", { class: "hatch-line", width: 2, height: 8 }));
  }
  /* --- the river --- */
  function river(element, story, options = {}) {
    const from = Math.max(story.from_micros, options.minutes ? story.now_micros - options.minutes * 6e7 : story.from_micros);
    const state = drawing(element, () => river(element, story, options), "river", options.name || RIVER_NAME, RIVER_LAYERS);
    const height = options.height || 280, label = options.label || time, now = story.now_micros, places = new Map();
    const x = scale(state, { ...story, from_micros: from }, options), colour = options.colours || colours(owners(story));
    hatch(state);
    put(state, "ground", "all", "rect", { class: "river-ground", x: x.left, y: 0, width: x.right - x.left, height });
    const areButtons = Boolean(options.onShard) && story.bands.length <= MOST_BUTTONS;
    state.svg.setAttribute("role", areButtons ? "group" : "img");
    for (const band of story.bands) {
      const begin = Math.max(band.opened_micros === null ? from : band.opened_micros, from);
      const end = Math.min(hasEnded(band, story) ? band.closed_micros : now, now);
      if (end < begin) continue;
      const gap = height * (band.high - band.low) > 4 ? 1 : 0;
      const size = { width: x(end) - x(begin) - gap, height: height * (band.high - band.low) - gap };
      const box = { x: x(begin), y: height * band.low, width: Math.max(size.width, 0.5), height: Math.max(size.height, 0.5) };
      places.set(band.shard, { ...box, begin, end });
      drawBand(state, band, story, { box, begin, end }, x, options, label, areButtons);
    }
    drawSpans(state, story.spans, places, x, colour);
    for (const [number, dot] of (options.dots || []).entries()) {
      const place = places.get(dot.shard);
      if (place && dot.at_micros >= from) put(state, "dots", number, "circle",
        { class: dot.colour ? null : "dot", cx: x(dot.at_micros), cy: place.y + place.height / 2, r: 3, fill: dot.colour || null });
    }
    const loss = story.loss_micros;
    if (loss !== null && loss > from) put(state, "head", "loss", "line", { class: "loss", x1: x(loss), x2: x(loss), y1: 0, y2: height });
    playhead(state, x, now, height); axis(state, x, height + 13, label);
    if (x.left > 30) put(state, "axis", "keys", "text", { x: 0, y: 12 }, "keys");
    finish(state, height + AXIS_HEIGHT);
  }
  function drawBand(state, band, story, place, x, options, label, isButton) {
    const key = band.shard, { box } = place, { y, height } = box;
    const kinds = (hasEnded(band, story) ? " band-closed" : "") + (band.opened_micros === null ? " band-torn" : "");
    put(state, "bands", key, "rect", { class: "band" + kinds, ...box });
    if (band.read_to_micros !== null && band.read_to_micros < place.end) {
      const left = Math.max(x(band.read_to_micros), box.x);
      put(state, "waits", key, "rect", { class: "band-waits", x: left, y, width: Math.max(box.x + box.width - left, 0.5), height });
    }
    if (!band.moves) put(state, "frames", key, "rect", { class: "band-stuck", ...box });
    if (options.chosen === key) put(state, "frames", "chosen", "rect", { class: "band-chosen", ...box });
    const text = short(key);
    if (height >= LABEL_HEIGHT && box.width > text.length * CHARACTER + 10) {
      put(state, "labels", key, "text", { x: box.x + 6, y: y + Math.min(height / 2 + 4, 17) }, text);
    }
    if (!options.onShard) return;
    const says = { role: "button", tabindex: 0, "aria-label": "", "aria-pressed": String(options.chosen === key) };
    if (isButton) says["aria-label"] = words(band, story, label);
    else for (const attribute in says) says[attribute] = null;
    const button = put(state, "buttons", key, "rect", { class: "band-button", ...box, ...says });
    button.onclick = () => options.onShard(key);
    button.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault(); event.stopPropagation(); options.onShard(key);
    };
  }
  function drawSpans(state, spans, places, x, colour) {
    for (const span of spans) {
      const place = places.get(span.shard);
      if (!place) continue;
      const begin = Math.max(span.from_micros, place.begin), end = Math.min(span.to_micros, place.end), left = x(begin);
      const width = Math.min(x(end) - left, place.x + place.width - left);
      if (end <= begin || width <= 0) continue;
      const box = { x: left, y: place.y, width, height: place.height }, key = span.shard + " " + span.from_micros;
      put(state, "spans", key, "rect", { class: "band owner-" + colour.get(span.owner), ...box });
      if (span.is_dead) put(state, "dead", key, "rect", { class: "band-dead", fill: "url(#" + state.hatch + ")", ...box });
    }
  }
  function table(story, label = time) {
    return story.bands.map((band) => [band.shard, band.opened_micros === null ? "–" : label(band.opened_micros),
      hasEnded(band, story) ? label(band.closed_micros) : "", band.owner || "–", readTo(band, story, label), band.situation || "–"]);
  }
  /* --- lanes --- */
  /* given: {from_micros, until_micros, lanes: [{name, lives: [{from_micros, to_micros, manner, frozen}], spans}], faults};
     options: {now_micros, gutter, colours, name, label}. If `given` is unchanged, only the playhead moves. */
  function lanes(element, given, options) {
    const state = drawing(element, () => lanes(element, given, options), "lanes", options.name, LANE_LAYERS);
    const x = scale(state, given, options), most = given.lanes.length > 8 ? 16 : 32, top = given.faults.length ? FAULTS_HEIGHT : 2;
    const height = top + given.lanes.length * (most + 6) + 4;
    if (state.given !== given || state.drawnWidth !== state.width) {
      Object.assign(state, { given, drawnWidth: state.width }); hatch(state);
      if (x.left > 30 && given.faults.length) put(state, "axis", "faults", "text", { x: 0, y: 13 }, "faults");
      given.lanes.forEach((lane, place) => drawLane(state, lane, top + place * (most + 6), most, x, options));
      given.faults.forEach((fault, place) => drawFault(state, fault, place, x));
      if (options.label) axis(state, x, height + 11, options.label);
    } else {
      for (const [id, entry] of state.nodes) entry.round = id.startsWith("head ") ? 0 : state.round;
    }
    playhead(state, x, options.now_micros, height); finish(state, height + (options.label ? AXIS_HEIGHT : 0));
  }
  function drawLane(state, lane, top, height, x, options) {
    const colour = "owner-" + options.colours.get(lane.name), most = Math.max(12, Math.floor(x.left / CHARACTER) - 1);
    if (x.left > 30) put(state, "axis", lane.name, "text", { x: 0, y: top + height / 2 + 4 }, short(lane.name, most));
    const whole = { x: x.left, y: top, width: x.right - x.left, height };
    put(state, "ground", lane.name, "rect", { class: "lane", fill: "url(#" + state.hatch + ")", ...whole });
    lane.lives.forEach((life, place) => {
      const key = lane.name + " " + place, left = x(life.from_micros), end = x(life.to_micros);
      put(state, "lives", key, "rect", { class: "life", x: left, y: top, width: Math.max(end - left, 1), height });
      life.frozen.forEach(([since, until], number) => {
        const width = Math.max(x(Math.min(until, life.to_micros)) - x(since), 1);
        put(state, "lives", key + " " + number, "rect", { class: "life-frozen", x: x(since), y: top, width, height });
      });
      if (life.manner === "killed" || life.manner === "died") put(state, "ends", key, "path",
        { class: "killed", d: cross(end, top + height / 2, Math.min(height / 2, 5)) });
    });
    const slots = slotsOf(lane.spans), size = Math.max(Math.min((height - 4) / Math.max(slots.count, 1), 7), 0.8);
    lane.spans.forEach((span, place) => {
      const left = x(span.from_micros), width = Math.max(x(span.to_micros) - left, 2), y = top + 2 + slots.of[place] * size;
      put(state, "spans", lane.name + " " + place, "rect", { class: colour, x: left, y, width, height: Math.max(size - 1, 0.7) });
    });
  }
  function slotsOf(spans) {
    const ends = [], of = [];
    spans.forEach((span) => {
      let slot = ends.findIndex((end) => end <= span.from_micros);
      if (slot < 0) slot = ends.length;
      ends[slot] = Math.max(span.to_micros, span.from_micros + 1); of.push(slot);
    });
    return { count: ends.length, of };
  }
  function drawFault(state, fault, place, x) {
    const at = x(fault.at_micros), middle = 9;
    if (fault.until_micros > fault.at_micros) put(state, "faults", place + " lasts", "rect",
      { class: "fault-lasts", x: at, y: 1, width: Math.max(x(fault.until_micros) - at, 1), height: 16 });
    const diamond = polygon([at, middle - 5], [at + 4, middle], [at, middle + 5], [at - 4, middle]);
    const triangle = polygon([at - 5, middle - 4], [at + 5, middle - 4], [at, middle + 5]);
    const shape = { killed: cross(at, middle, 4), change: diamond, fault: triangle }[fault.kind];
    put(state, "faults", place, "path", { class: "fault-" + fault.kind, d: shape }, undefined, fault.text);
  }
  const polygon = (...points) => "M" + points.map((point) => point.map((each) => each.toFixed(1))).join("L") + "Z";
  function cross(x, y, size) {
    const [left, right, top, bottom] = [x - size, x + size, y - size, y + size].map((each) => each.toFixed(1));
    return "M" + [left, top] + "L" + [right, bottom] + "M" + [left, bottom] + "L" + [right, top];
  }
  /* The time that a drawing with this gutter shows at the horizontal position `clientX` of the screen. */
  function moment(element, clientX, given, gutter) {
    const box = element.getBoundingClientRect(), width = Math.max(box.width - gutter - 2, 10);
    return given.from_micros + Math.min(Math.max((clientX - box.left - gutter) / width, 0), 1) * (given.until_micros - given.from_micros);
  }
  /* --- squares and lines --- */
  /* groups: [[name, [{shard, level, text}]]]. A full square is a shard that moves; a half square waits; a crossed one does not move. */
  function squares(element, groups, options) {
    const state = drawing(element, () => squares(element, groups, options), "squares", options.name, ["squares", "signs", "labels"]);
    const gutter = state.width < 560 ? 0 : 130, across = Math.max(Math.floor((state.width - gutter) / SQUARE_STEP), 1);
    let top = 0;
    for (const [name, shards] of groups) {
      put(state, "labels", name, "text", { x: 0, y: top + 10 }, short(name, 18));
      if (!gutter) top += 16;
      shards.forEach(({ shard, level, text }, place) => {
        const x = gutter + (place % across) * SQUARE_STEP, y = top + Math.floor(place / across) * SQUARE_STEP;
        const box = { x: x + 0.5, y: y + 0.5, width: SQUARE, height: SQUARE };
        const square = put(state, "squares", shard, "rect", { class: "square " + level, ...box }, undefined, text);
        square.onclick = () => options.onShard(shard);
        if (level === "bad") put(state, "signs", shard, "path", { class: "killed", d: cross(x + 6.5, y + 6.5, 3) });
        if (level === "warn") put(state, "signs", shard, "rect", { class: "square-half", x: x + 0.5, y: y + 6.5, width: SQUARE, height: SQUARE / 2 });
      });
      top += Math.max(Math.ceil(shards.length / across), 1) * SQUARE_STEP + 5;
    }
    finish(state, top);
  }
  /* points: [[micros, seconds or null]...]. The line has a gap where the seconds are unknown. */
  function line(element, points, options) {
    const state = drawing(element, () => line(element, points, options), "line", options.name, ["ground", "line", "labels", "axis"]);
    const most = Math.max(...points.map((point) => point[1] || 0), 1), x = scale(state, { from_micros: points[0][0], now_micros: points.at(-1)[0] }, options);
    const y = (seconds) => LINE_HEIGHT - 2 - ((LINE_HEIGHT - 24) * seconds) / most;
    let path = "", isDown = false;
    for (const [micros, seconds] of points) {
      if (seconds !== null) path += (isDown ? "L" : "M") + x(micros).toFixed(1) + "," + y(seconds).toFixed(1) + (isDown ? "" : "h0.1");
      isDown = seconds !== null;
    }
    put(state, "ground", "all", "rect", { class: "river-ground", x: 0, y: 0, width: state.width, height: LINE_HEIGHT });
    put(state, "ground", "most", "line", { class: "most", x1: 0, x2: state.width, y1: y(most), y2: y(most) });
    put(state, "line", "path", "path", { class: "line-path", d: path });
    put(state, "labels", "most", "text", { x: 4, y: y(most) - 5 }, options.text(most));
    axis(state, x, LINE_HEIGHT + 13, options.label || time); finish(state, LINE_HEIGHT + AXIS_HEIGHT);
  }
  return { river, owners, table, time, lanes, moment, colours, short, squares, line };
})();
