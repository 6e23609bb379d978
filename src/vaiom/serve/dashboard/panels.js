// Figures and tables: text of the page, set as text.
import { stamp } from "./charts.js";

const BP = 1e4;
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
export const points = (value, sign = true) => `${sign && value > 0 ? "+" : ""}${(BP * value).toFixed(1)}`.replace("-", "−");

export function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
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
  const { scored, model_bits: model, frequency_bits: frequency, gain_bits: gain, alert } = asset.drift;
  if (!scored) return box.replaceChildren("Nothing is scored yet.");
  box.replaceChildren(
    node("strong", { id: "model-bits", "data-value": model }, model.toFixed(4)), " bits a bar, Frequency ",
    node("span", { id: "frequency-bits", "data-value": frequency }, frequency.toFixed(4)),
    `, gain ${gain >= 0 ? "+" : "−"}${Math.abs(gain).toFixed(4)} over ${scored} bars. Frequency: ${all.frequency}. `,
    all.e_value == null ? "" : `On record: better than Frequency with e = ${Number(all.e_value.toPrecision(3))}. `,
    alert ? node("strong", { class: "alert" }, `Alert: worse than Frequency by more than chance explains.`) : "",
  );
}

export function provenance(box, limits, model) {
  const versions = Object.entries(model.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  const text = (term, value) => pair(term, node("dd", {}, String(value)));
  const hash = (term, value) => pair(term, node("dd", { class: "hash" }, value || "–"));
  box.replaceChildren(
    text("experiment", `${model.experiment}, seed ${model.seed}, step ${model.step}`),
    text("validation", model.validation_bits === null ? "–" : `${model.validation_bits.toFixed(4)} bits a bar`),
    text("learned from bars before", model.train_end ? stamp(model.train_end) : "–"),
    text("reads", `${model.context} bars of ${model.timeframe}`),
    hash("model", model.sha256), hash("corpus", model.corpus_sha256), hash("tokenizer", model.tokenizer_sha256),
    text("runs on", `${model.engine}; ${versions}`),
  );
  limits.replaceChildren(...model.limits.map((line) => node("li", {}, line)));
}
