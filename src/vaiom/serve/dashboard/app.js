// The page: which asset is looked at, what is fetched and when, keys and pointer.
import { get, Refused, useKey } from "./api.js";
import * as charts from "./charts.js";
import { above, below } from "./distribution.js";
import * as panels from "./panels.js";

const BP = 1e4, EVERY = 5000;
const by = (id) => document.getElementById(id);
const page = {
  model: null, assets: null, symbol: null, horizon: 1, seen: "", listed: "", history: null, forecasts: [], reader: null, place: null,
  get forecast() { return this.forecasts.find((each) => each.horizon === this.horizon); },
};

function listAssets() {
  const list = by("assets"), held = list.contains(document.activeElement);
  by("timeframe").textContent = `next ${page.assets.timeframe} bar, ${page.assets.assets.length} assets`;
  list.replaceChildren(...page.assets.assets.map((asset) => {
    const chosen = asset.symbol === page.symbol, { alert } = asset.drift;
    return panels.node("button", {
      type: "button", role: "option", id: `asset-${asset.symbol}`, "data-symbol": asset.symbol,
      "aria-selected": String(chosen), tabindex: chosen ? "0" : "-1",
    },
    panels.node("b", {}, asset.symbol),
    panels.node("span", { class: "up" }, asset.prob_up === null ? "" : panels.percent(asset.prob_up)),
    panels.node("small", {}, asset.close === null ? "no bars" : String(Number(asset.close.toPrecision(8)))),
    panels.node("small", { class: alert ? "up alert" : "up" }, panels.gain(asset.drift)));
  }));
  const chosen = list.querySelector('[aria-selected="true"]');
  if (held) chosen?.focus();
  // Within the list alone: the page stays where the reader has scrolled it.
  if (chosen) list.scrollLeft = Math.max(0, chosen.offsetLeft - list.offsetLeft - list.clientWidth / 3);
}

async function choose(symbol) {
  page.symbol = symbol;
  page.seen = "";
  history.replaceState(null, "", `#${encodeURIComponent(symbol)}`);
  listAssets();
  await refresh();
}

async function refresh() {
  const [assets, { feeds }] = await Promise.all([get("v1/assets"), get("readyz")]);
  page.assets = assets;
  const known = page.assets.assets.map((asset) => asset.symbol);
  if (!known.includes(page.symbol)) {
    const wanted = decodeURIComponent(location.hash.slice(1));
    page.symbol = known.includes(wanted) ? wanted : (page.assets.assets.find((each) => each.ready) ?? page.assets.assets[0]).symbol;
  }
  listAssets();
  by("feed").textContent = panels.feed(feeds[page.symbol]);
  const symbol = page.symbol, asset = page.assets.assets.find((each) => each.symbol === symbol);
  const ready = page.assets.assets.filter((each) => each.ready);
  const now = JSON.stringify([symbol, asset, ready.map((each) => each.symbol)]), path = `v1/assets/${encodeURIComponent(symbol)}`;
  if (now === page.seen) {  // without a bar, a forecast grows old
    const forecast = asset.ready ? await get(`${path}/forecast?horizon=${page.horizon}`) : undefined;
    if (symbol === page.symbol && forecast?.horizon === page.horizon) caution(asset, forecast);
    return;
  }
  meet(await get("v1/model"), ready);
  const [seen, ...forecasts] = await Promise.all([
    get(`${path}/history?last=512`),
    ...(asset.ready ? page.model.horizons.map((each) => get(`${path}/forecast?law=true&horizon=${each}`)) : []),
  ]);
  if (symbol !== page.symbol) return;
  Object.assign(page, { seen: now, history: seen, forecasts, place: null });
  show(asset);
}

function show(asset) {
  const { forecast } = page;
  by("content").hidden = false;
  document.title = `${asset.symbol} · VAIOM`;
  by("symbol").textContent = asset.symbol;
  by("sentence").textContent = forecast ? panels.sentence(forecast, page.model.timeframe) : "";
  caution(asset, forecast);
  for (const id of ["figures", "distribution", "beyond"]) by(id).closest("section, dl").hidden = !forecast;
  if (forecast) {
    panels.figures(by("figures"), forecast);
    const slider = by("beyond");
    slider.max = Math.ceil(4 * BP * forecast.sigma);
    slider.step = slider.max > 100 ? 1 : 0.5;
    slider.value = Math.round(BP * forecast.sigma / slider.step) * slider.step;
  }
  panels.drift(by("drift"), asset, page.assets);
  panels.coverage(by("coverage"), page.history.calibration);
  panels.quality(by("quality"), page.history.quality);
  draw();
}

function caution(asset, forecast) {
  by("when").textContent = forecast
    ? panels.age(forecast, page.model.timeframe, page.assets.utc_offset_seconds)
    : `${asset.num_bars} bars so far: too few for a forecast`;
  by("notes").replaceChildren(...(forecast?.notes ?? []).map((each) => panels.node("li", {}, each)));
  by("clock").textContent = panels.clock(page.assets.utc_offset_seconds);
}

