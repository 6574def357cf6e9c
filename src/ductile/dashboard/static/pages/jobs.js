// All jobs, newest first, with a search, filters in the address, and changes of all jobs that match.

import { get, may, post } from "../api.js";
import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { count, quoted, runTime, words } from "../format.js";
import { Page } from "../page.js";
import { RowWindow } from "../rows.js";
import { ago, badge, button, copyButton, empty, errorBox, icon, idLink, jobLink, link, loading, padded, soft, tabs } from "../parts.js";

const FILTERS = ["query", "status", "plugin", "command", "reason", "pipeline", "since", "run", "parent"];
const BULK = ["query", "status", "plugin", "command", "reason", "pipeline", "since"];
const STATUSES = ["", "queued", "running", "succeeded", "failed", "dead"];
const EXECUTIONS = ["", "succeeded", "failed", "timed_out", "cancelled", "interrupted", "orphaned"];
const SPANS = [["", "any time"], ["1h", "last hour"], ["24h", "last day"], ["7d", "last week"]];
const TYPING_MS = 200;

export class JobsPage extends Page {
  get title() { return this.isLog ? "Log" : "Jobs"; }

  get isLog() { return this.query.list === "log"; }

  start() {
    this.rows = this.newRows();
    this.rows.restart();
    if (may("plugin.list")) this.load("plugins", "/plugins");
    this.follow(() => this.refresh(), { settle: 600 });
  }

  refresh() { this.rows.refresh(); }

  newRows() {
    return new RowWindow({
      page: this,
      fetch: (cursor) => this.fetch(cursor),
      row: (item) => (this.isLog ? executionRow(item) : jobRow(item)),
    });
  }

  async fetch(cursor) {
    const query = { ...this.filters(), limit: 100, cursor };
    const page = await get(this.isLog ? "/job-logs" : "/jobs", query);
    return { items: this.isLog ? page.logs : page.jobs, next: page.next_cursor, key: this.isLog ? "id" : "job_id" };
  }

  filters(names = FILTERS) {
    const known = this.isLog ? names.filter((name) => !["pipeline", "run", "parent"].includes(name)) : names;
    return Object.fromEntries(known.filter((name) => this.query[name]).map((name) => [name, this.query[name]]));
  }

  change(changes) {
    this.setQuery(changes);
    this.rows.restart();
    this.render();
  }

  type(text) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.change({ query: text.trim() }), TYPING_MS);
  }

  view() {
    return [
      h("h1", {}, "Jobs"),
      h("div", { class: "panel jobs", key: "jobs" },
        tabs("Lists", this.isLog ? "log" : "jobs", [["jobs", "Jobs"], ["log", "Log of executions"]], (name) => { this.query.status = ""; this.change({ list: name === "log" ? name : "", status: "", reason: "" }); }),
        this.filterBar(),
        this.bulkBar(),
        this.rows.error ? padded(errorBox(this.rows.error)) : this.list()),
    ];
  }

  filterBar() {
    const { query } = this;
    const plugins = this.data.plugins?.plugins.map((plugin) => plugin.name) ?? [];
    const statuses = this.isLog ? EXECUTIONS : STATUSES;
    return h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      h("span", { class: "search" }, icon("search"),
        h("input", { type: "search", "data-search": true, "aria-label": "Search results, errors and stderr", placeholder: "Search results, errors, stderr", value: query.query ?? "", oninput: (event) => this.type(event.target.value), oncreate: (input) => query.focus && input.focus() })),
      select("Status", query.status, statuses.map((status) => [status, status ? words(status) : "any status"]), (value) => this.change({ status: value })),
      select("Plugin", query.plugin, [["", "any plugin"], ...namesWith(["pipeline", ...plugins], query.plugin)], (value) => this.change({ plugin: value, command: "" })),
      select("Since", query.since, choicesWith(SPANS, query.since), (value) => this.change({ since: value })),
      ["command", "reason", "pipeline", "run", "parent"].filter((name) => query[name]).map((name) =>
        h("button", { type: "button", class: "chip", key: name, onclick: () => this.change({ [name]: "" }), title: "Remove this filter" }, `${name}: ${words(query[name])} ×`)));
  }

  bulkBar() {
    const some = BULK.some((name) => this.query[name]);
    if (this.isLog || !some || !this.rows.items.length) return h("div", {});
    const { status } = this.query;
    const retry = may("job.retry_many") && (!status || status === "failed" || status === "dead");
    const cancel = may("job.cancel_many") && (!status || status === "queued" || status === "running");
    return h("div", { class: "row bulk" },
      retry && button("Retry all that match…", () => this.bulk("retry"), { kind: "small" }),
      cancel && button("Cancel all that match…", () => this.bulk("cancel"), { kind: "small" }),
      copyButton(this.command(), "Copy command"));
  }

  command() {
    return ["ductile job list", ...Object.entries(this.filters()).map(([name, value]) => `--${name} ${quoted(value)}`)].join(" ");
  }

  /** Count first, then ask, then do it. */
  async bulk(verb) {
    const where = this.filters(BULK);
    let counted;
    try {
      counted = await post(`/jobs/${verb}`, { ...where, dry_run: true });
    } catch (error) {
      this.rows.error = error;
      this.render();
      return;
    }
    const matched = counted.matched ?? counted.count ?? counted.jobs?.length ?? 0;
    confirm({
      title: `${verb === "retry" ? "Retry" : "Cancel"} ${count(matched, "job")}?`,
      text: verb === "retry" ? "Each is put on the queue again, with fresh attempts." : "Queued jobs end as dead, running processes are killed.",
      action: `${verb === "retry" ? "Retry" : "Cancel"} ${count(matched, "job")}`, danger: verb === "cancel",
      act: async () => { const done = await post(`/jobs/${verb}`, where); this.rows.restart(); return done.message; },
    });
  }

  list() {
    const { rows } = this;
    if (rows.unloaded) return loading(8);
    if (!rows.items.length) return this.nothing();
    return h("div", {}, this.heads(), rows.view());
  }

  heads() {
    return h("div", { class: "job-row heads", "aria-hidden": "true" },
      h("span", {}, "Status"), h("span", {}, this.isLog ? "Execution" : "Job"), h("span", {}, "About"),
      h("span", { class: "right" }, "Ran"), h("span", { class: "right" }, this.isLog ? "Ended" : "Created"), h("span", { class: "right" }, "Id"));
  }

  nothing() {
    const some = FILTERS.some((name) => this.query[name]);
    if (some) return empty("No job matches.", button("Clear the filters", () => this.change(Object.fromEntries(FILTERS.map((name) => [name, ""])))));
    return empty("No job has run yet.", may("plugin.list") && h("p", {}, link("/ui/plugins", "Run a plugin"), " here, or in a terminal: ", h("code", {}, "ductile run PLUGIN")));
  }
}

