// Executions, failures, run times and waits over a day or a week.

import { may, path } from "../api.js";
import { heat, lines, throughput } from "../charts.js";
import { h } from "../dom.js";
import { count, duration } from "../format.js";
import { Page } from "../page.js";
import { empty, linesOf, link, loading, pluginLink, section, tabs } from "../parts.js";

const SPANS = { day: ["24h", 48, "Last 24 hours"], week: ["7d", 42, "Last 7 days"] };

export class FiguresPage extends Page {
  get title() { return "Figures"; }

  get span() { return this.query.span === "week" ? "week" : "day"; }

  start() {
    this.refresh();
    this.every(30_000, () => this.refresh());
  }

  refresh() {
    const [since, buckets] = SPANS[this.span];
    this.load("series", "/analytics/series", { since, buckets });
    if (may("plugin.stats")) this.load("plugins", "/analytics/plugins", { since });
  }

  view() {
    const { series } = this.data;
    return [
      h("h1", {}, "Figures"),
      this.problems("series", "plugins"),
      h("div", { class: "panel spaced" }, tabs("Span", this.span, [["day", "Day"], ["week", "Week"]], (name) => { this.setQuery({ span: name === "week" ? name : "" }); this.refresh(); this.render(); })),
      !series ? section("Executions", {}, loading(4)) : h("div", { class: "pairs" },
        section("Executions", { id: "executions", note: `${count(series.executions, "execution")}, ${series.failures} failed` }, throughput(series)),
        section("Run time", { id: "run-time", note: legend() }, lines(series, percentiles("run_ms"), { label: "Run time" })),
        section("Wait before the first start", { id: "wait", note: legend() }, lines(series, percentiles("wait_ms"), { label: "Wait" })),
        section("Failures by plugin", { id: "failures" }, failures(series))),
      this.table(),
    ];
  }

  table() {
    const rows = this.data.plugins?.plugins;
    if (!rows) return null;
    return section("Plugins", { id: "plugins", note: SPANS[this.span][2] }, rows.length === 0 ? empty("Nothing ran in this time.") : h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Figures of plugins" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Plugin", "Executions", "Failed", "Retries", "Run time p50", "p95", "Wait p95"].map((name, index) => h("th", { key: name, class: index ? "right" : "", scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", { key: row.plugin },
        h("th", { scope: "row" }, row.plugin === "pipeline" ? "pipeline" : pluginLink(row.plugin)),
        figures(row).map((text, index) => h("td", { key: index, class: index === 1 && row.failures ? "right error-text" : "right" }, text))))))));
  }
}

function figures({ executions, failures, retries, run_ms: run, wait_ms: wait }) {
  return [executions.toLocaleString(), failures.toLocaleString(), retries.toLocaleString(), duration(run?.p50), duration(run?.p95), duration(wait?.p95)];
}

function percentiles(name) {
  return [["p95", "95 % within", (bucket) => bucket[name]?.p95], ["p50", "median", (bucket) => bucket[name]?.p50]];
}

function legend() {
  return h("span", { class: "legend" }, h("i", { class: "p50" }), "median", h("i", { class: "p95" }), "95 %");
}

function failures(series) {
  const names = [...new Set(series.buckets.flatMap((bucket) => Object.keys(bucket.failures_by_plugin)))].sort();
  if (!names.length) return empty("Nothing failed in this time.");
  return linesOf(names.map((name) => {
    const total = series.buckets.reduce((sum, bucket) => sum + (bucket.failures_by_plugin[name] ?? 0), 0);
    const cells = series.buckets.map(({ at, failures_by_plugin: failed }) => [failed[name] ?? 0, `${new Date(at).toLocaleString()}: ${failed[name] ?? 0} failed`]);
    return h("li", { key: name },
      h("span", { class: "name-cell" }, link(path`/ui/jobs?plugin=${name}&status=failed`, name)),
      heat(cells, `Failures of ${name}: ${total}`), h("span", { class: "num right" }, total.toLocaleString()));
  }));
}
