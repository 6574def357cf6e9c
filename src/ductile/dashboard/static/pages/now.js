// Jobs that run, wait or failed, with reasons and remedies, and the next runs of schedules.

import { get, may, path, post, withQuery } from "../api.js";
import { attempt, confirmCancel } from "../dialog.js";
import { h } from "../dom.js";
import { count, dayName, duration, isToday, jobName, runTime, shortTime, words } from "../format.js";
import { Page } from "../page.js";
import { ago, badge, button, empty, jobLink, linesOf, link, loading, pluginLink, scheduleLink, section, soft, softLine, softNumber, wide } from "../parts.js";
import { commandText } from "../commands.js";
import { throughput } from "../charts.js";

/** Entries of a list. */
const MAX_SHOWN = 8;
const DAY = "24h";

export class NowPage extends Page {
  get title() { return "Now"; }

  start() {
    this.why = {};
    this.refresh();
    this.loadSlow();
    this.follow(() => this.refresh());
    this.every(30_000, () => this.loadSlow());
  }

  async refresh() {
    this.load("depth", "/queue/status");
    this.load("queue", "/queue", { limit: 50 }).then(() => this.explainWaiting());
    if (may("system.digest")) this.load("digest", "/system/digest", { since: DAY });
    else {
      this.load("failed", "/jobs", { status: "failed", since: DAY, limit: 20 });
      this.load("dead", "/jobs", { status: "dead", since: DAY, limit: 20 });
    }
  }

  loadSlow() {
    if (may("schedule.next")) this.load("next", "/schedules/next", { count: 100 });
    if (may("log.series")) this.load("series", "/analytics/series", { since: DAY, buckets: 48 });
    if (may("system.status")) this.load("status", "/system/status");
  }

  /** Ask why the oldest job of each waiting group waits. */
  async explainWaiting() {
    for (const group of this.waiting().slice(0, 5)) {
      if (this.why[group.key] || !may("job.explain")) continue;
      this.why[group.key] = " ";
      get(path`/job/${group.oldest.job_id}/explain`).then((explanation) => {
        this.why[group.key] = explanation.verdict;
        this.render();
      }, () => {});
    }
  }

  waiting() {
    const groups = new Map();
    for (const job of this.data.queue?.queued ?? []) {
      const key = `${job.plugin}/${job.command}/${job.hold ?? ""}/${job.next_retry_at ?? ""}`;
      const group = groups.get(key) ?? { key, jobs: 0, oldest: job };
      group.jobs += 1;
      group.oldest = job; // the list is newest first
      groups.set(key, group);
    }
    return [...groups.values()].sort((a, b) => b.jobs - a.jobs);
  }

  view() {
    return [
      h("div", { class: "page-head" }, h("h1", {}, "Now"), this.daemon()),
      this.problems("depth", "queue", "digest"),
      this.summary(),
      h("div", { class: "columns" },
        h("div", {}, this.running(), this.waitingPanel(), this.failedPanel()),
        h("div", {}, this.day(), this.nodes(), this.coming(), this.attention())),
    ];
  }

  daemon() {
    const daemon = this.data.status?.daemon;
    return daemon && h("span", { class: "soft small" }, `Ductile ${daemon.version}, up for ${duration(daemon.uptime_seconds * 1000)}`);
  }

  /** The daemons that share this store, where there is more than one. */
  nodes() {
    const nodes = this.data.status?.nodes;
    return nodes?.length > 0 && section("Nodes", { id: "nodes", note: count(nodes.length, "node") }, linesOf(nodes.map((node) => h("li", { key: node.name },
      wide(h("strong", {}, node.name), soft(`${node.alive ? "" : "silent, "}${node.busy} of ${count(node.workers, "worker")} busy${node.leader ? ", leads" : ""}`)),
      softNumber(ago(node.started_at)))),
      (this.data.status.without_node ?? []).map(({ plugin, node, jobs, held_since: since }) => h("li", { key: `${plugin}/${node}` },
        wide(node ? `${count(jobs, "job")} for the node ${node}, which is not running` : `${count(jobs, "job")} of ${plugin}: no live node runs it`),
        softNumber(ago(since))))));
  }

