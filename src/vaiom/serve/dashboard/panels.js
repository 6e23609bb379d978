// Figures and tables: text of the page, set as text.
import { stamp } from "./charts.js";

const BP = 1e4, MINUTE = 60_000;
const MINUTES = { min: 1, h: 60, d: 1440, w: 10080 };
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
export const points = (value, sign = true) => `${sign && value > 0 ? "+" : ""}${(BP * value).toFixed(1)}`.replace("-", "−");

export function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const signed = (value, digits) => `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(digits)}`;
export const bars = (number, timeframe) => number === 1 ? `${timeframe} bar` : `${number} ${timeframe} bars`;

// How much better than Frequency, with the half width of its 95% interval.
export function gain({ gain_bits: value, gain_error: error }) {
  return value === null ? "" : `${signed(value, 3)}${error === null ? "" : ` ± ${(1.96 * error).toFixed(3)}`}`;
}

export function sentence({ symbol, horizon, quantiles: q, prob_up: up }, timeframe) {
  const when = `the next ${bars(horizon, timeframe)}`;
  return `In nine of ten cases ${symbol} moves between ${points(q["0.05"])} and ${points(q["0.95"])} bp over ${when}; it rises with a probability of ${percent(up)}, given that it moves.`;
}

const span = (minutes) => minutes < 120 ? `${minutes} minutes` : minutes < 2880 ? `${Math.round(minutes / 60)} hours` : `${Math.round(minutes / 1440)} days`;

// How the source that the bars come from does.
export function feed(health) {
  if (!health) return "";
  const { lag_seconds: lag, failures, problem, corrections, clock_drift_seconds: drift } = health;
  return [
    lag === null ? "Followed: no bars yet" : `Followed: ${span(Math.round(lag / 60))} behind`,
    failures ? `no usable answer ${failures} times: ${problem}` : null,
    corrections ? `${corrections} stored bars differ from the source's` : null,
    Math.abs(drift) > 60 ? `its clock is ${signed(drift, 0)} s ahead` : null,
  ].filter(Boolean).join("; ");
}

export const clock = (ahead) => ahead ? `UTC${signed(ahead / 3600, 2).replace(/\.?0+$/, "")}` : "UTC";

export function age(forecast, timeframe, ahead) {
  const [, number, unit] = timeframe.match(/^(\d+)(\D+)$/), minutes = number * MINUTES[unit], zone = clock(ahead);
  const at = (text) => new Date(`${text}Z`).getTime(), shown = (time) => stamp(new Date(time).toISOString().slice(0, 19));
  const begins = at(forecast.target_time), old = Math.round((Date.now() + 1000 * ahead - at(forecast.as_of)) / MINUTE - minutes);
  const words = old < 0 ? "not over yet" : `${span(old)} ago`;
  const target = forecast.horizon === 1
    ? `Bar of ${shown(begins)} to ${shown(begins + minutes * MINUTE).slice(-5)} ${zone}`
    : `Through the bar of ${shown(begins)} ${zone}`;
  return `${target}, from ${forecast.context} bars. The last one began ${shown(at(forecast.as_of))} ${zone} and ended ${words}.`;
}

const pair = (term, ...value) => node("div", {}, node("dt", {}, term), ...value);
const figure = (id, term, value, text, unit) =>
  pair(term, node("dd", { id, "data-value": value }, text, unit ? node("small", {}, ` ${unit}`) : null));

export function figures(box, forecast) {
  const q = forecast.quantiles, risk = forecast.value_at_risk, loss = forecast.expected_shortfall;
  box.replaceChildren(
    figure("prob-up", "up, given that it moves", forecast.prob_up, percent(forecast.prob_up)),
    figure("median", "median", q["0.5"], points(q["0.5"]), "bp"),
    figure("range", "90% of outcomes", `${q["0.05"]} ${q["0.95"]}`, `${points(q["0.05"])} to ${points(q["0.95"])}`, "bp"),
    figure("var-long", "99% value at risk, long", risk.long["0.99"], points(risk.long["0.99"], false), "bp"),
    figure("var-short", "99% value at risk, short", risk.short["0.99"], points(risk.short["0.99"], false), "bp"),
    figure("es-long", "expected shortfall 99%, long", loss.long["0.99"], points(loss.long["0.99"], false), "bp"),
    figure("sigma", "scale of this moment", forecast.sigma, points(forecast.sigma, false), "bp"),
    figure("prob-zero", "exactly unchanged, in Train", forecast.prob_zero, percent(forecast.prob_zero)),
  );
}