function draw() {
  if (!page.history) return;
  page.reader = charts.candles(by("candles"), page.history, page.forecasts);
  read(page.place);
  charts.running(by("running"), page.history.forecasts.filter((each) => each.model_bits !== null));
  charts.pit(by("pit"), page.history.calibration);
  charts.strip(by("strip"), page.history.bars);
  beyond();
}

function beyond() {
  if (!page.forecast) return;
  const at = by("beyond").valueAsNumber / BP, up = above(page.forecast.law, at), down = below(page.forecast.law, at);
  const words = { "prob-beyond": up + down, "prob-above": up, "prob-below": down };
  for (const [id, share] of Object.entries(words)) {
    by(id).textContent = panels.percent(share);
    by(id).dataset.value = share;
  }
  by("beyond-at").textContent = `${(BP * at).toFixed(1)} bp`;
  charts.distribution(by("distribution"), page.forecast, at);
}

function read(index) {
  if (!page.reader) { by("readout").textContent = ""; return; }
  const last = page.reader.number - 1;
  const { bar, settled } = page.reader.read(Math.min(index ?? last, last));
  const bits = settled?.model_bits === null || settled === undefined ? "" : `, ${settled.model_bits.toFixed(2)} bits`;
  const expected = settled
    ? `; expected ${panels.points(settled.quantiles["0.05"])} to ${panels.points(settled.quantiles["0.95"])} bp, realised ${settled.log_return === null ? "–" : panels.points(settled.log_return)}${bits}${settled.replayed ? " (replayed)" : ""}`
    : "";
  by("readout").textContent = `${charts.stamp(bar.datetime)}  close ${bar.close}${bar.masks.length ? ` (masked: ${bar.masks.join(", ")})` : ""}${expected}`;
}

function listen() {
  by("assets").addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) guarded(() => choose(option.dataset.symbol));
  });
  by("assets").addEventListener("keydown", (event) => {
    const options = [...by("assets").children], at = options.findIndex((each) => each.dataset.symbol === page.symbol);
    const steps = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: options.length - 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = options[Math.min(options.length - 1, Math.max(0, steps[event.key]))];
    next.focus();
    guarded(() => choose(next.dataset.symbol));
  });
  by("candles").addEventListener("pointermove", (event) => {
    if (page.reader) read(page.place = page.reader.at(event.clientX));
  });
  by("candles").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !page.reader) return;
    event.preventDefault();
    page.place = Math.min(page.reader.number - 1, Math.max(0, (page.place ?? page.reader.number - 1) + step));
    read(page.place);
  });
  by("beyond").addEventListener("input", beyond);
  by("horizon").addEventListener("change", () => {
    page.horizon = Number(by("horizon").value);
    show(page.assets.assets.find((each) => each.symbol === page.symbol));
  });
  by("positions").addEventListener("submit", (event) => {
    event.preventDefault();
    guarded(weigh);
  });
  by("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(by("key").value);
    guarded(refresh);
  });
  new ResizeObserver(draw).observe(by("candles"));
}

// What the positions of the form may lose over the chosen horizon; the service computes it.
async function weigh() {
  const read = (name) => Object.fromEntries([...by("amounts").querySelectorAll(`input[name=${name}]`)]
    .filter((each) => each.value !== "").map((each) => [each.dataset.symbol, each.valueAsNumber]));
  // People move prices by percent; the service takes log returns.
  const given = Object.fromEntries(Object.entries(read("move")).map(([symbol, move]) => [symbol, Math.log1p(move / 100)]));
  by("portfolio-status").textContent = "Computing";
  by("risk").replaceChildren();
  try {
    const asked = { positions: read("amount"), given, horizon: page.horizon, level: Number(by("level").value) };
    panels.risk(by("risk"), await get("v1/portfolio", asked), page.model.timeframe);
    by("portfolio-status").textContent = "";
  } catch (error) {
    if (!(error instanceof Refused) || error.status === 401) throw error;
    by("portfolio-status").textContent = error.message;
  }
}

async function guarded(work) {
  try {
    await work();
    by("status").textContent = "";
    by("key-form").hidden = true;
  } catch (error) {
    by("status").textContent = error instanceof Refused ? error.message : "The service does not answer; trying again.";
    if (error instanceof Refused && error.status === 401) by("key-form").hidden = false;
    else if (!(error instanceof Refused) && !(error instanceof TypeError)) throw error;
  }
}

// The model, another one where the service was started again with it, and the assets that may be in a portfolio.
function meet(model, ready) {
  const listed = JSON.stringify([model, ready.map((each) => each.symbol)]);
  if (listed === page.listed) return;
  Object.assign(page, { model, listed, horizon: model.horizons.includes(page.horizon) ? page.horizon : 1 });
  by("horizon").replaceChildren(...model.horizons.map((each) => panels.node("option", { value: each }, panels.bars(each, model.timeframe))));
  by("horizon").value = page.horizon;
  panels.provenance(model, by("provenance"), by("hashes"), by("limits"));
  by("portfolio").hidden = !model.has_joint || !ready.length;
  panels.positions(by("amounts"), ready);
}

listen();
guarded(refresh);
setInterval(() => { if (!document.hidden && by("key-form").hidden) guarded(refresh); }, EVERY);