  summary() {
    const depth = this.data.depth;
    if (!depth) return h("div", { class: "tiles" }, loading(1));
    const failed = this.failedCount();
    const busy = Math.min(depth.workers, this.busyWorkers());
    return h("div", { class: "tiles" },
      tile("Running", depth.running, `${busy} of ${count(depth.workers, "worker")} busy`, workers(busy, depth.workers)),
      tile("Ready", depth.ready, depth.ready ? "for the next free worker" : "no job waits for a worker"),
      tile("Waiting", depth.waiting, depth.waiting ? "for a time or another job" : "no job is held"),
      tile("Failed", failed, "in the last 24 hours", null, failed ? "bad" : ""));
  }

  busyWorkers() {
    return (this.data.queue?.running ?? []).filter((job) => job.plugin !== "pipeline").length;
  }

  failedCount() {
    const { digest, failed, dead } = this.data;
    if (digest) return digest.failed_jobs;
    return (failed?.jobs.length ?? 0) + (dead?.jobs.length ?? 0);
  }

  running() {
    const jobs = [...(this.data.queue?.running ?? [])].reverse();
    const top = jobs.filter((job) => !job.run_id);
    return section("Running", { id: "running", note: jobs.length ? "" : null, aside: jobs.length > MAX_SHOWN && link("/ui/jobs?status=running", "All") },
      !this.data.queue ? loading(2)
      : top.length === 0 && jobs.length === 0 ? empty("Nothing is running.", may("plugin.list") && h("p", {}, link("/ui/plugins", "Run a plugin"), " or wait for the next run."))
      : linesOf(top.slice(0, MAX_SHOWN).map((job) => h("li", { key: job.job_id },
        wide(badge("running"), jobLink(job), stepsOf(job, jobs)),
        softNumber(runTime(job)),
        may("job.cancel") && button("Cancel", () => confirmCancel(job, () => this.refresh()), { kind: "small", label: `Cancel ${jobName(job)}` })))));
  }

  waitingPanel() {
    const groups = this.waiting().filter((group) => group.oldest.hold !== "run");
    if (this.data.queue && groups.length === 0) return null;
    return section("Waiting", { id: "waiting", aside: link("/ui/jobs?status=queued", "All") },
      !this.data.queue ? loading(2) : linesOf(groups.slice(0, MAX_SHOWN).map((group) => h("li", { key: group.key, class: "tall" },
        wide(
          h("div", {}, badge("queued"), group.jobs > 1 ? h("strong", {}, `${group.jobs} × ${jobName(group.oldest)}`) : jobLink(group.oldest)),
          softLine(commandText(this.why[group.key]?.trim() || waitingFor(group.oldest)))),
        softNumber(ago(group.oldest.created_at))))));
  }

  failedPanel() {
    const digest = this.data.digest;
    const groups = digest ? digest.failed : this.failedJobs();
    return section("Failed since yesterday", { id: "failed", aside: groups?.length > 0 && link("/ui/jobs?status=failed", "All") },
      !groups ? loading(2)
      : groups.length === 0 ? empty("Nothing failed in the last 24 hours.")
      : linesOf(groups.slice(0, MAX_SHOWN).map((group) => h("li", { key: `${group.plugin}${group.command}${group.reason}`, class: "tall" },
        wide(
          h("div", {}, badge("failed"), link(`/ui/job/${group.example}`, `${group.plugin} ${group.command}`),
            group.jobs > 1 && link(listOf(group), `${group.jobs} times`)),
          h("p", { class: "error-text" }, group.error ?? words(group.reason)),
          group.fix && softLine(commandText(group.fix))),
        softNumber(ago(group.last)),
        may("job.retry_many") && group.jobs > 1 && h("a", { class: "button small", href: listOf(group), "aria-label": `Retry ${group.jobs} jobs of ${group.plugin} ${group.command}` }, `Retry ${group.jobs}…`),
        may("job.retry") && group.jobs === 1 && button("Retry", () => this.retry(group), { kind: "small", label: `Retry ${group.plugin} ${group.command}` })))));
  }

  failedJobs() {
    const { failed, dead } = this.data;
    if (!failed || !dead) return null;
    return [...failed.jobs, ...dead.jobs].sort((a, b) => (a.created_at < b.created_at ? 1 : -1)).map((job) =>
      ({ plugin: job.plugin, command: job.command, reason: job.job_id, jobs: 1, last: job.completed_at, example: job.job_id, error: job.last_error ?? words(job.reason) }));
  }

