// Drawings. Each takes the element to draw in and plain values, and replaces what was there.
import { cdf } from "./distribution.js";

const BP = 1e4;
const SPACE = "http://www.w3.org/2000/svg";

export const stamp = (text) => text.replace("T", " ").replace(/:00$/, "");
const LEVELS = ["0.05", "0.25", "0.5", "0.75", "0.95"];

function svg(box, label) {
  const width = Math.max(box.clientWidth, 200), height = box.clientHeight;
  const root = document.createElementNS(SPACE, "svg");
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  root.setAttribute("role", "img");
  root.setAttribute("aria-label", label);
  box.replaceChildren(root);
  return { root, width, height };
}

function add(root, name, attributes, text) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, typeof value === "number" ? value.toFixed(2) : value);
  }
  if (text !== undefined) node.textContent = text;
  root.append(node);
  return node;
}

const scale = (from, to, low, high) => (value) => low + (value - from) / (to - from || 1) * (high - low);

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const out = [];
  for (let index = Math.ceil(low / step); index * step <= high + step * 1e-9; index++) out.push(index * step);
  return { values: out, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function empty(box, words) {
  const line = document.createElement("p");
  line.className = "empty";
  line.textContent = words;
  box.replaceChildren(line);
}

// Bars with the range that was forecast before each, and the fan of those to come. Returns what a reader asks of a place.
export function candles(box, history, forecasts) {
  const narrow = box.clientWidth < 560;
  const bars = history.bars.filter((bar) => bar.close !== null).slice(narrow ? -40 : -96);
  if (!bars.length) return empty(box, "No bars yet.");
  const { root, width, height } = svg(box, `Last ${bars.length} bars of ${history.symbol} with forecast ranges`);
  const right = width - 58, bottom = height - 22, farthest = forecasts.at(-1)?.horizon ?? 1;
  const ahead = Math.max(farthest, narrow ? 4 : 7) + 1;
  const slot = right / (bars.length + ahead), body = Math.max(1.2, slot * 0.56);
  const places = new Map(bars.map((bar, index) => [bar.datetime, index]));
  const fans = new Map();
  for (const each of history.forecasts) {
    const target = places.get(each.target_time), before = places.get(each.as_of);
    if (target === undefined || before === undefined) continue;
    const level = (q) => bars[before].close * Math.exp(each.quantiles[q]);
    fans.set(target, { each, low: level("0.05"), q1: level("0.25"), median: level("0.5"), q3: level("0.75"), high: level("0.95") });
  }
  const close = bars[bars.length - 1].close;
  // Horizons to scale; one alone is drawn wider than its bar.
  const next = forecasts.map((each) => ({
    place: bars.length - 1 + (farthest === 1 ? ahead - 2 : each.horizon), horizon: each.horizon,
    ...Object.fromEntries(LEVELS.map((q) => [q, close * Math.exp(each.quantiles[q])])),
  }));
  const prices = bars.flatMap((bar) => [bar.low ?? bar.close, bar.high ?? bar.close])
    .concat([...fans.values()].flatMap((fan) => [fan.low, fan.high]), next.flatMap((each) => [each["0.05"], each["0.95"]]));
  const low = Math.min(...prices), high = Math.max(...prices), margin = (high - low) * 0.04;
  const y = scale(low - margin, high + margin, bottom, 6), x = (index) => (index + 0.5) * slot;
  const grid = ticks(low, high, 5);
  for (const price of grid.values) {
    add(root, "line", { class: "axis", x1: 0, x2: right, y1: y(price), y2: y(price) });
    add(root, "text", { x: right + 6, y: y(price) + 4 }, price.toFixed(grid.digits));
  }
  const labelled = Math.ceil(130 / slot);
  bars.forEach((bar, index) => {
    if (index % labelled || x(index) > right - 60) return;
    add(root, "text", { x: x(index), y: height - 5, "text-anchor": index ? "middle" : "start" }, stamp(bar.datetime).slice(5));
  });
  for (const [index, fan] of fans) {
    const left = x(index) - slot * 0.46, wide = slot * 0.92;
    add(root, "rect", { class: "fan90", x: left, width: wide, y: y(fan.high), height: y(fan.low) - y(fan.high) });
    add(root, "rect", { class: "fan50", x: left, width: wide, y: y(fan.q3), height: y(fan.q1) - y(fan.q3) });
    add(root, "line", { class: "median", x1: left, x2: left + wide, y1: y(fan.median), y2: y(fan.median) });
  }
  bars.forEach((bar, index) => {
    const open = bar.open ?? bar.close, top = Math.max(open, bar.close), foot = Math.min(open, bar.close);
    const kind = bar.masks.length ? "masked-bar" : bar.close >= open ? "up-bar" : "down-bar";
    add(root, "line", { class: kind, x1: x(index), x2: x(index), y1: y(bar.high ?? top), y2: y(bar.low ?? foot) });
    add(root, "rect", { class: kind, x: x(index) - body / 2, width: body, y: y(top), height: Math.max(1, y(foot) - y(top)), "stroke-width": 0 });
  });
  if (next.length) {
    const start = `${x(bars.length - 1)},${y(close)}`, along = (q) => next.map((each) => `${x(each.place)},${y(each[q])}`);
    const cone = (a, b) => `M${[start, ...along(a), ...along(b).reverse()].join("L")}Z`;
    add(root, "path", { class: "fan90 next", d: cone("0.05", "0.95") });
    add(root, "path", { class: "fan50 next", d: cone("0.25", "0.75") });
    add(root, "path", { class: "median", fill: "none", d: `M${[start, ...along("0.5")].join("L")}` });
    const end = next.at(-1);
    for (const q of ["0.05", "0.95"]) {
      add(root, "text", { class: "strong", x: x(end.place) + 3, y: y(end[q]) + (q === "0.05" ? 12 : -4), "text-anchor": "end" }, `${100 * q}%`);
    }
    if (farthest > 1) for (const each of next) {
      add(root, "line", { class: "axis", x1: x(each.place), x2: x(each.place), y1: y(each["0.05"]), y2: y(each["0.95"]) });
      if (each.horizon > 1) add(root, "text", { x: x(each.place), y: height - 5, "text-anchor": "middle" }, `+${each.horizon}`);
    }
  }
  const cursor = add(root, "line", { class: "cursor", y1: 0, y2: bottom, x1: -9, x2: -9 });
  return {
    number: bars.length,
    at: (clientX) => Math.min(bars.length - 1, Math.max(0, Math.floor((clientX - root.getBoundingClientRect().left) / slot))),
    read: (index) => {
      cursor.setAttribute("x1", x(index));
      cursor.setAttribute("x2", x(index));
      return { bar: bars[index], settled: fans.get(index)?.each };
    },
  };
}

// The density of the next return; what lies beyond the chosen move is darker. The distribution is made of buckets, whose
// edges mean nothing to a reader: each point is the mean over a window as wide as a bucket, taken twice.
export function distribution(box, forecast, beyond) {
  const spread = 1.15 * Math.max(-forecast.quantiles["0.01"], forecast.quantiles["0.99"]);
  const { root, width, height } = svg(box, "Density of the next return, in basis points");
  const points = 181, bottom = height - 22, step = 2 * spread / (points - 1), half = 8;
  const sums = Array.from({ length: points + 4 * half }, (_, index) => cdf(forecast.law, -spread + (index - 2 * half) * step));
  const widened = (values) => values.slice(2 * half).map((value, index) => value - values[index]);
  const running = (values) => { let sum = 0; return values.map((value) => (sum += value)); };
  const density = widened(running(widened(sums)));
  const x = scale(0, points - 1, 0, width), y = scale(0, Math.max(...density), bottom, 8), at = scale(-spread, spread, 0, points - 1);
  const area = (from, to) => {
    const first = Math.max(0, Math.ceil(from)), last = Math.min(density.length - 1, Math.floor(to));
    if (last < first) return "";
    const line = density.slice(first, last + 1).map((value, index) => `${x(first + index).toFixed(1)},${y(value).toFixed(1)}`);
    return `M${x(first)},${bottom}L${line.join("L")}L${x(last)},${bottom}Z`;
  };
  const [low, high] = [at(-beyond), at(beyond)];
  add(root, "path", { class: "mass", d: area(low, high) });
  add(root, "path", { class: "mass out", d: `${area(0, low)}${area(high, points)}` });
  add(root, "line", { class: "base", x1: 0, x2: width, y1: bottom, y2: bottom });
  for (const edge of [low, high]) add(root, "line", { class: "cursor", x1: x(edge), x2: x(edge), y1: 4, y2: bottom });
  const grid = ticks(-spread * BP, spread * BP, Math.max(5, Math.floor(width / 60)));
  for (const value of grid.values) {
    const place = x(at(value / BP));
    if (place < 16 || place > width - 16) continue;
    add(root, "text", { x: place, y: height - 5, "text-anchor": "middle" }, `${value > 0 ? "+" : ""}${value.toFixed(grid.digits)}`);
  }
  add(root, "text", { x: width, y: 12, "text-anchor": "end" }, "basis points");
}

// Running means of the losses, from the first remembered bar on.
export function running(box, scored) {
  if (scored.length < 2) return empty(box, "Bars are scored as they come: each against the forecast made before it.");
  const { root, width, height } = svg(box, "Running mean bits of the model and of Frequency");
  const right = width - 74, bottom = height - 22;
  const means = (name) => {
    let sum = 0;
    return scored.map((each, index) => (sum += each[name]) / (index + 1));
  };
  const lines = { model: means("model_bits"), frequency: means("frequency_bits") };
  // The first few means are all noise and would set the scale.
  const settled = Object.values(lines).flatMap((line) => line.slice(Math.min(8, line.length - 2)));
  const low = Math.min(...settled), high = Math.max(...settled), margin = Math.max((high - low) * 0.1, 0.02);
  const y = scale(low - margin, high + margin, bottom, 8), x = scale(0, scored.length - 1, 34, right);
  const grid = ticks(low - margin, high + margin, 4);
  for (const value of grid.values) {
    add(root, "line", { class: "axis", x1: 34, x2: right, y1: y(value), y2: y(value) });
    add(root, "text", { x: 28, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(Math.max(grid.digits, 1)));
  }
  const inside = (value) => Math.min(bottom, Math.max(4, y(value)));
  const ends = Object.entries(lines).map(([name, line]) => {
    const path = line.map((value, index) => `${index ? "L" : "M"}${x(index).toFixed(1)},${inside(value).toFixed(1)}`);
    add(root, "path", { class: `line-${name}`, d: path.join("") });
    return { name, at: inside(line[line.length - 1]) };
  }).sort((a, b) => a.at - b.at);
  if (ends[1].at - ends[0].at < 14) ends[1].at = ends[0].at + 14;
  for (const { name, at } of ends) {
    add(root, "text", { class: name === "model" ? "strong" : "", x: right + 6, y: at + 4 }, name === "model" ? "model" : "Frequency");
  }
  add(root, "text", { x: 34, y: height - 5 }, stamp(scored[0].target_time).slice(0, 10));
  add(root, "text", { x: right, y: height - 5, "text-anchor": "end" }, stamp(scored[scored.length - 1].target_time).slice(0, 10));
}

// Where returns fell in their forecasts; even where the model is calibrated.
export function pit(box, calibration) {
  const { scored, pit_counts: counts } = calibration;
  if (!scored) return empty(box, "No forecast has been scored yet.");
  const { root, width, height } = svg(box, `Where ${scored} returns fell in their forecasts, in tenths`);
  const bottom = height - 22, even = scored / counts.length;
  const noise = 1.96 * Math.sqrt(even * (1 - 1 / counts.length));
  const y = scale(0, Math.max(...counts, even + noise) * 1.08, bottom, 4), slot = width / counts.length;
  counts.forEach((count, index) => {
    add(root, "rect", { class: "mass", x: index * slot + 1, width: slot - 2, y: y(count), height: bottom - y(count) });
    add(root, "text", { x: (index + 0.5) * slot, y: y(count) - 4, "text-anchor": "middle" }, count);
  });
  add(root, "rect", { class: "band", x: 0, width, y: y(even + noise), height: y(Math.max(0, even - noise)) - y(even + noise) });
  add(root, "line", { class: "even", x1: 0, x2: width, y1: y(even), y2: y(even) });
  add(root, "line", { class: "base", x1: 0, x2: width, y1: bottom, y2: bottom });
  add(root, "text", { x: 0, y: height - 5 }, "lower than expected");
  add(root, "text", { x: width, y: height - 5, "text-anchor": "end" }, "higher than expected");
}

// One mark for each bar, oldest first.
export function strip(box, bars) {
  if (!bars.length) return empty(box, "No bars yet.");
  const masked = bars.filter((bar) => bar.masks.length).length;
  const { root, width, height } = svg(box, `${masked} of the last ${bars.length} bars are masked`);
  const slot = width / bars.length;
  bars.forEach((bar, index) => {
    const bad = bar.masks.length > 0, tall = height * (bad ? 0.9 : 0.5);
    const mark = add(root, "rect", { class: bad ? "bad-bar" : "ok-bar", x: index * slot, width: Math.max(0.8, slot * 0.7), y: height - tall, height: tall });
    if (bad) add(mark, "title", {}, `${stamp(bar.datetime)}: ${bar.masks.join(", ")}`);
  });
}
