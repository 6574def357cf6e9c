// Plots as SVG. The gateway counts the figures.

import { h } from "./dom.js";
import { count, duration, shortTime, weekdayName } from "./format.js";

const WIDTH = 600;

/** Executions over time as bars; the lower part of a bar are the failed ones. */
export function throughput(series, { height = 120 } = {}) {
  const { buckets } = series;
  const most = Math.max(1, ...buckets.map((bucket) => bucket.executions));
  const step = WIDTH / buckets.length;
  const scale = (number) => (number / most) * (height - 4);
  return plot(series, height, most.toLocaleString(), `Executions over time, at most ${most} in ${duration(series.bucket_ms)}`, buckets.map((bucket, index) => {
    const whole = scale(bucket.executions), bad = bucket.failures && Math.max(3, scale(bucket.failures));
    const x = index * step + step * 0.12, width = step * 0.76;
    return h("g", { key: bucket.at },
      whole > 0 && h("rect", { class: "bar ok", x, y: height - whole, width, height: Math.max(1.5, whole) }),
      bad > 0 && h("rect", { class: "bar bad", x, y: height - bad, width, height: bad }),
      hover(index * step, step, height, `${clock(bucket.at, series)}: ${bucket.sampled ? "about " : ""}${count(bucket.executions, "execution")}, ${bucket.failures} failed`));
  }));
}

/** Lines over time: `curves` are [class, label, function of a bucket]. */
export function lines(series, curves, { height = 120, label, format = duration } = {}) {
  const { buckets } = series;
  const most = Math.max(1, ...buckets.flatMap((bucket) => curves.map(([, , value]) => value(bucket) ?? 0)));
  const step = WIDTH / buckets.length;
  const y = (value) => height - 2 - (value / most) * (height - 6);
  const shown = (value) => (value === null || value === undefined ? "none" : format(value));
  return plot(series, height, format(most), `${label}, at most ${format(most)}`, [
    curves.map(([name, , value]) => h("path", { key: name, class: `line ${name}`, d: trace(buckets.map((bucket, index) => {
      const figure = value(bucket);
      return figure === null || figure === undefined ? null : [index * step + step / 2, y(figure)];
    })) })),
    buckets.map((bucket, index) => hover(index * step, step, height, `${clock(bucket.at, series)}: ${curves.map(([, text, value]) => `${text} ${shown(value(bucket))}`).join(", ")}`)),
  ]);
}

/** The path through the points; a missing one interrupts it, and a lone one is drawn as a dot. */
function trace(points) {
  return points.map((point, index) => {
    if (!point) return "";
    const [x, y] = point.map((coordinate) => coordinate.toFixed(1));
    const alone = !points[index - 1] && !points[index + 1];
    return points[index - 1] ? `L${x} ${y}` : alone ? `M${x} ${y}h0.01` : `M${x} ${y}`;
  }).join("");
}

/** A tiny line without axes, beside a name. */
export function sparkline(values, label, kind = "ok") {
  const most = Math.max(1, ...values.map((value) => value ?? 0));
  const step = 100 / Math.max(1, values.length - 1);
  return h("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { class: `line ${kind}`, d: trace(values.map((value, index) => (value === null || value === undefined ? null : [index * step, 22 - (value / most) * 20]))) }));
}

/** A cell for each of [value, text]: the larger the value, the darker the cell. */
export function heat(cells, label) {
  const most = Math.max(1, ...cells.map(([value]) => value));
  return h("svg", { class: "heat", viewBox: `0 0 ${cells.length * 10} 14`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    cells.map(([value, text], index) => h("rect", { key: index, x: index * 10 + 0.5, y: 0, width: 9, height: 14, class: value ? "cell hot" : "cell", "fill-opacity": value ? (0.35 + 0.65 * (value / most)).toFixed(2) : 1 }, h("title", {}, text))));
}

/** The frame of a plot: the largest value above it, instants below it. */
function plot(series, height, most, label, children) {
  const { buckets } = series;
  const every = Math.ceil(buckets.length / 6);
  return h("figure", { class: "plot" },
    h("span", { class: "most" }, most),
    h("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label, vars: { "--height": `${height}px` } }, children),
    h("div", { class: "ticks", "aria-hidden": "true" }, buckets.filter((_, index) => index % every === 0).map((bucket) => h("span", { key: bucket.at }, clock(bucket.at, series)))));
}

function hover(x, width, height, text) {
  return h("rect", { class: "hover", x, y: 0, width, height }, h("title", {}, text));
}

/** The hour of an instant, or its day of the week in a plot of several days. */
function clock(iso, { buckets, bucket_ms: span }) {
  return span * buckets.length > 2 * 86_400_000 ? weekdayName(iso) : shortTime(iso);
}