  async retry(group) {
    await attempt(() => post(path`/job/${group.example}/retry`), "The job is on the queue again.");
    this.refresh();
  }

  day() {
    const series = this.data.series;
    if (!may("log.series")) return null;
    return section("Last 24 hours", { id: "day", aside: link("/ui/figures", "Figures"), note: series && count(series.executions, "execution") },
      series ? throughput(series, { height: 90 }) : loading(2));
  }

  coming() {
    if (!may("schedule.next")) return null;
    // The next of each schedule: a frequent one must not hide the others.
    const first = new Map((this.data.next?.occurrences ?? []).toReversed().map((occurrence) => [`${occurrence.plugin} ${occurrence.id}`, occurrence]));
    const upcoming = this.data.next && [...first.values()].sort((a, b) => ((a.start_at ?? "") < (b.start_at ?? "") ? -1 : 1)).slice(0, MAX_SHOWN);
    return section("Next runs", { id: "next", aside: link("/ui/schedules", "Calendar") },
      !upcoming ? loading(2)
      : upcoming.length === 0 ? empty("No schedule is due.", h("p", {}, "They are configured under ", h("code", {}, "plugins.NAME.schedules"), "."))
      : linesOf(upcoming.map(({ plugin, id, nominal_at: nominal, start_at: start, skip }) => h("li", { key: plugin + id + nominal },
        wide(scheduleLink(plugin, id), skip && soft(`skipped: ${skip}`)),
        start && softNumber(isToday(start) ? shortTime(start) : `${dayName(start)} ${shortTime(start)}`),
        h("span", { class: "num when" }, ago(start))))));
  }

  /** Circuit breakers, plugins and deliveries that need attention. */
  attention() {
    const { digest, status } = this.data;
    const items = [
      ...(digest?.breakers ?? []).map(({ plugin, command, state, fix }) => [`breaker ${plugin}`, pluginLink(plugin, `${plugin} ${command}`), `Its circuit breaker is ${words(state)}. ${fix}`]),
      ...(status?.plugins ?? []).filter((plugin) => plugin.refused || plugin.unhealthy).map(({ name, refused, unhealthy }) => [`plugin ${name}`, pluginLink(name), refused ?? `Its init failed: ${unhealthy.error ?? ""}`]),
      ...(digest?.deliveries ?? []).map(({ receiver, dropped, gone, error }) => [`delivery ${receiver}`, link("/ui/webhooks?status=dropped", receiver), `${count(dropped + gone, "state webhook")} did not arrive. ${error ?? ""}`]),
      ...(digest?.skipped ?? []).map(({ plugin, schedule, reason, count: runs }) => [`skip ${plugin} ${schedule} ${reason}`, scheduleLink(plugin, schedule), `Skipped ${count(runs, "run")}: ${words(reason)}.`]),
    ];
    if (items.length === 0) return null;
    return section("Worth a look", { id: "attention" }, linesOf(items.map(([key, subject, text]) =>
      h("li", { key, class: "tall" }, wide(h("div", {}, subject), softLine(commandText(text)))))));
  }
}

function tile(name, number, note, extra, kind = "") {
  return h("div", { class: `tile ${kind}`, key: name }, h("span", { class: "name" }, name), h("span", { class: "number" }, number.toLocaleString()), soft(note), extra);
}

/** A square for each worker, filled if it is busy. */
function workers(busy, all) {
  if (all > 32) return null;
  return h("span", { class: "workers", "aria-hidden": "true" }, Array.from({ length: all }, (_, index) => h("i", { class: index < busy ? "busy" : "" })));
}

const listOf = ({ plugin, command, reason }) => withQuery("/ui/jobs", { plugin, command, reason, since: DAY });

function stepsOf(run, jobs) {
  const steps = jobs.filter((job) => job.run_id === run.job_id).map((job) => job.step);
  return steps.length > 0 && soft(`at ${steps.join(", ")}`);
}

function waitingFor(job) {
  if (job.next_retry_at) return `Attempt ${job.attempt} of ${job.max_attempts} starts in ${duration(Math.max(0, Date.parse(job.next_retry_at) - Date.now()))}.`;
  return job.hold ? `Held: ${words(job.hold)}.` : "Waits for a free worker.";
}
