// Plugins: their figures, circuit breakers and state, and a form to run their commands.

import { get, may, mayRun, maySee, path, post } from "../api.js";
import { sparkline } from "../charts.js";
import { curl } from "../commands.js";
import { attempt } from "../dialog.js";
import { h } from "../dom.js";
import { count, duration, quoted, runTime, words } from "../format.js";
import { fieldViews, fields, parse, readFields } from "../form.js";
import { Page } from "../page.js";
import { ago, badge, button, copyButton, empty, errorBox, facts, jobLink, linesOf, link, loading, output, padded, pluginLink, section, soft, softLine, softNumber, wide } from "../parts.js";

export class PluginsPage extends Page {
  get title() { return "Plugins"; }

  start() {
    this.refresh();
    this.every(15_000, () => this.refresh());
  }

  refresh() {
    this.load("plugins", "/plugins");
    if (may("plugin.stats")) this.load("stats", "/analytics/plugins");
    if (may("system.status")) this.load("status", "/system/status");
  }

  view() {
    const plugins = this.data.plugins?.plugins;
    return [h("h1", {}, "Plugins"), this.problems("plugins"),
      section("All plugins", { id: "all", note: plugins && count(plugins.length, "plugin") },
        !plugins ? loading(4)
        : plugins.length === 0 ? empty("No plugin is configured.", h("p", {}, "Add one: ", h("code", {}, "ductile plugin add SOURCE")))
        : h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Plugins" }, this.table(plugins)))];
  }

  table(plugins) {
    const names = ["Plugin", "Last run", "Health", "Executions", "Failed", "p95"];
    return h("table", { class: "stacked" },
      h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { key: name, scope: "col", class: index > 2 ? "right" : "" }, name)))),
      h("tbody", {}, plugins.map((plugin) => this.row(plugin))));
  }

  row(plugin) {
    const stats = this.data.stats?.plugins.find((figures) => figures.plugin === plugin.name);
    const status = this.data.status?.plugins.find((known) => known.name === plugin.name);
    const open = Object.values(status?.breakers ?? {}).find((breaker) => breaker.state !== "closed");
    const figure = (name, value, kind = "") => h("td", { key: name, class: `right ${kind}`, "data-name": name }, value);
    return h("tr", { key: plugin.name },
      h("th", { scope: "row", class: "wraps" }, maySee(plugin.name) ? pluginLink(plugin.name) : h("strong", {}, plugin.name), " ", h("span", { class: "soft small" }, plugin.description), " ",
        plugin.standing !== "active" && h("span", { class: "badge warn" }, words(plugin.standing)),
        plugin.unhealthy && h("span", { class: "badge failed" }, "unhealthy"),
        open && h("span", { class: "badge failed" }, `breaker ${words(open.state)}`)),
      h("td", {}, status?.last_run ? [badge(status.last_run.status), " ", h("span", { class: "soft small" }, ago(status.last_run.completed_at))] : soft("never")),
      h("td", {}, status?.health ? badge(status.health, status.health_error) : soft("not checked")),
      figure("executions", (stats?.executions ?? 0).toLocaleString()),
      figure("failed", (stats?.failures ?? 0).toLocaleString(), stats?.failures ? "error-text" : ""),
      figure("p95", duration(stats?.run_ms?.p95)));
  }
}

export class PluginPage extends Page {
  get title() { return this.parameters.name; }

  start() {
    this.started = null;
    this.problem = null;
    this.refresh();
    this.follow(() => this.refreshJobs(), { settle: 500 });
  }

  refresh() {
    const { name } = this.parameters;
    this.load("plugin", path`/plugin/${name}`);
    this.load("state", path`/plugin/${name}/state`);
    if (may("system.breaker")) this.load("breaker", path`/system/breaker/${name}`);
    this.refreshJobs();
  }

  refreshJobs() {
    const { name } = this.parameters;
    if (may("job.list")) this.load("jobs", "/jobs", { plugin: name, limit: 10 });
    if (may("log.series")) this.load("series", "/analytics/series", { plugin: name, buckets: 48 });
    if (this.started) this.followStarted();
  }

  async followStarted() {
    if (!may("job.show")) return;
    this.started.job = await get(path`/job/${this.started.id}`).catch(() => this.started.job);
    this.render();
  }

  view() {
    const { plugin } = this.data;
    if (this.errors.plugin) return [h("h1", {}, this.title), errorBox(this.errors.plugin)];
    if (!plugin) return [h("h1", {}, this.title), section("", {}, loading(5))];
    return [
      h("div", { class: "page-head" },
        h("div", {},
          h("nav", { class: "crumbs", "aria-label": "Place" }, link("/ui/plugins", "Plugins")),
          h("h1", {}, plugin.name), softLine(plugin.description)),
        h("div", { class: "row actions" }, copyButton(`ductile plugin show ${quoted(plugin.name)}`, "Copy command"))),
      (plugin.refused || plugin.init_error) && errorBox({ message: plugin.refused ?? plugin.init_error }),
      h("div", { class: "columns" },
        h("div", {}, this.runPanel(plugin), this.recent()),
        h("div", {}, this.health(plugin), this.breakers(), this.state(), this.about(plugin))),
    ];
  }

