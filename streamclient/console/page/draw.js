"use strict";
/* The drawings of the console: the river of a stream, the lanes of workers. Texts and nodes are made by DOM calls
   alone, and a repeated call changes only what differs. Times are microseconds; their zero is the caller's. */
const Draw = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const OWNER_COLOURS = 8;
  const MOST_BUTTONS = 60; // more would make the way through a page by Tab endless; the table says the same
  const RIVER_LAYERS = [
    "defs", "ground", "bands", "spans", "dead", "waits", "frames", "dots", "labels", "buttons", "axis", "head",
  ];
  const LANE_LAYERS = ["defs", "ground", "lives", "spans", "ends", "axis", "faults"];
  const RIVER_NAME = "Shards: keys from top to bottom, time from left to right. The table says the same.";
  const AXIS_HEIGHT = 18, FAULTS_HEIGHT = 20, LABEL_HEIGHT = 13, CHARACTER = 7;
  const drawings = new WeakMap(); // element -> what was drawn into it
  let hatches = 0;

  /* --- nodes --- */
  function drawing(element, draw) {
    let state = drawings.get(element);
    if (!state) {
      element.replaceChildren();
      const svg = document.createElementNS(SVG, "svg");
      element.append(svg);
      state = { element, svg, nodes: new Map(), layers: new Map(), round: 0, width: 0 };
      drawings.set(element, state);
      new ResizeObserver(() => {
        if (element.clientWidth && element.clientWidth !== state.width) state.draw();
      }).observe(element);
    }
    state.draw = draw;
    state.round += 1;
    state.width = element.clientWidth || 600;
    return state;
  }
  function layer(state, name) {
    let group = state.layers.get(name);
    if (!group) {
      group = document.createElementNS(SVG, "g");
      group.setAttribute("class", "layer-" + name);
      state.svg.append(group);
      state.layers.set(name, group);
    }
    return group;
  }
  function put(state, where, key, tag, attributes, text) {
    const id = where + " " + key;
    let entry = state.nodes.get(id);
    if (!entry) {
      entry = { node: document.createElementNS(SVG, tag), attributes: {}, text: undefined };
      layer(state, where).append(entry.node);
      state.nodes.set(id, entry);
    }
    entry.round = state.round;
    for (const name in attributes) {
      let value = attributes[name];
      if (typeof value === "number") value = Math.round(value * 10) / 10;
      if (entry.attributes[name] === value) continue;
      entry.attributes[name] = value;
      if (value === null) entry.node.removeAttribute(name);
      else entry.node.setAttribute(name, value);
    }
    if (text !== undefined && entry.text !== text) entry.node.textContent = entry.text = text;
    return entry.node;
  }
  function finish(state, height) {
    for (const [id, entry] of state.nodes) {
      if (entry.round !== state.round) {
        entry.node.remove();
        state.nodes.delete(id);
      }
    }
    const size = state.width + " " + height;
    if (state.size !== size) {
      state.size = size;
      state.svg.setAttribute("width", state.width);
      state.svg.setAttribute("height", height);
      state.svg.setAttribute("viewBox", "0 0 " + size);
    }
  }

  /* --- words --- */
  function time(micros) {
    return new Date(micros / 1000).toISOString().slice(11, 19);
  }
  function short(name) {
    return name.length > 12 ? name.slice(0, 8) : name;
  }
  function owners(story) {
    const names = new Set(story.spans.map((span) => span.owner));
    story.bands.forEach((band) => names.add(band.owner));
    names.delete("");
    return [...names].sort();
  }
  function colours(names) {
    return new Map(names.map((name, place) => [name, place % OWNER_COLOURS]));
  }
  function hasEnded(band, story) {
    return band.closed_micros !== null && band.closed_micros <= story.now_micros;
  }
  function words(band, story, label) {
    const parts = [band.shard, "opened " + (band.opened_micros === null ? "before" : label(band.opened_micros))];
    if (hasEnded(band, story)) parts.push("closed " + label(band.closed_micros));
    parts.push(band.owner ? "owner " + band.owner : "no owner");
    parts.push("read to " + readTo(band, story, label));
    if (band.situation) parts.push(band.situation);
    return parts.join(", ");
  }
  function readTo(band, story, label) {
    if (band.read_to_micros === null) return "–";
    const end = hasEnded(band, story) ? band.closed_micros : story.now_micros;
    return band.read_to_micros < end ? label(band.read_to_micros) : "the end";
  }

  /* --- axis --- */
  function scale(state, given, options) {
    const left = options.gutter || 0, right = 2;
    const from = given.from_micros, until = options.until_micros || given.until_micros || given.now_micros;
    const width = Math.max(state.width - left - right, 10);
    const scaled = (micros) => left + (width * (micros - from)) / Math.max(until - from, 1);
    return Object.assign(scaled, { left, right: left + width, from, until });
  }
  function axis(state, x, top, label) {
    const ticks = x.right - x.left < 420 ? 2 : 6;
    for (let tick = 0; tick <= ticks; tick += 1) {
      const at = x.from + ((x.until - x.from) * tick) / ticks;
      const anchor = tick === 0 ? "start" : tick === ticks ? "end" : "middle";
      put(state, "axis", tick + "/" + ticks, "text", { x: x(at), y: top, "text-anchor": anchor }, label(at));
    }
  }
  function playhead(state, x, now, height) {
    if (now < x.until) put(state, "head", "future", "rect",
      { class: "future", x: x(now), y: 0, width: Math.max(x.right - x(now), 0), height });
    put(state, "head", "line", "line", { class: "playhead", x1: x(now), x2: x(now), y1: 0, y2: height });
  }
  function hatch(state) {
    if (!state.hatch) state.hatch = "hatch-" + (hatches += 1);
    const pattern = put(state, "defs", "hatch", "pattern",
      { id: state.hatch, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    if (!pattern.firstChild) {
      const line = document.createElementNS(SVG, "rect");
      line.setAttribute("class", "hatch-line");
      line.setAttribute("width", 2);
      line.setAttribute("height", 8);
      pattern.append(line);
    }
  }

  /* --- the river --- */
  function river(element, story, options) {
    options = options || {};
    const shown = options.minutes ? story.now_micros - options.minutes * 6e7 : story.from_micros;
    const from = Math.max(story.from_micros, shown);
    const state = drawing(element, () => river(element, story, options));
    const height = options.height || 280, label = options.label || time;
    const x = scale(state, { ...story, from_micros: from }, options);
    const colour = options.colours || colours(owners(story));
    RIVER_LAYERS.forEach((each) => layer(state, each));
    hatch(state);
    state.svg.setAttribute("class", "river");
    const places = new Map(), now = story.now_micros;
    put(state, "ground", "all", "rect",
      { class: "river-ground", x: x.left, y: 0, width: x.right - x.left, height });
    const areButtons = Boolean(options.onShard) && story.bands.length <= MOST_BUTTONS;
    state.svg.setAttribute("role", areButtons ? "group" : "img");
    state.svg.setAttribute("aria-label", options.name || RIVER_NAME);
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
    if (story.loss_micros !== null && story.loss_micros > from) put(state, "head", "loss", "line",
      { class: "loss", x1: x(story.loss_micros), x2: x(story.loss_micros), y1: 0, y2: height });
    playhead(state, x, now, height);
    axis(state, x, height + 13, label);
    if (x.left > 30) put(state, "axis", "keys", "text", { x: 0, y: 12 }, "keys");
    finish(state, height + AXIS_HEIGHT);
  }
  function drawBand(state, band, story, place, x, options, label, isButton) {
    const key = band.shard, { box } = place, { y, height } = box;
    const closed = hasEnded(band, story) ? " band-closed" : "";
    const torn = band.opened_micros === null ? " band-torn" : "";
    put(state, "bands", key, "rect", { class: "band" + closed + torn, ...box });
    if (band.read_to_micros !== null && band.read_to_micros < place.end) {
      const left = Math.max(x(band.read_to_micros), box.x), width = Math.max(box.x + box.width - left, 0.5);
      put(state, "waits", key, "rect", { class: "band-waits", x: left, y, width, height });
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
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        event.stopPropagation();
        options.onShard(key);
      }
    };
  }
  function drawSpans(state, spans, places, x, colour) {
    for (const span of spans) {
      const place = places.get(span.shard);
      if (!place) continue;
      const begin = Math.max(span.from_micros, place.begin), end = Math.min(span.to_micros, place.end);
      if (end <= begin) continue;
      const left = x(begin), width = Math.min(x(end) - left, place.x + place.width - left);
      if (width <= 0) continue;
      const box = { x: left, y: place.y, width, height: place.height }, key = span.shard + " " + span.from_micros;
      put(state, "spans", key, "rect", { class: "band owner-" + colour.get(span.owner), ...box });
      if (span.is_dead) put(state, "dead", key, "rect", { class: "band-dead", fill: "url(#" + state.hatch + ")", ...box });
    }
  }
  function table(story, label) {
    const says = label || time;
    return story.bands.map((band) => [
      band.shard,
      band.opened_micros === null ? "–" : says(band.opened_micros),
      hasEnded(band, story) ? says(band.closed_micros) : "",
      band.owner || "–",
      readTo(band, story, says),
      band.situation || "–",
    ]);
  }

  /* --- lanes --- */
  /* given: {from_micros, until_micros, lanes: [{name, lives: [{from_micros, to_micros, manner, frozen}], spans}], faults};
     options: {now_micros, gutter, colours, name}. The same `given` again only moves the playhead. */
  function lanes(element, given, options) {
    const state = drawing(element, () => lanes(element, given, options));
    const x = scale(state, given, options), most = given.lanes.length > 8 ? 16 : 32;
    const height = FAULTS_HEIGHT + given.lanes.length * (most + 6) + 4;
    if (state.given !== given || state.drawnWidth !== state.width) {
      state.given = given;
      state.drawnWidth = state.width;
      state.svg.setAttribute("class", "lanes");
      state.svg.setAttribute("role", "img");
      state.svg.setAttribute("aria-label", options.name);
      LANE_LAYERS.forEach((each) => layer(state, each));
      hatch(state);
      if (x.left > 30) put(state, "axis", "faults", "text", { x: 0, y: 13 }, "faults");
      given.lanes.forEach((lane, place) => drawLane(state, lane, FAULTS_HEIGHT + place * (most + 6), most, x, options));
      given.faults.forEach((fault, place) => drawFault(state, fault, place, x));
    } else {
      for (const entry of state.nodes.values()) entry.round = state.round;
      state.nodes.forEach((entry, id) => { if (id.startsWith("head ")) entry.round = 0; });
    }
    layer(state, "head");
    playhead(state, x, options.now_micros, height);
    finish(state, height);
  }
  function drawLane(state, lane, top, height, x, options) {
    const colour = "owner-" + options.colours.get(lane.name);
    if (x.left > 30) put(state, "axis", lane.name, "text", { x: 0, y: top + height / 2 + 4 }, short(lane.name));
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
      const left = x(span.from_micros), width = Math.max(x(span.to_micros) - left, 0.7), y = top + 2 + slots.of[place] * size;
      const bar = { x: left, y, width, height: Math.max(size - 1, 0.7) };
      put(state, "spans", lane.name + " " + place, "rect", { class: colour, ...bar });
    });
  }
  function slotsOf(spans) {
    const ends = [], of = [];
    spans.forEach((span) => {
      let slot = ends.findIndex((end) => end <= span.from_micros);
      if (slot < 0) slot = ends.length;
      ends[slot] = span.to_micros;
      of.push(slot);
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
    const mark = put(state, "faults", place, "path", { class: "fault-" + fault.kind, d: shape });
    if (!mark.firstChild) {
      const title = document.createElementNS(SVG, "title");
      title.textContent = fault.text;
      mark.append(title);
    }
  }
  function polygon(...points) {
    return "M" + points.map((point) => point.map((each) => each.toFixed(1))).join("L") + "Z";
  }
  function cross(x, y, size) {
    const [left, right, top, bottom] = [x - size, x + size, y - size, y + size].map((each) => each.toFixed(1));
    return "M" + [left, top] + "L" + [right, bottom] + "M" + [left, bottom] + "L" + [right, top];
  }

  /* The time at a place of the screen, for drawings with this gutter. */
  function moment(element, clientX, given, gutter) {
    const box = element.getBoundingClientRect(), width = Math.max(box.width - gutter - 2, 10);
    const share = Math.min(Math.max((clientX - box.left - gutter) / width, 0), 1);
    return given.from_micros + share * (given.until_micros - given.from_micros);
  }

  return { river, table, time, lanes, moment, colours, short };
})();