function table(caption, head, rows) {
  return node("table", {},
    node("caption", {}, caption),
    node("thead", {}, node("tr", {}, ...head.map((each) => node("th", { scope: "col" }, each)))),
    node("tbody", {}, ...rows.map((row) => node("tr", {}, ...row.map((each) => node("td", {}, each))))));
}

export function coverage(box, calibration) {
  if (!calibration.scored) return box.replaceChildren();
  const rows = Object.entries(calibration.coverage).map(([level, share]) => [percent(level, 0), percent(share)]);
  box.replaceChildren(table(`How often the central range held the return, of ${calibration.scored}`, ["promised", "seen"], rows));
}

export function quality(box, found) {
  const masks = Object.entries(found.by_mask).map(([name, count]) => [name.replaceAll("_", " "), String(count)]);
  const words = `${found.masked} of the last ${found.bars} bars are masked`;
  box.replaceChildren(masks.length ? table(words, ["mask", "bars"], masks) : node("p", { class: "readout" }, `${words}.`));
}

export function drift(box, asset, all) {
  const { scored, model_bits: model, frequency_bits: frequency, alert } = asset.drift;
  if (!scored) return box.replaceChildren("Nothing is scored yet.");
  box.replaceChildren(
    node("strong", { id: "model-bits", "data-value": model }, model.toFixed(4)), " bits a bar, Frequency ",
    node("span", { id: "frequency-bits", "data-value": frequency }, frequency.toFixed(4)),
    `: a gain of ${gain(asset.drift)} bits (95%) over ${scored} bars. Frequency: ${all.frequency}. `,
    all.e_value == null ? "" : `Evidence on record that it beats Frequency: e = ${Number(all.e_value.toPrecision(3))}, 1 is none. `,
    alert ? node("strong", { class: "alert" }, `Alert: worse than Frequency by more than chance explains.`) : "",
  );
}

// A row for each asset: how much money, and what if it moves.
export function positions(box, assets) {
  const input = (name, symbol, label) =>
    node("input", { type: "number", step: "any", name, "data-symbol": symbol, "aria-label": `${label}, ${symbol}` });
  box.replaceChildren(table("Money in each asset, negative where short; a move turns it into a what if", ["asset", "amount", "given a move of, %"],
    assets.map(({ symbol }) => [symbol, input("amount", symbol, "amount"), input("move", symbol, "given a move in percent")])));
}

export function risk(box, found, timeframe) {
  const money = (value) => (Math.round(value) || 0).toLocaleString("en").replace("-", "−");
  const level = percent(found.level, 0), errors = found.standard_errors;
  const whole = (id, term, name) => figure(id, term, found[name], money(found[name]), `± ${money(1.96 * errors[name])}`);
  const rows = Object.entries(found.contributions).map(([symbol, each]) =>
    [symbol, money(each.amount), money(each.value_at_risk), money(each.expected_shortfall)]);
  box.replaceChildren(
    node("dl", { class: "figures" },
      whole("portfolio-var", `${level} value at risk`, "value_at_risk"),
      whole("portfolio-es", `${level} expected shortfall`, "expected_shortfall"),
      figure("portfolio-median", "median profit", found.quantiles["0.5"], money(found.quantiles["0.5"])),
      figure("portfolio-range", "98% of outcomes", "", `${money(found.quantiles["0.01"])} to ${money(found.quantiles["0.99"])}`)),
    table(`Who contributes, in money over the next ${bars(found.horizon, timeframe)}`, ["position", "amount", "value at risk", "expected shortfall"], rows),
    node("ul", { class: "notes" }, ...found.notes.map((each) => node("li", {}, each))),
  );
}

export function provenance(model, box, hashes, limits) {
  const versions = Object.entries(model.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  const text = (term, value) => pair(term, node("dd", {}, String(value)));
  const hash = (term, value) => pair(term, node("dd", { class: "hash" }, value || "–"));
  box.replaceChildren(
    text("experiment", `${model.experiment}, seed ${model.seed}, step ${model.step}`),
    text("validation", model.validation_bits === null ? "–" : `${model.validation_bits.toFixed(4)} bits a bar`),
    text("learned from bars before", model.train_end ? stamp(model.train_end) : "–"),
    text("reads", `${model.context} bars of ${model.timeframe}`),
  );
  hashes.replaceChildren(
    hash("model", model.sha256), hash("corpus", model.corpus_sha256), hash("tokenizer", model.tokenizer_sha256),
    text("runs on", `${model.engine}; ${versions}`),
  );
  limits.replaceChildren(...model.limits.map((line) => node("li", {}, line)));
}