function jobRow(job) {
  return h("li", { key: job.job_id, class: "job-row", "data-row": true, tabindex: "-1", onkeydown: openRow },
    badge(job.status), h("span", { class: "what" }, jobLink(job), job.step && soft(job.step)),
    h("span", { class: `about ${job.last_error ? "error-text" : "soft"}`, title: job.last_error ?? "" }, job.last_error ?? about(job)),
    h("span", { class: "num right" }, runTime(job)), h("span", { class: "num right soft" }, ago(job.created_at)), h("span", { class: "right" }, idLink(job.job_id)));
}

function about(job) {
  const attempt = job.attempt > 1 ? `attempt ${job.attempt} of ${job.max_attempts}, ` : "";
  return `${attempt}${job.status === "queued" && job.hold ? `held: ${words(job.hold)}, ` : ""}${job.submitted_by}${job.submitted_detail ? ` ${job.submitted_detail}` : ""}`;
}

function executionRow(row) {
  return h("li", { key: row.id, class: "job-row", "data-row": true, tabindex: "-1", onkeydown: openRow },
    badge(row.status), h("span", { class: "what" }, h("a", { class: "job-link", href: `/ui/job/${row.job_id}?execution=${row.execution}` }, `${row.plugin} ${row.command}`), row.execution > 1 && soft(`execution ${row.execution}`)),
    h("span", { class: `about ${row.error ? "error-text" : "soft"}`, title: row.error ?? "" }, row.error ?? (row.stderr_bytes ? `${row.stderr_bytes} bytes of stderr` : row.submitted_by)),
    h("span", { class: "num right" }, runTime(row)), h("span", { class: "num right soft" }, ago(row.completed_at)), h("span", { class: "right" }, idLink(row.job_id)));
}

function openRow(event) {
  if (event.key === "Enter" && event.target === event.currentTarget) event.currentTarget.querySelector("a").click();
}

function select(label, value, choices, change) {
  return h("select", { key: label, "aria-label": label, value: value ?? "", onchange: (event) => change(event.target.value) },
    choices.map(([choice, text]) => h("option", { key: choice, value: choice, selected: choice === (value ?? "") }, text)));
}

/** The choices of a filter, and the chosen one if it is another: the address may name any. */
const namesWith = (names, chosen) => [...new Set([...names, ...(chosen ? [chosen] : [])])].map((name) => [name, name]);
const choicesWith = (choices, chosen) => (chosen && !choices.some(([choice]) => choice === chosen) ? [...choices, [chosen, chosen]] : choices);
