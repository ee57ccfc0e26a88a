"use strict";
// Asks status.json every second. Rates and percentiles are differences of counters over the engine's own clock.
const INTERVAL_MS = 1000, HIDDEN_INTERVAL_MS = 10000, ANSWER_MS = 5000, SVG = "http://www.w3.org/2000/svg";
const RATE_SECONDS = 5, SHORT_SECONDS = 10, LONG_SECONDS = 60, HISTORY_SECONDS = 300, HISTORY_MIN_SECONDS = 60;
const ROWS_AT_FIRST = matchMedia("(max-width: 46rem)").matches ? 6 : 20, RESORT_MS = 5000, ANNOUNCE_MS = 15000, TYPING_MS = 250;
const PAST_MS = 60000, EVENTS_MS = 5000, SPANS = { "5m": HISTORY_SECONDS, "24h": 86400 }, EVENT_LEVELS = ["info", "warning", "error"];
const MIN_CONNECTIONS_FOR_MEMORY = 100, DAY = 86400, CHANGE_MS = 60000, TOKEN_MS = 15 * 60000, SAMPLES = 2;

const byId = id => document.getElementById(id);
// What comes from elsewhere becomes text and never markup; what would turn the line around is shown for what it is.
const plain = text => String(text).replace(/[\u0000-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
  character => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"));
const make = (tag, name, text) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = plain(text);
  return element;
};
const put = (element, text) => { const safe = plain(text); if (element.textContent !== safe) element.textContent = safe; };
const style = (element, name) => { if (element.className !== name) element.className = name; };
const sum = values => values.reduce((all, value) => all + value, 0);

// How numbers are told.
const number = value => {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10 && value % 1) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
};
const bytes = value => {
  if (value === null || !Number.isFinite(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) { value /= 1024; index++; }
  return (value < 10 && index ? value.toFixed(1) : Math.round(value)) + " " + units[index];
};
const perSecond = tell => value => value === null ? "–" : tell(value) + "/s";
const duration = seconds => {
  if (seconds === null) return "–";
  if (seconds === Infinity) return "> 60 s";
  if (seconds < 1e-3) return Math.round(seconds * 1e6) + " µs";
  if (seconds < 1) return (seconds * 1e3).toFixed(seconds < .1 ? 1 : 0) + " ms";
  return seconds.toFixed(1) + " s";
};
// The two largest units where the second one matters.
const span = seconds => {
  const [d, h, m, s] = [Math.floor(seconds / DAY), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  if (d >= 730) return Math.floor(d / 365.25) + " y";
  if (d) return h && d < 10 ? `${d} d ${h} h` : `${d} d`;
  return h ? `${h} h ${m} min` : m ? `${m} min` : `${s} s`;
};
const ratio = (many, one) => one > 0 ? number(many / one) + " : 1" : "–";
const percent = (part, all) => all > 0 ? (100 * part / all).toFixed(1) + " %" : "–";
const many = (count, one, more) => `${number(count)} ${count === 1 ? one : more || one + "s"}`;
const day = seconds => { const date = new Date(seconds * 1000); return isNaN(date) ? "?" : date.toISOString().slice(0, 16).replace("T", " "); };

// What was heard, and how it changed.
let samples = [], receivedAt = 0, lostSince = null, restarted = false;
const latest = () => samples[samples.length - 1];
const before = seconds => samples.find(sample => sample.uptime_seconds >= latest().uptime_seconds - seconds - .5) || samples[0];
const elapsed = then => latest().uptime_seconds - then.uptime_seconds;
const change = (get, seconds) => {
  const then = before(seconds), [now, old] = [get(latest()), get(then)];
  return elapsed(then) > 0 && now !== undefined && old !== undefined ? { count: now - old, seconds: elapsed(then) } : null;
};
const rate = (get, seconds = RATE_SECONDS) => { const found = change(get, seconds); return found && found.count / found.seconds; };
const during = (get, seconds) => { const found = change(get, seconds); return found ? found.count : 0; };
// The counts of a histogram's buckets in the window.
const counted = (get, seconds) => {
  const [now, old] = [get(latest()) || [], get(before(seconds)) || []];
  return elapsed(before(seconds)) > 0 ? now.map((count, at) => count - (old[at] || 0)) : now.map(() => 0);
};
// Linear within its bucket; null where nothing was observed.
const quantile = (share, counts) => {
  const total = sum(counts), bounds = latest().bounds_seconds;
  if (total <= 0) return null;
  let below = 0;
  for (let at = 0; at < counts.length; at++) {
    if (counts[at] > 0 && below + counts[at] >= share * total) {
      if (at >= bounds.length) return Infinity;
      const low = at ? bounds[at - 1] : 0;
      return low + (bounds[at] - low) * (share * total - below) / counts[at];
    }
    below += counts[at];
  }
  return null;
};
// Members of lists, by what names them.
const indexes = new WeakMap();
const member = (list, key, wanted) => {
  if (!list) return undefined;
  if (!indexes.has(list)) indexes.set(list, new Map(list.map(each => [key(each), each])));
  return indexes.get(list).get(wanted);
};
const serverKey = server => server.backend + "\n" + server.address;
const nameKey = each => each.name;
const faultKey = fault => fault.slice(0, 3).join("\n");
const of = (kind, key, wanted, get) => sample => { const found = member(sample[kind] && sample[kind].list, key, wanted); return found && get(found); };
const handshakes = (all, fits) => sum(Object.entries(all.handshakes_total).flatMap(([version, kinds]) =>
  Object.entries(kinds).filter(([kind]) => fits(version, kind)).map(([, count]) => count)));
const every = () => true;
const overBackends = get => sample => sample.backends.list.reduce((all, backend) => get(backend).map((count, at) => count + (all[at] || 0)), []);
const sumBackends = get => sample => sum(sample.backends.list.map(get));

// Tiles: what it is called, its figures, lines below, and how its peak is told.
const bounded = value => value === Infinity ? 60 : value;
const latency = share => bounded(quantile(share, counted(sample => sample.all.requests, SHORT_SECONDS)));
const memoryPerConnection = () => {
  const { all, memory_bytes: now, memory_at_start_bytes: start } = latest();
  return all.connections >= MIN_CONNECTIONS_FOR_MEMORY ? Math.max(now - start, 0) / all.connections : null;
};
// A client of several backends counts once here, and at each of them in their table.
const clients = () => latest().all.connections;
const serverConnections = () => sumBackends(backend => backend.connections)(latest());
const tiles = [
  { id: "requests", past: at => [at("requests")], name: "Requests", values: () => [rate(sample => sum(sample.all.responses_total))], now: perSecond(number),
    more: () => `${number(latest().all.in_progress)} in progress; ${number(sum(latest().all.responses_total))} answered since the start` },
  { id: "fivexx", past: at => [at("responses_5xx")], name: "5xx answers", values: () => [rate(sample => sample.all.responses_total[4])], now: perSecond(number),
    more: () => `4xx ${perSecond(number)(rate(sample => sample.all.responses_total[3]))}; retries ${perSecond(number)(rate(sumBackends(backend => backend.retries_total)))}; ${number(latest().all.responses_total[4])} of 5xx since the start` },
  { id: "duration", past: at => [at("request_duration_p50"), at("request_duration_p99")], name: "Duration p50 / p99, last 10 s", values: () => [latency(.5), latency(.99)], peak: duration,
    now: () => duration(quantile(.5, counted(sample => sample.all.requests, SHORT_SECONDS))) + " / " + duration(quantile(.99, counted(sample => sample.all.requests, SHORT_SECONDS))),
    more: () => "of requests, from first byte to last: " + number(sum(counted(sample => sample.all.requests, SHORT_SECONDS))) + "; p99 is the dashed curve" },
  { id: "connections", past: at => [at("connections")], name: "Client connections", values: () => [latest().all.connections], now: number,
    more: () => `${perSecond(number)(rate(sample => sample.all.connections_total))} new; ${number(latest().all.http2_connections)} speak HTTP/2; ${number(latest().all.connections_total)} since the start` },
  { id: "tls", past: at => [at("handshakes")], name: "TLS handshakes", values: () => [rate(sample => handshakes(sample.all, every))], now: perSecond(number),
    more: () => `${number(handshakes(latest().all, every))} since the start, ${percent(handshakes(latest().all, (_, kind) => kind === "resumed"), handshakes(latest().all, every))} resumed; failed ${perSecond(number)(rate(sample => sample.all.handshake_failures_total))}` },
  { id: "offload", past: at => [at("server_connections") > 0 ? at("connections") / at("server_connections") : null], name: "Clients per server connection", values: () => [serverConnections() > 0 ? clients() / serverConnections() : null],
    now: () => ratio(clients(), serverConnections()), peak: value => number(value) + " : 1",
    more: () => { const made = sumBackends(backend => backend.connections_total)(latest()), sent = sumBackends(backend => backend.requests_total)(latest());
      return `${number(clients())} open from clients, ${number(serverConnections())} to servers; since the start ${many(sent, "request")} on ${number(made)} (${ratio(sent, made)})`; } },
  { id: "sent", past: at => [at("sent_bytes")], name: "Sent to clients", values: () => [rate(sample => sample.all.sent_bytes_total)], now: perSecond(bytes), peak: perSecond(bytes),
    more: () => `received ${perSecond(bytes)(rate(sample => sample.all.received_bytes_total))}; sent since the start ${bytes(latest().all.sent_bytes_total)}` },
  { id: "memory", past: at => [at("connections") >= MIN_CONNECTIONS_FOR_MEMORY && at("memory_bytes") !== null ? Math.max(at("memory_bytes") - latest().memory_at_start_bytes, 0) / at("connections") : null], name: "Memory per client connection", values: () => [memoryPerConnection()], now: bytes, peak: bytes,
    more: () => `${bytes(latest().memory_bytes)} resident, ${bytes(latest().memory_at_start_bytes)} of it before the first client` + (memoryPerConnection() === null ? `; told from ${MIN_CONNECTIONS_FOR_MEMORY} connections on` : "") },
  { id: "processor", past: at => [at("cpu_cores")], name: "Processor", values: () => [rate(sample => sample.cpu_seconds)], now: value => value === null ? "–" : value.toFixed(2) + " cores", peak: value => value.toFixed(2),
    more: () => `${many(latest().workers.length, "worker")}; connections each: ${latest().workers.slice(0, 8).map(worker => number(worker.connections)).join(", ")}${latest().workers.length > 8 ? " …" : ""}` },
];
for (const tile of tiles) {
  const box = make("div", "tile"), svg = document.createElementNS(SVG, "svg");
  box.id = "tile-" + tile.id;
  svg.setAttribute("viewBox", `0 0 ${HISTORY_SECONDS} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const shape = (kind, name) => {
    const made = document.createElementNS(SVG, kind);
    made.setAttribute("class", name);
    return svg.appendChild(made);
  };
  tile.marks = EVENT_LEVELS.map(level => shape("path", "mark " + level));
  tile.shapes = [shape("polygon", "area"), shape("polyline", "line"), shape("polyline", "line second")];
  const foot = make("p", "peak");
  tile.figure = make("p", "now", "–"); tile.below = make("p", "more"); tile.top = make("span"); tile.reach = make("span"); tile.history = []; tile.day = [];
  foot.append(tile.reach, tile.top);
  box.append(make("h3", "", tile.name), tile.figure, tile.below, svg, foot);
  byId("tiles").append(box);
}
// The past as the engine has kept it, then what this page has seen itself. Times are the engine's, in seconds
// since 1970.
let spanShown = "5m", events = [];
const draw = tile => {
  const values = tile.values(), now = latest().time;
  // A clock that was set back leaves times that are still to come.
  tile.history = [...tile.history.filter(([at]) => at >= now - HISTORY_SECONDS && at < now), [now, values]];
  put(tile.figure, tile.now(values[0]));
  put(tile.below, tile.more());
  drawCurve(tile);
};
const drawCurve = tile => {
  const now = latest().time, values = tile.history[tile.history.length - 1][1];
  const kept = spanShown === "24h" ? [...tile.day.filter(([at]) => at >= now - SPANS["24h"]), [now, values]] : tile.history;
  const top = Math.max(0, ...kept.flatMap(([, each]) => each).map(value => value || 0));
  const reach = Math.max(HISTORY_MIN_SECONDS, now - kept[0][0]), begin = now - reach;
  put(tile.top, "peak " + (tile.peak || number)(top));
  put(tile.reach, "last " + span(reach));
  const x = at => (HISTORY_SECONDS * (1 - (now - at) / reach)).toFixed(1);
  const points = which => kept.filter(([, each]) => each[which] !== null).map(([at, each]) => `${x(at)},${(38 - 36 * (each[which] || 0) / (top || 1)).toFixed(1)}`).join(" ");
  tile.shapes[0].setAttribute("points", `${x(kept[0][0])},40 ${points(0)} ${HISTORY_SECONDS},40`);
  tile.shapes[1].setAttribute("points", points(0));
  if (values.length > 1) tile.shapes[2].setAttribute("points", points(1));
  EVENT_LEVELS.forEach((level, at) => tile.marks[at].setAttribute("d", events.filter(event => event.level === level && event.time >= begin).map(({ time }) => `M${x(time)} 0V40`).join("")));
};

// A table: columns are { head, kind, cell, sort }. Cells are text, or { text, kind, title }. Rows are made once and changed in
// place, and sorted anew now and then only, so that nothing jumps under a finger.
const FIGURES = ["number", "short", "date"];
class Table {
  constructor(place, caption, columns, { none = "none", cards = true, label } = {}) {
    Object.assign(this, { columns, none, rows: [], limit: ROWS_AT_FIRST, by: null, descending: false, sortedAt: 0, order: new Map() });
    const box = make("div", cards ? "scroll cards" : "scroll");
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", label || caption);
    this.table = make("table");
    for (const [element, role] of [[this.table, "table"]]) element.setAttribute("role", role);
    this.caption = this.table.createCaption();
    put(this.caption, caption);
    const group = make("colgroup");
    for (const { kind } of columns) group.append(make("col", kind));
    this.table.append(group);
    const head = this.table.createTHead().insertRow();
    columns.forEach((column, at) => {
      const cell = make("th", FIGURES.includes(column.kind) ? "" : "words");
      cell.scope = "col";
      if (column.sort) {
        const button = make("button", "", column.head);
        button.type = "button";
        button.addEventListener("click", () => this.sortBy(at));
        cell.append(button);
      } else {
        put(cell, column.head);
      }
      head.append(cell);
    });
    this.body = this.table.createTBody();
    this.body.setAttribute("role", "rowgroup");
    this.all = make("button", "all");
    this.all.type = "button";
    this.all.addEventListener("click", () => { this.limit = this.limit === ROWS_AT_FIRST ? Infinity : ROWS_AT_FIRST; this.show(this.rows); });
    box.append(this.table, this.all);
    byId(place).append(box);
    // Narrow figures get room before words do: below this the box scrolls, not the page.
    this.table.style.setProperty("--least", sum(columns.map(({ kind }) => ({ number: 5.3, short: 7.4, date: 10.4, state: 20, name: 11, "short-name": 6.7, buttons: 9.5 }[kind] || 10))) + "rem");
  }
  sortBy(at) {
    if (this.by === at && this.descending !== !!this.columns[at].firstDescending) {
      this.by = null;
    } else {
      this.descending = this.by === at ? !this.descending : !!this.columns[at].firstDescending;
      this.by = at;
    }
    [...this.table.tHead.rows[0].cells].forEach((cell, index) => {
      if (index === this.by) cell.setAttribute("aria-sort", this.descending ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
    });
    this.sortedAt = 0;
    this.show(this.rows);
  }
  sorted(rows) {
    if (this.by === null) return rows;
    const { sort } = this.columns[this.by], way = this.descending ? -1 : 1;
    const compare = (a, b) => a < b ? -1 : a > b ? 1 : 0;
    if (Date.now() - this.sortedAt >= RESORT_MS) {
      this.sortedAt = Date.now();
      const keys = new Map(rows.map(row => [row, sort(row.of)]));
      const order = [...rows].sort((a, b) => way * compare(keys.get(a), keys.get(b)));
      this.order = new Map(order.map((row, at) => [row.key, at]));
    }
    const place = row => this.order.has(row.key) ? this.order.get(row.key) : Infinity;
    return [...rows].sort((a, b) => compare(place(a), place(b)));
  }
  // Rows are { key, of }.
  show(rows) {
    this.rows = rows;
    const shown = this.sorted(rows).slice(0, this.limit);
    while (this.body.rows.length > Math.max(shown.length, 1)) this.body.deleteRow(-1);
    if (!shown.length) this.line(0, [{ text: this.none, kind: "words quiet" }], this.columns.length);
    shown.forEach((row, at) => this.line(at, this.columns.map(column => column.cell(row.of)), 1));
    this.all.hidden = rows.length <= ROWS_AT_FIRST;
    put(this.all, this.limit === ROWS_AT_FIRST ? `Show all ${rows.length}` : `Show the first ${ROWS_AT_FIRST} only`);
    this.all.setAttribute("aria-expanded", String(this.limit !== ROWS_AT_FIRST));
  }
  line(at, cells, width) {
    const row = this.body.rows[at] || this.body.insertRow();
    row.setAttribute("role", "row");
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((cell, index) => {
      const { text, kind = "" } = typeof cell === "object" && cell ? cell : { text: cell };
      const column = this.columns[index], isHead = !!column.isRowHead && width === 1;
      let place = row.cells[index];
      if (!place || (place.tagName === "TH") !== isHead) {
        const fresh = make(isHead ? "th" : "td");
        if (isHead) fresh.scope = "row";
        fresh.setAttribute("role", isHead ? "rowheader" : "cell");
        if (place) place.replaceWith(fresh); else row.append(fresh);
        place = fresh;
      }
      if (place.colSpan !== width) place.colSpan = width;
      if (width === 1) place.dataset.label = column.head; else delete place.dataset.label;
      if (cell && cell.lines) putLines(place, cell.lines); else if (cell && cell.buttons) putButtons(place, cell.buttons); else put(place, text === null ? "–" : text);
      style(place, [FIGURES.includes(column.kind) ? "" : "words", column.kind === "date" || column.kind === "short" ? "wide" : "", column.whole ? "whole" : "", kind].filter(Boolean).join(" "));
    });
  }
}
// Lines of words; those with a place are links to it.
const putLines = (cell, lines) => {
  const told = JSON.stringify(lines);
  if (cell.told === told && cell.firstElementChild) return;
  cell.told = told;
  const box = make("span", "lines");
  for (const [text, place] of lines) {
    const line = make(place ? "a" : "span", "", text);
    if (place) line.href = "#" + place.map(encodeURIComponent).join(":");
    box.append(line);
  }
  cell.replaceChildren(box);
};
// Buttons, changed in place so that one keeps the focus: [text, name, what it does].
const putButtons = (cell, buttons) => {
  let box = cell.firstElementChild;
  if (!box || box.className !== "buttons") { box = make("span", "buttons"); cell.replaceChildren(box); }
  while (box.children.length > buttons.length) box.lastChild.remove();
  buttons.forEach(([text, name, act], at) => {
    let button = box.children[at];
    if (!button) { button = make("button"); button.type = "button"; button.addEventListener("click", () => button.act()); box.append(button); }
    put(button, text);
    if (button.getAttribute("aria-label") !== plain(name)) button.setAttribute("aria-label", plain(name));
    button.act = act;
  });
};
const alarm = (value, tell = number) => ({ text: tell(value), kind: value > 0 ? "bad" : "" });
const figures = (head, get, tell = number, isBad = false) =>
  ({ head, kind: "number", firstDescending: true, sort: each => get(each) || 0, cell: each => isBad ? alarm(get(each), tell) : tell(get(each)) });
const words = (head, get, more = {}) => ({ head, kind: "", sort: each => String(get(each)).toLowerCase(), cell: get, ...more });

// Routes. Those that are counted with others, and those of relays, have no figures.
const routeKey = route => route.route;
const routeFigure = (route, get) => route.requests_total && !route.is_shared ? rate(of("routes", routeKey, route.route, get)) : null;
const refused = limit => limit && limit.refused_total + limit.denied_total;
const refusals = route => route.limits.map((limit, at) => ({ now: rate(of("routes", routeKey, route.route, each => refused(each.limits[at]))), total: refused(limit) }));
// Limits come before all other steps.
const steps = route => {
  const counts = refusals(route);
  return route.do.map((step, at) => [counts[at] ? `${step}: refused ${perSecond(number)(counts[at].now)}, ${number(counts[at].total)} in all` : step]);
};
// What leads to one backend is the link to it.
const leads = route => route.backends.length === 1 ? [[route.then, ["backends", route.backends[0]]]] : [[route.then], ...route.backends.map(name => ["→ " + name, ["backends", name]])];
const routeTable = new Table("routes-table", "In the order of the configuration; rates over 5 s, percentiles over 10 s", [
  words("Route", route => route.route, { isRowHead: true, whole: true, kind: "name" }),
  words("For", route => ({ lines: [[route.for]], kind: "told" }), { whole: true, sort: route => route.for }),
  { head: "Do", kind: "state", whole: true, cell: route => ({ lines: route.do.length ? steps(route) : [["–"]], kind: "told" }) },
  words("Then", route => ({ lines: leads(route), kind: "told" }), { whole: true, sort: route => route.then }),
  figures("Requests/s", route => routeFigure(route, each => sum(each.requests_total))),
  figures("4xx/s", route => routeFigure(route, each => each.requests_total[3])),
  figures("5xx/s", route => routeFigure(route, each => each.requests_total[4]), number, true),
  { head: "p50 / p99", kind: "date", cell: route => { const counts = counted(of("routes", routeKey, route.route, each => each.requests), SHORT_SECONDS);
    return duration(quantile(.5, counts)) + " / " + duration(quantile(.99, counts)); } },
  figures("Refused/s", route => { const all = refusals(route).map(({ now }) => now); return all.length && all.every(now => now !== null) ? sum(all) : null; }, number, true),
], { label: "Routes" });

// Servers.
const MARKS = { down: "✗ down", ejected: "✗ ejected", draining: "◌ draining", up: "✓ up", unknown: "· not checked" };
const serverState = server => {
  const now = latest().time, parts = [];
  let [mark, kind] = [MARKS[server.state] || server.state, server.usable ? "" : "bad"];
  if (server.state === "draining") kind = "warn";
  if (server.state !== "unknown") mark += " for " + span(Math.max(now - server.since, 0));
  if (server.slow_until) { mark = `↗ slow start, ${span(Math.max(server.slow_until - now, 0))} left`; kind = "warn"; }
  if (server.until) mark += `, ${span(Math.max(server.until - now, 0))} left`;
  if (server.lookup_failed) { parts.push("name not found: " + server.lookup_failed); kind = "bad"; }
  if (server.reason) parts.unshift(server.reason);
  if (server.passed_over > 0) { parts.push(`passed over by ${many(server.passed_over, "worker")} of ${number(latest().workers.length)}: it does not answer`); kind = "bad"; mark = mark.replace("✓", "✗"); }
  if (server.panic) { parts.push("used all the same, panic"); kind = "bad"; }
  if (server.slow_times) { parts.push(`slow, ${number(server.slow_times)} times as long as the others`); if (!kind) { kind = "warn"; mark = mark.replace("✓", "!"); } }
  return { text: [mark, ...parts].join(": ") + (server.backup ? " (backup)" : ""), kind };
};
const serverRate = (server, get, seconds) => rate(of("servers", serverKey, serverKey(server), get), seconds);
const CHANGE_COLUMN = { head: "Change", kind: "buttons", whole: true, cell: server => {
  const of = `${server.address} of ${server.backend}`;
  return { kind: "words", buttons: [server.drain ? ["Undrain", "Undrain " + of, () => askTo(undrainIt(server))] : ["Drain", "Drain " + of, () => askTo(drainIt(server))],
    ["Weight", "Weight of " + of, () => askTo(weighIt(server))]] };
} };
const newServerTable = more => new Table("servers-table", "Servers, the worst first; rates over 5 s, means of the last minute", [
  words("Server", server => server.address, { isRowHead: true, whole: true }),
  { head: "State", kind: "state", whole: true, sort: server => server.rank, cell: serverState },
  // A row with buttons has less room for names, and none for connections that idle.
  words("Backend", server => server.backend, more.length ? { kind: "short-name" } : {}),
  figures("Requests/s", server => serverRate(server, each => each.requests_total)),
  figures("First byte", server => server.first_byte_seconds, duration),
  figures("In flight", server => server.in_flight),
  figures("Connected", server => server.connections, (value) => number(value)),
  ...(more.length ? [] : [figures("Idle", server => server.connections_idle)]),
  figures("Failures/s", server => serverRate(server, each => each.failures_total), number, true),
  figures("Connects failed", server => server.connect_failures_total),
  figures("Weight", server => server.weight),
  ...more,
], { label: "Servers" });
let serverTable = null;

// Certificates and the like.
const ends = (until, now) => {
  const left = until - now;
  if (left < 0) return { text: `✗ expired ${span(-left)} ago`, kind: "bad" };
  if (left < DAY) return { text: `✗ ${span(left)}`, kind: "bad" };
  if (left < 14 * DAY) return { text: `! ${span(left)}`, kind: "warn" };
  return { text: `✓ ${span(left)}`, kind: "" };
};
const certificateTable = new Table("certificates-table", "Certificates that clients are shown, the first to expire first", [
  words("Name", certificate => certificate.name || "(no name)", { isRowHead: true, whole: true }),
  { head: "Expires in", kind: "date", sort: certificate => certificate.not_after, cell: certificate => ends(certificate.not_after, latest().time) },
  { head: "On (UTC)", kind: "date", cell: certificate => day(certificate.not_after) },
  { head: "Type", kind: "number", sort: certificate => certificate.type, cell: certificate => certificate.type },
  { head: "OCSP", kind: "number", cell: certificate => certificate.ocsp ? "stapled" : "–" },
  words("Profile", certificate => certificate.profile),
  words("File", certificate => certificate.file, { whole: true }),
], { label: "Certificates" });
const KINDS = { "client-certificate": "certificate shown to servers", "signer-identity": "certificate shown to key servers", "revocation-list": "revocation list", "ocsp-response": "OCSP response" };
const otherTable = new Table("others-table", "What else ends", [
  words("What", other => KINDS[other.kind] || other.kind, { isRowHead: true, whole: true }),
  { head: "Ends in", kind: "short", sort: other => other.until, cell: other => ends(other.until, latest().time) },
  { head: "On (UTC)", kind: "date", cell: other => day(other.until) },
  words("Of", other => other.of + (other.name ? ", " + other.name : "")),
  words("File", other => other.file, { whole: true }),
]);
const fileTable = new Table("files-table", "Files that could not be used at the last reading; what was there before stays in use", [
  words("File", file => file.file || "–", { isRowHead: true, whole: true }),
  words("Of", file => `${file.kind} "${file.of}"`),
  words("What is wrong", file => file.what, { whole: true }),
  words("What to do", file => file.fix, { whole: true }),
], { label: "Files that could not be used" });

const backendRate = (backend, get) => rate(of("backends", nameKey, backend.name, get));
const backendTable = new Table("backends-table", "Offload is clients per open server connection; reused is the share of requests that met an open connection, since the start; rates over 5 s, percentiles over 10 s", [
  words("Backend", backend => backend.name, { isRowHead: true, whole: true }),
  { head: "Usable", kind: "number", sort: backend => backend.states.usable / backend.states.total,
    cell: ({ states }) => ({ text: `${number(states.usable)} of ${number(states.total)}`, kind: states.usable && !states.panic ? states.usable < states.total ? "warn" : "" : "bad" }) },
  figures("Requests/s", backend => backendRate(backend, each => each.requests_total)),
  figures("Clients", backend => backend.clients),
  figures("Connected", backend => backend.connections),
  { head: "Offload", kind: "number", firstDescending: true, sort: backend => backend.connections ? backend.clients / backend.connections : 0, cell: backend => ratio(backend.clients, backend.connections) },
  { head: "Requests per connection", kind: "short", firstDescending: true, sort: backend => backend.connections_total ? backend.requests_total / backend.connections_total : 0,
    cell: backend => ratio(backend.requests_total, backend.connections_total) },
  { head: "Reused", kind: "number", cell: backend => percent(backend.reused_total, backend.requests_total) },
  { head: "First byte p50 / p99", kind: "date", cell: backend => { const counts = counted(of("backends", nameKey, backend.name, each => each.first_bytes), SHORT_SECONDS);
    return duration(quantile(.5, counts)) + " / " + duration(quantile(.99, counts)); } },
  figures("Waiting", backend => backend.queued, number, true),
  figures("Retries/s", backend => backendRate(backend, each => each.retries_total)),
  figures("Failed/s", backend => backendRate(backend, each => each.faults_total), number, true),
  figures("No server/s", backend => backendRate(backend, each => each.unavailable_total), number, true),
], { label: "Backends" });

const LATENCIES = [
  ["Requests, first byte to last", sample => sample.all.requests],
  ["TLS handshakes", sample => sample.all.handshakes],
  ["Servers' first byte", overBackends(backend => backend.first_bytes)],
  ["Wait for a server connection", overBackends(backend => backend.queue_waits)],
];
const latencyCell = (share, seconds) => ({ head: `p${100 * share} ${seconds === LONG_SECONDS ? "1 min" : seconds + " s"}`, kind: "number",
  cell: ([, get]) => duration(quantile(share, counted(get, seconds))) });
const latencyTable = new Table("latency-table", "Over the last 10 s and the last minute; interpolated in the buckets of histograms", [
  words("Of", ([what]) => what, { isRowHead: true, whole: true, sort: undefined }),
  ...[.5, .9, .99].map(share => latencyCell(share, SHORT_SECONDS)),
  { head: "Count 10 s", kind: "number", cell: ([, get]) => number(sum(counted(get, SHORT_SECONDS))) },
  ...[.5, .9, .99, .999].map(share => latencyCell(share, LONG_SECONDS)),
  { head: "Count 1 min", kind: "number", cell: ([, get]) => number(sum(counted(get, LONG_SECONDS))) },
], { label: "Latency" });

const TYPES = { ecdsa: "ECDSA certificate", ed25519: "Ed25519 certificate", rsa: "RSA certificate", resumed: "resumed session" };
const handshakeTable = new Table("handshakes-table", "By version and by the certificate shown; rates over 5 s", [
  words("Version and type", row => `${row.version}, ${TYPES[row.kind] || row.kind}`, { isRowHead: true, whole: true, sort: undefined }),
  { head: "Per second", kind: "number", cell: row => number(row.rate) },
  { head: "Share now", kind: "number", cell: row => percent(row.rate, row.rates) },
  { head: "Since the start", kind: "short", cell: row => number(row.count) },
  { head: "Share", kind: "number", cell: row => percent(row.count, row.counts) },
], { label: "Handshakes by type", none: "none so far" });

const listenerRate = (listener, get) => rate(of("listeners", nameKey, listener.name, get));
const listenerTable = new Table("listeners-table", "Rates over 5 s, percentiles over 10 s", [
  words("Listener", listener => listener.name, { isRowHead: true, whole: true }),
  words("Address", listener => `${listener.protocol === "http" ? listener.tls === null ? "http://" : "https://" : listener.protocol + (listener.tls === null ? " " : " over TLS ")}${listener.addresses.join(", ")}${listener.addresses_total > listener.addresses.length ? " …" : ""}`, { whole: true }),
  figures("Connected", listener => listener.connections),
  figures("New/s", listener => listenerRate(listener, each => each.connections_total)),
  figures("HTTP/2", listener => listener.http2_connections),
  figures("TLS/s", listener => listener.tls === null || listener.protocol === "passthrough" ? null : listenerRate(listener, each => handshakes(each, every))),
  figures("TLS failed/s", listener => listenerRate(listener, each => each.handshake_failures_total), number, true),
  figures("Requests/s", listener => listener.protocol === "http" ? listenerRate(listener, each => sum(each.responses_total)) : null),
  { head: "p50 / p99", kind: "date", cell: listener => { const counts = counted(of("listeners", nameKey, listener.name, each => each.requests), SHORT_SECONDS);
    return duration(quantile(.5, counts)) + " / " + duration(quantile(.99, counts)); } },
  figures("In", listener => listenerRate(listener, each => each.received_bytes_total), perSecond(bytes)),
  figures("Out", listener => listenerRate(listener, each => each.sent_bytes_total), perSecond(bytes)),
  figures("4xx/s", listener => listenerRate(listener, each => each.responses_total[3])),
  figures("5xx/s", listener => listenerRate(listener, each => each.responses_total[4]), number, true),
], { label: "Listeners" });

const signerRate = (row, get) => rate(sample => { const signer = sample.signers && sample.signers[row.at]; const server = signer && signer.servers[row.index]; return server && get(server); });
const signerTable = new Table("signers-table", "Key servers by signer; signatures over 5 s", [
  words("Key server", row => row.server.address, { isRowHead: true, whole: true }),
  words("Signer", row => row.signer),
  { head: "State", kind: "state", whole: true, cell: ({ server, workers }) => server.connections > 0
    ? server.ejected > 0 ? { text: `! passed over by ${many(server.ejected, "worker")} of ${number(workers)}`, kind: "warn" } : "✓ connected"
    : { text: "✗ no connection", kind: "bad" } },
  figures("Connected", row => row.server.connections),
  figures("Signed/s", row => signerRate(row, server => server.outcomes.signed)),
  figures("Waiting", row => row.server.outstanding),
  { head: "p50 / p99, 10 s", kind: "date", cell: row => { const counts = counted(sample => sample.signers && sample.signers[row.at] && sample.signers[row.at].servers[row.index].durations, SHORT_SECONDS);
    return duration(quantile(.5, counts)) + " / " + duration(quantile(.99, counts)); } },
  figures("Connects failed", row => row.server.connect_failures),
], { label: "Key servers" });

// From an error to its server, backend, routes and lines of the log.
const whereabouts = ([, place, , , { server, backend, listener }]) => {
  if (listener) return [[listener, ["listeners"]]];
  if (!backend) return [["engine"]];
  const routes = latest().routes ? latest().routes.list.filter(route => route.backends.includes(backend)) : [];
  return [[place, server ? ["servers", server] : ["servers", backend]], ["backend " + backend, ["backends", backend]], ...(routes.length ? [[many(routes.length, "route"), ["routes", backend]]] : [])];
};
const linesOf = ([, , why, , { server, backend, listener }]) => {
  const name = server || backend || listener;
  const found = events.filter(({ text }) => name ? text.includes(name) && !text.startsWith("audit:") : false);
  const exact = found.filter(({ text }) => why && text.includes(why));
  const shown = (exact.length ? exact : found).slice(-SAMPLES).reverse();
  return shown.length ? shown.map(({ time, text }) => [`${clock(time)} ${text.slice(0, 200)}`, ["events"]]) : [["–"]];
};
const errorRate = fault => rate(sample => sample.faults && (member(sample.faults.list, faultKey, faultKey(fault)) || [0, 0, 0, 0])[3]);
const errorTable = new Table("errors-table", "Errors by what, where and why; rates over 5 s", [
  words("What", fault => fault[0], { isRowHead: true, whole: true }),
  words("Where", fault => ({ lines: whereabouts(fault), kind: "told" }), { whole: true, sort: fault => fault[1] }),
  words("Why", fault => fault[2] || "–"),
  figures("Per second", fault => errorRate(fault), number, true),
  figures("Since the start", fault => fault[3]),
  words("What to do", fault => fault[4].cure || "–", { whole: true, sort: undefined }),
  { head: "Last lines", kind: "state", whole: true, cell: fault => ({ lines: linesOf(fault), kind: "told" }) },
], { label: "Errors", none: "nothing" });

// The cluster: samples of /cluster by this page's clock, which only an engine has that is one of a cluster.
let clusters = [], clusterLostSince = null;
const cluster = () => clusters.length ? clusters[clusters.length - 1].of : null;
const engineRate = (engine, key) => {
  const now = clusters[clusters.length - 1], load = (sample, name) => { const found = member(sample.of.engines, nameKey, name); return found && found.load; };
  const then = clusters.find(sample => sample.at >= now.at - RATE_SECONDS * 1000 - 500 && load(sample, engine.name));
  if (!then || now.at <= then.at || !engine.load) return null;
  const count = engine.load[key] - load(then, engine.name)[key];
  return count < 0 ? null : count * 1000 / (now.at - then.at);
};
// What most engines have; of as many, the greater.
const majority = values => {
  const counts = new Map();
  values.forEach(value => counts.set(value, (counts.get(value) || 0) + 1));
  return [...counts].reduce((best, each) => !best || each[1] > best[1] || (each[1] === best[1] && each[0] > best[0]) ? each : best, null)?.[0];
};
// Each is [in a word, in full].
const disagreements = engine => {
  const { engines, candidate, flows } = cluster(), found = [], problems = engine.problems;
  const [serial, version] = ["serial", "version"].map(key => majority(engines.map(each => each[key])));
  const tries = candidate && engine.candidate === candidate.id;
  if (engine.serial !== serial && !tries) found.push(["serial", `serves configuration ${engine.serial}, most serve ${serial}`]);
  if (engine.version !== version) found.push(["version", `has version ${engine.version}, most have ${version}`]);
  if (flows && engine.flows_generation === null) found.push(["flow table", "propylon-flows does not run"]);
  else if (flows && engine.flows_generation !== flows.generation) found.push(["flow table", `goes by flow table ${engine.flows_generation} and not ${flows.generation}`]);
  if (problems.length) found.push([many(problems.length, "problem"), problems.join("; ")]);
  return found;
};
const engineState = engine => {
  const weight = engine.weight_percent === 100 ? "" : `, weight ${engine.weight_percent} %`;
  const told = (engine.announced === null ? "" : engine.announced ? ", announced" : ", not announced") + weight;
  if (engine.draining) return { text: "◌ draining" + told, kind: "warn" };
  if (!engine.ready) return { text: "✗ not ready" + told, kind: "bad" };
  const isWhole = engine.announced !== false && !engine.problems.length && !(cluster().flows && engine.flows_generation === null);
  return isWhole ? { text: "✓ ready" + told, kind: "" } : { text: "! ready" + told, kind: "warn" };
};
const engineLoad = (head, get, tell = number) => figures(head, engine => engine.load ? get(engine) : null, tell);
const engineTable = new Table("engines-table", "Engines; rates over 5 s, percentiles and processor of the last second", [
  words("Engine", engine => engine.name + (engine.name === cluster().leader ? ", leads" : "") + (engine.name === cluster().engine ? " (this one)" : ""), { isRowHead: true, whole: true }),
  { head: "State", kind: "name", whole: true, sort: engine => engineState(engine).text, cell: engineState },
  words("Address", engine => engine.address || "–"),
  { head: "Version", kind: "number", sort: engine => engine.version, cell: engine => engine.version },
  { head: "Serial", kind: "number", sort: engine => engine.serial, cell: engine => engine.candidate && cluster().candidate && engine.candidate === cluster().candidate.id
    ? { text: `${engine.serial} → ${cluster().candidate.serial}`, kind: "warn" } : String(engine.serial) },
  { head: "Processor", kind: "short", firstDescending: true, sort: engine => engine.load ? engine.load.cpu : 0, cell: engine => engine.load ? `${Math.round(100 * engine.load.cpu)} % of ${engine.cores}` : "– of " + engine.cores },
  engineLoad("Clients", engine => engine.load.connections),
  engineLoad("Requests/s", engine => engineRate(engine, "requests")),
  { ...engineLoad("Faults/s", engine => engineRate(engine, "faults")), cell: engine => alarm(engineRate(engine, "faults")) },
  engineLoad("p99", engine => engine.load.p99_ms / 1e3 || null, duration),
  figures("Buckets", engine => engine.buckets),
  { head: "Disagrees", kind: "name", sort: engine => -disagreements(engine).length, cell: engine => { const found = disagreements(engine); return { text: found.map(([word]) => word).join(", ") || "–", kind: found.length ? "warn" : "" }; } },
], { label: "Engines" });
const disagreementTable = new Table("disagreements-table", "What disagrees with most engines, and what is wrong", [
  { head: "Engine", kind: "name", isRowHead: true, whole: true, cell: engine => engine.name },
  { head: "What", kind: "", whole: true, cell: engine => disagreements(engine).map(([, text]) => text).join("; ") },
], { label: "What disagrees" });
const clusterTable = new Table("cluster-table", "What they do together", [
  { head: "What", kind: "name", isRowHead: true, whole: true, cell: ([what]) => what },
  { head: "How it stands", kind: "", whole: true, cell: ([, text, kind]) => ({ text, kind }) },
], { label: "The cluster" });
const verdictTable = new Table("verdicts-table", "What engines find of the change under way", [
  { head: "Engine", kind: "name", isRowHead: true, whole: true, cell: ([name]) => name },
  { head: "Verdict", kind: "name", cell: ([, verdict]) => !verdict ? { text: "· checks", kind: "quiet" } : verdict.ok ? "✓ passed" : { text: "✗ refuses", kind: "bad" } },
  { head: "Serves it", kind: "name", cell: ([name, , { canary, serving }]) => serving.includes(name) ? canary.includes(name) ? "first" : "yes" : "not yet" },
  words("Problems", ([, verdict]) => verdict && verdict.problems.join("; ") || "–", { whole: true, sort: undefined }),
], { label: "Verdicts" });
const PHASES = ["checking", "canary", "rolling"], PHASE_WORDS = { checking: "every engine checks it", canary: "a few serve it first", rolling: "the others follow" };
const ago = at => at ? span(Math.max(latest().time - at, 0)) + " ago" : "some time ago";
const authored = ({ by, why }) => (by ? " by " + by : "") + (why ? `: ${why}` : "");
const clusterFacts = ({ connected, leader, current, candidate, outcome, flows, capacity, announce: announced, certificates, engines }) => {
  const facts = [["Leader", `${leader || "✗ none"}; etcd ${connected ? "answers" : "does not answer: engines serve on with what they have"}`, connected ? leader ? "" : "warn" : "bad"]];
  facts.push(["Configuration", `${current ? `${current.serial}, ${ago(current.at)}${authored(current)}` : "none yet: each engine serves its own file"}; ${many(certificates, "certificate")} of the cluster's`, ""]);
  if (candidate) {
    const passed = candidate.verdicts.filter(verdict => verdict.ok).length, refused = candidate.verdicts.length - passed;
    facts.push(["Change under way", `${candidate.serial}, ${ago(candidate.since)}${authored(candidate)}. Step ${PHASES.indexOf(candidate.phase) + 1} of ${PHASES.length}, ${candidate.phase}: ${PHASE_WORDS[candidate.phase] || candidate.phase}. ` +
      `Passed by ${passed}${refused ? `, refused by ${refused}` : ""} of ${number(engines.length)}; served by ${candidate.serving.length ? listed(candidate.serving, each => each, 8) : "none"}`, refused ? "bad" : "warn"]);
  }
  if (outcome) {
    const reasons = [outcome.why, ...outcome.problems.filter(problem => !String(outcome.why).includes(problem))].filter(Boolean);
    const told = `${outcome.result === "applied" ? "✓ applied" : "✗ refused"}: ${outcome.serial}, ${ago(outcome.at)}${outcome.engine && !String(outcome.why).includes(outcome.engine) ? ", by " + outcome.engine : ""}`;
    facts.push(["Last change", told + (reasons.length ? ": " + listed(reasons, each => each, 5) : ""), outcome.result === "applied" ? "" : "bad"]);
  }
  if (flows) facts.push(["Flow table", `generation ${flows.generation}, ${many(flows.buckets, "bucket")}${flows.moving ? `; ${number(flows.moving)} moving from one engine to another` : "; none is moving"}`, ""]);
  if (capacity) facts.push(["Engines wanted", `${number(capacity.wanted)} (${number(capacity.engines)} are there)${capacity.reason ? ": " + capacity.reason : ""}`, capacity.wanted > capacity.engines ? "warn" : ""]);
  if (announced) {
    const protocols = (announced.protocols || []).map(each => `${each.name} ${each.announced ? "✓ announced" : "withdrawn"}`);
    const sessions = (announced.sessions || []).map(each => `${each.name}${each.neighbor ? ` (${each.neighbor})` : ""} ${each.established ? "✓ established" : "✗ down"}`);
    const broken = announced.error || (announced.sessions || []).some(each => !each.established);
    facts.push(["Announcement", [announced.error ? "✗ " + announced.error : announced.announced ? "✓ announced" : "◌ withdrawn", announced.reason, protocols.length && "protocols: " + protocols.join(", "), sessions.length && "sessions: " + sessions.join(", ")].filter(Boolean).join("; "), broken ? "bad" : announced.announced ? "" : "warn"]);
  }
  return facts;
};
const showCluster = () => {
  const now = cluster();
  byId("cluster").hidden = byId("cluster-link").hidden = !now;
  if (!now) return;
  const ready = now.engines.filter(engine => engine.ready && !engine.draining).length;
  const silence = clusterLostSince === null ? "" : `; no answer for ${span((Date.now() - clusterLostSince) / 1000)}`;
  put(byId("cluster-summary"), `${now.name}: ${number(ready)} of ${many(now.engines.length, "engine")} ready${silence}`);
  engineTable.show(keyed(now.engines, nameKey));
  const apart = now.engines.filter(engine => disagreements(engine).length);
  byId("disagreements-table").hidden = !apart.length;
  disagreementTable.show(keyed(apart, nameKey));
  clusterTable.show(keyed([...clusterFacts(now), ...now.problems.map((problem, at) => [`Problem ${at + 1}`, "! " + problem, "warn"])], ([what]) => what));
  byId("verdicts-table").hidden = !now.candidate;
  const verdicts = now.candidate ? now.engines.map(({ name }) => [name, now.candidate.verdicts.find(verdict => verdict.engine === name), now.candidate]) : [];
  verdictTable.show(keyed(verdicts, ([name]) => name));
};
let isAskingCluster = false;
const pollCluster = async () => {
  if (isAskingCluster) return;
  isAskingCluster = true;
  try {
    const answer = await fetch("cluster", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (!answer.ok) throw new Error("status " + answer.status);
    const now = await answer.json();
    // The engine's thread has not told of itself yet.
    if (!now || !now.engines) throw new Error("status none");
    clusters.push({ at: Date.now(), of: now });
    while (clusters[0].at < Date.now() - 2 * RATE_SECONDS * 1000) clusters.shift();
    clusterLostSince = null;
  } catch (error) {
    if (clusterLostSince === null) clusterLostSince = Date.now();
    report(error);
  } finally {
    isAskingCluster = false;
  }
  showCluster();
  showProblems();
};

// What somebody should look at, the worst first: [level, text, link].
const listed = (items, tell, max = 3) => items.slice(0, max).map(tell).join("; ") + (items.length > max ? "; …" : "");
// Conditions that are told from what else is known, with more to say.
const TOLD_HERE = ["change-refused", "backend-panic", "server-ejected", "server-name", "signer-ejected", "certificate-files", "cluster-problems"];
const problems = () => {
  const { servers, backends, certificates, signers, draining, configuration, conditions, time, last_minute: minute = { responses: 0, failed: 0 } } = latest(), found = [];
  const bad = (text, link) => found.push(["bad", text, link]), warn = (text, link) => found.push(["warn", text, link]);
  const failed = configuration && configuration.last_reload;
  if (failed && failed.result === "failed") bad(`The last change of the configuration, ${span(Math.max(time - failed.timestamp, 0))} ago, was refused; generation ${configuration.generation} stays in effect. The log says why.`, "");
  // What the engine itself has found. Notes are among the errors below.
  for (const each of conditions ? conditions.list : []) {
    if (each.grade === "note" || TOLD_HERE.includes(each.name)) continue;
    const why = each.why ? ` (${each.why})` : "", link = each.labels.server ? "servers:" + each.labels.server : each.labels.route ? "routes:" + each.labels.route : each.labels.backend ? "backends" : each.labels.signer ? "signers" : each.labels.listener ? "listeners" : cluster() && /^(cluster|flows|announce)-/.test(each.name) ? "cluster" : "errors";
    (each.grade === "problem" ? bad : warn)(`${each.place ? each.place + ": " : ""}${each.what}${why}, for ${span(Math.max(time - each.since, 0))}: ${each.cure}`, link);
  }
  const hopeless = backends.list.filter(({ states }) => !states.usable);
  for (const { name, states } of hopeless.slice(0, 5)) bad(`Backend ${name}: none of its ${many(states.total, "server")} is usable`, "servers:" + name);
  if (hopeless.length > 5) bad(`${number(hopeless.length - 5)} more backends without a usable server`, "backends");
  for (const { name, states } of backends.list.filter(({ states }) => states.panic).slice(0, 5)) bad(`Backend ${name}: panic: too few of its ${many(states.total, "server")} are up, so those that are down are used as well`, "servers:" + name);
  const { down, ejected, name_not_found: lost } = servers.states, inState = state => servers.list.filter(server => server.state === state);
  const told = server => `${server.address} of ${server.backend}${server.reason ? " (" + server.reason + ")" : ""}`;
  if (down) bad(`${number(down)} of ${many(servers.states.total, "server")} down: ${listed(inState("down"), told)}`, "servers:down");
  // A route that fails is among the conditions, with its servers.
  const { responses, failed: errors } = minute, isTold = conditions.list.some(each => each.name === "route-failing");
  if (errors > 0 && !isTold) warn(`${many(errors, "answer")} of 5xx, or that never came, in the last minute, ${percent(errors, responses)} of all`, "errors");
  const left = Object.fromEntries(certificates.by_days_left), near = certificates.list.filter(each => each.not_after < time + 14 * DAY);
  const named = each => `${each.name || each.file} (${each.type}, ${each.not_after < time ? "expired" : span(each.not_after - time)})`;
  if (left.expired) bad(`${many(left.expired, "certificate has", "certificates have")} expired: ${listed(near.filter(each => each.not_after < time), named)}`, "certificates");
  if (left["under-1"]) bad(`${many(left["under-1"], "certificate expires", "certificates expire")} within a day: ${listed(near.filter(each => each.not_after >= time && each.not_after < time + DAY), named)}`, "certificates");
  if (certificates.unusable_files.length) bad(`${many(certificates.unusable_files.length, "file")} could not be used at the last reading: ${listed(certificates.unusable_files, each => each.file.split("/").pop() + ": " + each.what, 2)}`, "certificates");
  const over = certificates.others.filter(each => each.until < time);
  if (over.length) bad(`Out of date: ${listed(over, each => `${KINDS[each.kind] || each.kind} of ${each.of}`)}`, "certificates");
  signers.forEach(signer => {
    const gone = signer.servers.filter(server => !server.connections);
    if (gone.length) (gone.length === signer.servers.length ? bad : warn)(`Signer ${signer.name}: no connection to ${listed(gone, server => server.address)}`, "signers");
    const passed = signer.servers.filter(server => server.connections && server.ejected);
    if (passed.length) warn(`Signer ${signer.name}: passed over: ${listed(passed, server => server.address)}`, "signers");
  });
  if (ejected) warn(`${many(ejected, "server")} ejected for answers: ${listed(inState("ejected"), told)}`, "servers:ejected");
  if (lost) warn(`${many(lost, "name")} of servers not found: ${listed(servers.list.filter(server => server.lookup_failed), server => server.address)}`, "servers");
  const soon = (left["1-to-7"] || 0) + (left["7-to-14"] || 0);
  if (soon) warn(`${many(soon, "certificate expires", "certificates expire")} within 14 days: ${listed(near.filter(each => each.not_after >= time + DAY), named)}`, "certificates");
  const waiting = backends.list.filter(backend => backend.queued > 0);
  if (waiting.length) warn(`Requests wait for a server connection: ${listed(waiting, backend => backend.name)}`, "backends");
  const handshaken = during(sample => handshakes(sample.all, every), LONG_SECONDS), refused = during(sample => sample.all.handshake_failures_total, LONG_SECONDS);
  if (refused > 10 && refused > handshaken / 4) warn(`${many(refused, "TLS handshake")} failed in the last minute, ${percent(refused, refused + handshaken)} of all`, "errors");
  const overrides = configuration && configuration.overrides;
  if (overrides && overrides.total) warn(`process.state overrides the file: ${listed(overrides.list, each => each)}${overrides.total > 3 ? ` (${number(overrides.total)} in all)` : ""}`, "");
  const group = cluster();
  if (group) {
    for (const problem of group.problems.slice(0, 5)) warn(`Cluster: ${problem}`, "cluster");
    const idle = group.engines.filter(engine => !engine.ready && !engine.draining);
    if (idle.length) warn(`${many(idle.length, "engine")} of ${number(group.engines.length)} not ready: ${listed(idle, engine => engine.name + (engine.problems.length ? ` (${engine.problems[0]})` : ""))}`, "cluster");
    if (group.engines.length && group.engines.every(engine => engine.draining)) warn("Every engine is drained: nobody is left to take their clients; `propylon cluster undrain NAME` brings one back", "cluster");
    if (group.capacity && group.capacity.wanted > group.capacity.engines) warn(`${number(group.capacity.wanted)} engines are wanted, ${number(group.capacity.engines)} are there: ${group.capacity.reason}`, "cluster");
  }
  if (draining) warn("Draining: new connections are refused, requests in progress finish", "");
  return found.sort((a, b) => (a[0] === "bad" ? 0 : 1) - (b[0] === "bad" ? 0 : 1));
};
let announcedAt = 0, announced = "";
const announce = (text, isUrgent) => {
  if (text === announced || (!isUrgent && Date.now() - announcedAt < ANNOUNCE_MS)) return;
  [announced, announcedAt] = [text, Date.now()];
  put(byId("announcement"), text);
};
const LEVELS = { bad: "✗ Problem", warn: "! Warning", good: "✓ Fine" };
const showProblems = () => {
  const found = problems();
  // What was fine before it fell silent need not be so any more.
  if (lostSince !== null) found.unshift(["bad", "The engine does not answer; what is told below was so when it last did", ""]);
  const list = byId("problem-list"), worst = found.filter(([level]) => level === "bad").length;
  const rows = found.length ? found : [["good", "Nothing needs attention.", ""]];
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach(([level, text, link], at) => {
    let item = list.children[at];
    if (!item || !item.parts) {
      const fresh = make("li"), sign = make("span", "level"), what = make("span"), go = make("a");
      fresh.append(sign, what, go);
      fresh.parts = [sign, what, go];
      if (item) item.replaceWith(fresh); else list.append(fresh);
      item = fresh;
    }
    const [sign, what, go] = item.parts;
    style(item, level);
    put(sign, LEVELS[level]);
    put(what, text);
    go.hidden = !link;
    const target = "#" + link.split(":").map(encodeURIComponent).join(":");
    if (go.getAttribute("href") !== target) go.setAttribute("href", target);
    put(go, link.split(":")[0]);
  });
  document.title = worst ? `(${worst}) Propylon` : "Propylon";
  if (lostSince === null) announce(found.length ? `${many(worst, "problem")}, ${many(found.length - worst, "warning")}` : "Nothing needs attention");
};

// Changes: a person gives the token, which stays in this page's memory and is forgotten 15 minutes after its last use.
let token = "", person = "", tokenTimer = 0, wanted = null, opener = null, isSending = false;
const serverPath = ({ backend, address }) => `v1/backends/${encodeURIComponent(backend)}/servers/${encodeURIComponent(address)}`;
const drainIt = server => ({ title: `Drain ${server.address}?`, go: "Drain", method: "PATCH", path: serverPath(server), body: () => ({ drain: true }),
  what: `Server ${server.address} of backend ${server.backend} gets no new requests; those in progress end where they are (${number(server.in_flight)} now).` });
const undrainIt = server => ({ title: `Undrain ${server.address}?`, go: "Undrain", method: "PATCH", path: serverPath(server), body: () => ({ drain: false }),
  what: `Server ${server.address} of backend ${server.backend} gets requests again.` });
const weighIt = server => ({ title: `Weight of ${server.address}`, go: "Set weight", method: "PATCH", path: serverPath(server), weight: server.weight, body: () => ({ weight: byId("ask-weight").valueAsNumber }),
  what: `Server ${server.address} of backend ${server.backend} has weight ${server.weight}. Its share is its weight by the sum of all.` });
const RELOAD = { title: "Read the configuration again?", go: "Read again", method: "POST", path: "v1/reload", body: () => null,
  what: "The file and all certificates are read again, as SIGHUP has it done. Where something is wrong with them, what is in effect stays." };
const forgetToken = () => { token = ""; clearTimeout(tokenTimer); byId("forget").hidden = true; };
const askTo = action => {
  [wanted, opener] = [action, document.activeElement];
  put(byId("ask-title"), action.title);
  put(byId("ask-what"), action.what);
  put(byId("ask-result"), "");
  put(byId("ask-go"), action.go);
  put(byId("ask-close"), "Cancel");
  for (const name of ["ask-what", "ask-go", "ask-person-line"]) byId(name).hidden = false;
  byId("ask-weight-line").hidden = action.weight === undefined;
  byId("ask-weight").required = action.weight !== undefined;
  byId("ask-weight").disabled = action.weight === undefined;
  byId("ask-weight").value = action.weight === undefined ? "" : action.weight;
  byId("ask-token-line").hidden = !!token;
  byId("ask-token").value = "";
  byId("ask-person").value = person;
  byId("ask").showModal();
  byId(action.weight !== undefined ? "ask-weight" : token ? "ask-close" : "ask-token").focus();
};
const changeText = ({ path, from, to, added, removed }) => from !== undefined && to !== undefined ? `${path}: ${JSON.stringify(from)} → ${JSON.stringify(to)}`
  : added !== undefined ? path + ": added" : removed !== undefined ? path + ": removed" : path + ": read again";
const problemText = ({ file, line, what, fix }) => `${line ? `${file}:${line}: ` : ""}${what}; ${fix}`;
// The outcome in lines, and whether it was done.
const outcomeOf = (status, answer) => {
  if (status >= 300) return [["✗ Refused, nothing has changed", ...(answer.problems || [{ what: "status " + status, fix: "the log says more" }]).map(problemText)], false];
  const head = answer.result === "unchanged" ? `✓ Nothing is different: generation ${answer.generation}` : `✓ In effect as generation ${answer.generation}`;
  return [[head, ...answer.changes.slice(0, 10).map(changeText), ...answer.warnings.slice(0, 5).map(each => "! " + problemText(each))], true];
};
const tell = (lines, isDone) => {
  const result = byId("ask-result");
  style(result, isDone ? "result good" : "result bad");
  result.textContent = lines.map(plain).join("\n");
  if (!isDone) return;
  put(byId("ask-close"), "Close");
  for (const name of ["ask-go", "ask-what", "ask-weight-line", "ask-token-line", "ask-person-line"]) byId(name).hidden = true;
  byId("ask-close").focus();
};
const send = async action => {
  token = token || byId("ask-token").value.trim();
  person = byId("ask-person").value.trim();
  if (!token) { tell(["✗ The token is needed: it is in the file that admin.token_file names"], false); byId("ask-token").focus(); return; }
  const body = action.body(), headers = { Authorization: "Bearer " + token };
  if (body) headers["Content-Type"] = "application/json";
  if (person) headers["Propylon-Person"] = encodeURIComponent(person);
  const answer = await fetch(action.path, { method: action.method, headers, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(CHANGE_MS) });
  const said = await answer.json();
  clearTimeout(tokenTimer);
  tokenTimer = setTimeout(forgetToken, TOKEN_MS);
  byId("forget").hidden = false;
  byId("ask-token").value = "";
  if (answer.status === 401) { forgetToken(); byId("ask-token-line").hidden = false; byId("ask-token").focus(); }
  if (wanted === action) tell(...outcomeOf(answer.status, said));
  poll();
  loadEvents();
};
byId("ask-form").addEventListener("submit", async event => {
  event.preventDefault();
  if (isSending || byId("ask-go").hidden) return;
  isSending = byId("ask-go").disabled = true;
  const action = wanted;
  try { await send(action); } catch (error) {
    forgetToken();
    byId("ask-token-line").hidden = false;
    if (wanted === action) tell([`✗ No answer (${error.message}): whether it was done is not known; the events below tell`], false);
  }
  isSending = byId("ask-go").disabled = false;
});
byId("ask-close").addEventListener("click", () => byId("ask").close());
byId("ask").addEventListener("close", () => { byId("ask-token").value = ""; wanted = null; if (opener && opener.isConnected) opener.focus(); });
byId("forget").addEventListener("click", () => { forgetToken(); byId("reload").focus(); });
byId("reload").addEventListener("click", () => askTo(RELOAD));
let changesShown = "";
const showChanges = ({ changes }) => {
  const now = JSON.stringify(changes);
  if (changesShown === now) return;
  // Another process may be set up otherwise.
  if (changesShown) { location.reload(); return; }
  changesShown = now;
  serverTable = newServerTable(changes.token && changes.servers ? [CHANGE_COLUMN] : []);
  byId("reload").hidden = !changes.token;
  byId("changes").hidden = false;
  put(byId("changes-note"), !changes.token ? "Read only: nothing can be changed from this page, since admin.token_file is not set."
    : changes.servers ? "" : "Servers cannot be changed from here: process.state is not set, or process.immutable is.");
};

const keyed = (list, key) => list.map(each => ({ key: key(each), of: each }));
const STATE_WORDS = [["down", "down"], ["ejected", "ejected"], ["name_not_found", "not found"], ["draining", "draining"], ["slow_starting", "slow-starting"], ["not_checked", "not checked"]];
const LEFT_WORDS = { expired: "expired", "under-1": "within a day", "1-to-7": "within 7 d", "7-to-14": "within 14 d", "14-to-30": "within 30 d" };
const showServers = ({ servers, backends }) => {
  const { states, found, list } = servers;
  const parts = STATE_WORDS.filter(([key]) => states[key]).map(([key, word]) => `${number(states[key])} ${word}`);
  put(byId("servers-summary"), [`${number(states.usable)} of ${number(states.total)} usable in ${many(backends.total, "backend")}`, ...parts].join(", "));
  const cut = found > list.length ? `, the worst ${number(list.length)} listed` : "";
  put(byId("servers-count"), byId("servers-filter").value ? `${number(found)} of ${number(states.total)}${cut}` : cut ? cut.slice(2) : "");
  serverTable.show(keyed(list, serverKey));
  const wanted = byId("backends-filter").value.trim().toLowerCase();
  const listed = backends.list.filter(({ name }) => name.toLowerCase().includes(wanted));
  put(byId("backends-count"), wanted ? `${number(listed.length)} of ${number(backends.total)}` : "");
  backendTable.show(keyed(listed, nameKey));
};
const showRoutes = ({ routes }) => {
  const { total, found, list } = routes, cut = found > list.length ? `the first ${number(list.length)} listed` : "";
  put(byId("routes-summary"), number(total));
  put(byId("routes-count"), byId("routes-filter").value ? [`${number(found)} of ${number(total)}`, cut].filter(Boolean).join(", ") : cut);
  routeTable.show(keyed(list, routeKey));
};
const showCertificates = ({ certificates }) => {
  const { total, by_days_left: left, found, list } = certificates;
  const parts = left.filter(([name, count]) => count && LEFT_WORDS[name]).map(([name, count]) => `${number(count)} ${LEFT_WORDS[name]}`);
  put(byId("certificates-summary"), [number(total), ...parts].join(", "));
  const filter = byId("certificates-filter").value;
  put(byId("certificates-count"), filter ? `${number(found)} found${found > list.length ? `, the first ${number(list.length)} listed` : ""}` : total > list.length ? `the first ${number(list.length)} to expire listed` : "");
  certificateTable.show(keyed(list, each => [each.profile, each.name, each.type, each.file].join("\n")));
  byId("others-table").hidden = !certificates.others.length;
  otherTable.show(keyed(certificates.others, each => [each.kind, each.of, each.name, each.file].join("\n")));
  byId("files-table").hidden = !certificates.unusable_files.length;
  fileTable.show(keyed(certificates.unusable_files, each => each.file + each.what));
};
const showHandshakes = ({ all }) => {
  const rates = rate(sample => handshakes(sample.all, every)), counts = handshakes(all, every);
  const rows = Object.entries(all.handshakes_total).flatMap(([version, kinds]) => Object.entries(kinds).map(([kind, count]) =>
    ({ version, kind, count, counts, rates, rate: rate(sample => sample.all.handshakes_total[version][kind]) })));
  handshakeTable.show(keyed(rows.filter(row => row.count), row => row.version + row.kind));
};
const showHeader = () => {
  const { version, pid, uptime_seconds: uptime, draining, configuration } = latest(), state = byId("state");
  put(byId("state-sign"), draining ? "◌" : "✓");
  put(byId("state-word"), draining ? "draining" : "serving");
  style(state, draining ? "chip warn" : "chip good");
  const generation = configuration ? `, configuration generation ${configuration.generation}` : "";
  const old = configuration && configuration.old_snapshots ? ` (and ${configuration.old_snapshots} before it in use)` : "";
  put(byId("facts"), `version ${version}, process ${pid}, up ${span(uptime)}${generation}${old}${restarted ? "; it has been started anew since this page was opened" : ""}`);
};
const show = () => {
  const status = latest();
  showHeader();
  showChanges(status);
  tiles.forEach(draw);
  showRoutes(status);
  showServers(status);
  showCertificates(status);
  latencyTable.show(LATENCIES.map(each => ({ key: each[0], of: each })));
  showHandshakes(status);
  listenerTable.show(keyed(status.listeners.list, nameKey));
  byId("signers").hidden = !status.signers.length;
  signerTable.show(status.signers.flatMap((signer, at) => signer.servers.map((server, index) =>
    ({ key: signer.name + "\n" + index, of: { signer: signer.name, server, at, index, workers: status.workers.length } }))));
  const errors = status.faults.list.map(fault => [fault, errorRate(fault) || 0]).sort((a, b) => b[1] - a[1] || b[0][3] - a[0][3]);
  errorTable.show(keyed(errors.map(([fault]) => fault), faultKey));
  showProblems();
};

// What the log has said, the newest first.
const clock = seconds => { const date = new Date(seconds * 1000); return isNaN(date) ? "?" : date.toISOString().slice(0, 19).replace("T", " "); };
const EVENT_MARKS = { error: ["✗ error", "bad"], warning: ["! warning", "warn"], info: ["· info", ""] };
const eventTable = new Table("events-table", "Times are UTC", [
  { head: "Time", kind: "date", isRowHead: true, cell: event => clock(event.time) },
  { head: "Level", kind: "short", cell: event => { const [text, kind] = EVENT_MARKS[event.level] || [event.level, ""]; return { text, kind }; } },
  { head: "What", kind: "", whole: true, cell: event => ({ text: event.text, kind: "words" }) },
], { label: "Events" });
const ask = async path => {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  if (!answer.ok) throw new Error("status " + answer.status);
  return answer.json();
};
const loadPast = async span => {
  try {
    const { times, series } = await ask("history.json?span=" + span);
    const value = at => name => series[name] ? series[name].values[at] : null;
    for (const tile of tiles) {
      const frames = times.map((time, at) => [time, tile.past(value(at))]);
      if (span === "24h") { tile.day = frames; continue; }
      const last = times.length ? times[times.length - 1] : 0;
      tile.history = [...frames, ...tile.history.filter(([time]) => time > last && time <= latest().time)];
    }
    for (const tile of tiles) if (tile.history.length) drawCurve(tile);
  } catch (error) { report(error); }
};
const loadEvents = async () => {
  try {
    events = (await ask("events.json")).events;
    eventTable.show(events.map((event, at) => ({ key: at + "\n" + event.time + event.text, of: event })).reverse());
    for (const tile of tiles) if (tile.history.length) drawCurve(tile);
    put(byId("events-summary"), events.length ? `the last ${number(events.length)} lines of the log` : "");
    settle();
  } catch (error) { report(error); }
};
const showSpan = name => {
  spanShown = name;
  for (const each of Object.keys(SPANS)) byId("span-" + each).setAttribute("aria-pressed", String(each === name));
  if (name === "24h") loadPast(name);
};
for (const name of Object.keys(SPANS)) byId("span-" + name).addEventListener("click", () => showSpan(name));
setInterval(() => { if (!document.hidden && lostSince === null && spanShown === "24h") loadPast(spanShown); }, PAST_MS);
setInterval(() => { if (!document.hidden && lostSince === null && samples.length) loadEvents(); }, EVENTS_MS);

// An engine that does not answer: how old the figures are, until it does.
const showLost = () => {
  const banner = byId("lost");
  if (lostSince !== null && samples.length) showProblems();
  if (lostSince === null) { banner.hidden = true; return; }
  const age = receivedAt ? `the figures are ${span((Date.now() - receivedAt) / 1000)} old` : "there are no figures yet";
  put(banner, `✗ No answer from the engine; ${age}. Asking again every second.`);
  banner.hidden = false;
  put(byId("state-sign"), "✗");
  put(byId("state-word"), "no answer");
  style(byId("state"), "chip bad");
};
setInterval(() => { if (lostSince !== null) showLost(); }, INTERVAL_MS);
const receive = status => {
  if (samples.length && latest().pid !== status.pid) { samples = []; restarted = true; tiles.forEach(tile => { tile.history = []; tile.day = []; }); }
  const isFirst = !samples.length;
  samples.push(status);
  while (samples[0].uptime_seconds < status.uptime_seconds - LONG_SECONDS - 2) samples.shift();
  // Single servers and errors are compared over seconds only.
  for (const old of samples) if (old.uptime_seconds < status.uptime_seconds - RATE_SECONDS - 2) { old.servers = old.faults = old.certificates = null; }
  for (const old of samples) if (old.uptime_seconds < status.uptime_seconds - SHORT_SECONDS - 2) old.routes = null;
  if (isFirst) { loadPast("5m"); loadEvents(); if (spanShown === "24h") loadPast("24h"); }
  receivedAt = Date.now();
  const wasLost = lostSince !== null;
  lostSince = null;
  showLost();
  show();
  settle();
  if (wasLost) announce("The engine answers again", true);
};
const query = () => {
  const fields = ["routes", "servers", "certificates"].map(name => [name, byId(name + "-filter").value.trim()]);
  return "?" + fields.filter(([name, value]) => value || name === "routes").map(([name, value]) => name + "=" + encodeURIComponent(value)).join("&");
};
// What goes wrong in here is a defect of ours, and to be seen.
const report = error => {
  if (!(error instanceof TypeError && /fetch/i.test(error.message)) && error.name !== "TimeoutError" && !/^status /.test(error.message)) console.error(error);
};
let timer = 0, asking = 0;
const poll = async () => {
  clearTimeout(timer);
  const turn = ++asking;
  try {
    const answer = await fetch("status.json" + query(), { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (!answer.ok) throw new Error("status " + answer.status);
    const status = await answer.json();
    if (turn !== asking) return;
    receive(status);
    if (status.cluster) pollCluster(); else if (clusters.length) { clusters = []; showCluster(); }
  } catch (error) {
    if (turn !== asking) return;
    if (lostSince === null) { lostSince = Date.now(); announce("No answer from the engine", true); }
    showLost();
    report(error);
  }
  timer = setTimeout(poll, document.hidden ? HIDDEN_INTERVAL_MS : INTERVAL_MS);
};
document.addEventListener("visibilitychange", () => { if (!document.hidden) { poll(); if (samples.length) loadPast("5m"); } });

// Filters, and links that hold them: #servers:TEXT.
let typing = 0;
const filters = ["routes", "servers", "certificates", "backends"].map(name => [name, byId(name + "-filter")]);
for (const [name, input] of filters) {
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      const value = input.value.trim();
      history.replaceState(null, "", "#" + name + (value ? ":" + encodeURIComponent(value) : ""));
      poll();
    }, TYPING_MS);
  });
  input.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    if (input.value) { input.value = ""; input.dispatchEvent(new Event("input")); event.preventDefault(); } else input.blur();
  });
}
// The section that a link led to stays at its place, whatever comes and goes above it, until somebody goes elsewhere.
// Some browsers do so themselves, Safari does not.
let ledTo = null, held = null;
const layout = () => [ledTo.getBoundingClientRect().top + scrollY, document.documentElement.scrollHeight].map(Math.round).join();
const settle = () => {
  if (!ledTo || held && held.layout === layout()) return;
  ledTo.scrollIntoView();
  held = { layout: layout(), top: scrollY };
};
new ResizeObserver(settle).observe(document.body);
const follow = () => {
  const [name, ...rest] = location.hash.slice(1).split(":");
  const filter = filters.find(([known]) => known === name);
  let value = rest.join(":");
  try { value = decodeURIComponent(value); } catch { /* it stands for itself */ }
  if (filter && filter[1].value !== value) { filter[1].value = value; poll(); }
  const section = byId(name);
  if (!section || section.tagName !== "SECTION") return;
  section.tabIndex = -1;
  ledTo = section;
  held = null;
  settle();
  // Whoever types already, since the event comes late, goes on typing.
  if (!filters.some(([, input]) => input === document.activeElement)) section.focus({ preventScroll: true });
};
addEventListener("hashchange", follow);
for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) addEventListener(kind, () => { ledTo = null; }, { passive: true });
// A search in the page, a reader of screens: it moves, and nothing has changed its size.
addEventListener("scroll", () => { if (ledTo && Math.abs(scrollY - held.top) > 1 && held.layout === layout()) ledTo = null; }, { passive: true });
document.addEventListener("keydown", event => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key !== "/" || isTyping || byId("ask").open || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const isSeen = name => { const { top, bottom } = byId(name).getBoundingClientRect(); return top < innerHeight / 2 && bottom > innerHeight / 4; };
  // A section that has the focus, as one has to which a link has led, goes before those that are in sight.
  const isFocused = ([name]) => byId(name).contains(document.activeElement);
  const name = (filters.find(isFocused) || [["certificates", "routes", "backends"].find(isSeen) || "servers"])[0];
  byId(name + "-filter").focus();
});
if (location.hash) follow(); else poll();
if (!asking) poll();