  runPanel(plugin) {
    const commands = Object.keys(plugin.commands).filter((name) => mayRun(plugin.name, name));
    if (!commands.length) return null;
    const chosen = commands.includes(this.query.command) ? this.query.command : commands.find((name) => name === "handle") ?? commands[0];
    const command = plugin.commands[chosen];
    const described = fields(command.input_schema);
    return section("Run", { id: "run" }, h("form", { class: "body", key: chosen, novalidate: false, onsubmit: (event) => this.run(event, chosen, described) },
      h("div", { class: "field" },
        h("label", { for: "command" }, "Command"),
        h("select", { id: "command", onchange: (event) => { this.setQuery({ command: event.target.value }); this.render(); } },
          commands.map((name) => h("option", { key: name, value: name, selected: name === chosen }, name)))),
      command.description && softLine(command.description),
      described ? fieldViews(described) : h("div", { class: "field" },
        h("label", { for: "payload" }, "Payload (JSON)"),
        h("textarea", { id: "payload", name: "payload", spellcheck: "false", placeholder: "{}" })),
      this.problem && errorBox(this.problem),
      h("div", { class: "row" },
        h("button", { type: "submit", class: "button primary" }, `Run ${plugin.name} ${chosen}`),
        copyButton((pressed) => curl("POST", path`/plugin/${plugin.name}/${chosen}`, { payload: entered(pressed.form, described) }), "Copy as curl")),
      this.started && this.result()));
  }

  async run(event, command, described) {
    event.preventDefault();
    this.problem = null;
    try {
      const payload = entered(event.target, described);
      const submitted = await post(path`/plugin/${this.parameters.name}/${command}`, { payload });
      this.started = { id: submitted.job_id, job: null };
      this.refreshJobs();
    } catch (error) {
      this.problem = error;
    }
    this.render();
  }

  result() {
    const { id, job } = this.started;
    return h("div", { class: "started", role: "status" },
      h("div", { class: "row" }, badge(job?.status ?? "queued"), link(`/ui/job/${id}`, "Open the job"), job && softNumber(runTime(job))),
      job?.result && output(job.result.result ?? job.result, { label: "Result" }),
      job?.last_error && h("p", { class: "error-text" }, job.last_error));
  }

  recent() {
    const jobs = this.data.jobs?.jobs;
    if (!may("job.list")) return null;
    return section("Recent jobs", { id: "recent", aside: link(path`/ui/jobs?plugin=${this.parameters.name}`, "All") },
      !jobs ? loading(3)
      : jobs.length === 0 ? empty("It has not run yet.")
      : linesOf(jobs.map((job) => h("li", { key: job.job_id },
        wide(badge(job.status), jobLink(job), job.last_error && h("span", { class: "soft clip" }, job.last_error)),
        softNumber(runTime(job)), h("span", { class: "soft num when" }, ago(job.created_at))))));
  }

  health(plugin) {
    const { series } = this.data;
    const stats = plugin.stats;
    return section("Last 24 hours", { id: "health", note: stats ? count(stats.executions, "execution") : "" }, padded(
      series && [
        labelled("Run time (p95)", sparkline(series.buckets.map((bucket) => bucket.run_ms?.p95), "Run time over the last day")),
        labelled("Failures", sparkline(series.buckets.map((bucket) => bucket.failures), "Failures over the last day", "bad")),
      ],
      stats && facts([
        ["Success", `${(stats.success_ratio * 100).toFixed(1)} %`],
        ["Run time p50", duration(stats.run_ms?.p50)], ["Run time p95", duration(stats.run_ms?.p95)],
        ["Wait p95", duration(stats.wait_ms?.p95)], ["Retries", stats.retries],
      ])));
  }

  breakers() {
    const { breakers, history } = this.data.breaker ?? {};
    if (!breakers || !Object.keys(breakers).length) return null;
    const open = Object.values(breakers).some((breaker) => breaker.state !== "closed");
    return section("Circuit breakers", { id: "breakers", aside: open && may("system.reset") && button("Reset", () => this.resetBreakers(), { kind: "small" }) },
      linesOf(
        Object.entries(breakers).map(([command, { state, failures, opened_at: opened }]) => h("li", { key: command },
          wide(h("strong", {}, command),
            h("span", { class: `badge ${state === "closed" ? "succeeded" : "failed"}` }, words(state)),
            failures > 0 && soft(count(failures, "failure"))),
          opened && ago(opened))),
        history.slice(0, 8).map(({ at, command, from, to, reason }) => h("li", { key: at + command },
          h("div", { class: "grow soft" }, `${command}: ${words(from ?? "new")} to ${words(to)}, ${words(reason)}`), softNumber(ago(at))))));
  }

  async resetBreakers() {
    await attempt(() => post(path`/system/breaker/${this.parameters.name}/reset`), "Its circuit breakers are closed.");
    this.refresh();
  }

  state() {
    const { state } = this.data;
    if (!state) return null;
    const stored = Object.keys(state.state ?? {}).length ? state.state : "";
    return section("State", { id: "state", note: state.updated_at && ago(state.updated_at) },
      padded(output(stored, { label: "State", empty: "It has stored nothing." })));
  }

  about(plugin) {
    return section("About", { id: "about" }, padded(facts([
      ["Uses", plugin.uses],
      ["Version", plugin.version],
      ["Standing", words(plugin.standing)],
      ["At once", plugin.parallelism],
      ["Schedules", plugin.schedules.length > 0 && link("/ui/schedules", count(plugin.schedules.length, "schedule"))],
      ["Commands", Object.keys(plugin.commands).join(", ")],
    ].filter(([, value]) => value))));
  }
}

/** The payload in a form, by its fields or as JSON. */
function entered(form, described) {
  const data = new FormData(form);
  return described ? readFields(described, data) : parse(data.get("payload").trim() || "{}", "The payload");
}

function labelled(name, plot) {
  return h("div", { class: "labelled", key: name }, h("span", { class: "soft small" }, name), plot);
}
