// One job or one run of a pipeline: its timeline, input and output of its steps, and the reasons.

import { get, may, path, post } from "../api.js";
import { commandText, curl } from "../commands.js";
import { attempt, confirmCancel } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, clockTime, duration, jobName, runTime, words } from "../format.js";
import { graph } from "../graph.js";
import { Page } from "../page.js";
import { ago, badge, button, copyButton, empty, errorBox, facts, idLink, jobLink, linesOf, link, loading, output, padded, pluginLink, section, soft, softLine, tabs, wide } from "../parts.js";
import { timeline } from "../timeline.js";

const ENDED = new Set(["succeeded", "failed", "dead"]);
/** Of live output. The log has all of it when the execution has ended. */
const MAX_LIVE_CHARACTERS = 200_000;

export class JobPage extends Page {
  get title() { return this.job ? jobName(this.job) : "Job"; }

  get id() { return this.parameters.id; }

  get job() { return this.data.job; }

  get isRun() { return this.job?.plugin === "pipeline"; }

  start() {
    this.live = new Map();
    this.logs = new Map();
    this.refresh();
    this.stopFollowing = this.follow(() => this.refresh(), { jobId: this.id, output: (piece) => this.addLiveOutput(piece) });
  }

  async refresh() {
    const job = await this.load("job", path`/job/${this.id}`);
    if (!job) return;
    if (may("job.explain")) this.load("explanation", path`/job/${this.id}/explain`);
    if (this.isRun) {
      this.load("tree", path`/job/${this.id}/tree`);
      if (!this.data.pipeline && may("pipeline.show")) this.load("pipeline", path`/pipeline/${job.command}`);
    }
    this.loadLog(this.id);
    const chosen = this.chosenJob();
    if (chosen && chosen !== this.id) this.loadLog(chosen);
    if (this.isRun) this.loadStepLogs();
  }

  /** Load the executions of all steps, for the timeline. Those of ended steps are loaded once. */
  async loadStepLogs() {
    const steps = this.stepJobs().filter((step) => !(this.logs.get(step.job_id)?.final));
    for (const step of steps.slice(0, 60)) await this.loadLog(step.job_id);
  }

  async loadLog(id) {
    if (!may("job.logs") || this.logs.get(id)?.final) return;
    try {
      const [log, job] = await Promise.all([get(path`/job/${id}/log`), id === this.id ? this.job : get(path`/job/${id}`)]);
      this.logs.set(id, { executions: log.executions, job, final: ENDED.has(job.status) && job.status !== "failed" });
      this.render();
    } catch (error) {
      this.logs.set(id, { error, executions: [] });
    }
  }

  addLiveOutput(piece) {
    const key = `${piece.job_id}-${piece.execution}-${piece.stream}`;
    const text = ((this.live.get(key)?.text ?? "") + piece.text).slice(-MAX_LIVE_CHARACTERS);
    this.live.set(key, { ...piece, text });
    this.render();
  }

  /** The jobs of the steps, flat, in the order in which they were created. */
  stepJobs() {
    const jobs = [];
    const walk = (node) => { for (const child of node.children) { jobs.push(child); walk(child); } };
    if (this.data.tree) walk(this.data.tree.tree);
    return jobs.filter((job) => job.run_id === this.id);
  }

  /** The job whose input and output is shown: that of the chosen step, or the job itself. */
  chosenJob() {
    if (!this.isRun) return this.id;
    if (this.query.job) return this.query.job;
    const step = this.query.step && this.job.steps?.find((step) => step.step === this.query.step);
    return step?.jobs.at(-1)?.job_id;
  }

  view() {
    const { job } = this;
    if (this.errors.job) return [h("h1", {}, "Job"), errorBox(this.errors.job), link("/ui/jobs", "All jobs")];
    if (!job) return [h("h1", {}, "Job"), section("", {}, loading(6))];
    return [
      this.header(),
      h("div", { class: "columns wide" },
        h("div", {},
          this.explanation(),
          this.isRun ? this.runPanels() : section("Timeline", { id: "timeline" }, padded(this.drawTimeline())),
          this.detail(this.isRun ? this.chosenJob() : this.id)),
        h("div", {}, this.about(), this.happened(), this.ledTo())),
    ];
  }

  header() {
    const { job } = this;
    return h("div", { class: "page-head" },
      h("div", {},
        h("nav", { class: "crumbs", "aria-label": "Place" }, link("/ui/jobs", "Jobs"), job.run_id && [" / ", link(`/ui/job/${job.run_id}`, "Run")]),
        h("h1", {}, jobName(job)),
        h("div", { class: "row soft" }, badge(job.status), h("span", {}, words(job.reason)),
          job.started_at && h("span", { class: "num" }, runTime(job)), ago(job.created_at, "submitted "))),
      h("div", { class: "row actions" }, this.actions()));
  }

  actions() {
    const { job } = this;
    const ended = ENDED.has(job.status);
    return [
      !ended && may("job.cancel") && button("Cancel", () => confirmCancel(job, () => this.refresh()), { kind: "danger" }),
      ended && job.status !== "succeeded" && may("job.retry") && button("Retry", () => this.act("retry", "The job is on the queue again."), { kind: "primary" }),
      ended && may("job.rerun") && button("Run again", () => this.rerun()),
      copyButton(curl("GET", path`/job/${job.job_id}`), "Copy as curl"),
      copyButton(`ductile job show ${job.job_id}`, "Copy command"),
    ];
  }

  async act(verb, message) {
    await attempt(() => post(path`/job/${this.id}/${verb}`), message);
    this.refresh();
  }

  async rerunFrom(step) {
    const run = await attempt(() => post(path`/run/${this.id}/retry`, { step }), "The new run is on the queue.");
    if (run) this.shell.navigate(`/ui/job/${run.job_id}`);
  }

  async rerun() {
    const job = await attempt(() => post(path`/job/${this.id}/rerun`), "The new job is on the queue.");
    if (job) this.shell.navigate(`/ui/job/${job.job_id}`);
  }

  explanation() {
    const { explanation } = this.data;
    if (!explanation || (this.job.status === "succeeded" && !explanation.differences.length)) return null;
    const bad = ENDED.has(this.job.status) && this.job.status !== "succeeded";
    return section(bad ? "Why it failed" : "Where it is", { id: "explanation" }, padded(
      h("p", { class: bad ? "verdict bad" : "verdict" }, commandText(explanation.verdict)),
      explanation.first_change && h("p", {}, `First change: ${textOf(explanation.first_change)}`),
      explanation.differences.length > 0 && h("div", {}, h("h3", {}, "What is different from the last success"),
        h("ul", { class: "dots" }, explanation.differences.map((difference) => h("li", { key: textOf(difference) }, textOf(difference))))),
      explanation.advice.map((text) => h("p", { class: "advice", key: text }, commandText(text))),
      explanation.evidence.length > 0 && h("details", {}, h("summary", {}, "How this is known"), h("ul", { class: "dots" }, explanation.evidence.map((text, index) => h("li", { key: index }, commandText(text)))))));
  }

  runPanels() {
    const shown = this.query.view === "graph" ? "graph" : "timeline";
    return h("section", { class: "panel", "aria-label": "Steps", key: "steps" },
      tabs("Steps", shown, [["timeline", "Timeline"], ["graph", "Graph"]], (name) => { this.setQuery({ view: name === "graph" ? name : "" }); this.render(); }),
      h("div", { class: "body", role: "tabpanel", "aria-labelledby": `tab-${shown}` },
        shown === "graph" ? this.drawGraph() : this.drawTimeline()));
  }

  drawGraph() {
    if (this.errors.pipeline) return softLine("The pipeline is no longer configured; the timeline has what ran.");
    if (!this.data.pipeline) return may("pipeline.show") ? loading(4) : softLine("This token may not see pipelines.");
    return graph({ tree: this.data.pipeline.tree, trigger: this.data.pipeline.trigger, steps: this.job.steps ?? [], chosen: this.query.step, choose: (step) => this.choose(step) });
  }

  drawTimeline() {
    const rows = this.isRun ? this.runRows() : [{ key: this.id, name: this.job.command, job: this.job, depth: 0 }];
    return timeline({
      rows: rows.map((row) => ({ ...row, executions: this.logs.get(row.job?.job_id)?.executions ?? [] })),
      start: Date.parse(this.job.created_at), end: this.job.completed_at ? Date.parse(this.job.completed_at) : Date.now(),
      chosen: this.query.step, choose: this.isRun ? (row) => this.choose(row.step, row.job?.job_id) : null,
    });
  }

  runRows() {
    const jobs = this.stepJobs();
    return (this.job.steps ?? []).flatMap((step) => {
      const depth = step.step.split("/").length - 1;
      const own = jobs.filter((job) => job.step === step.step);
      const row = { key: step.step, step: step.step, name: step.step.split("/").at(-1), depth, about: step };
      return own.length ? own.map((job, index) => ({ ...row, key: job.job_id, job, name: own.length > 1 ? `${row.name} ${index + 1}` : row.name })) : [row];
    });
  }

  choose(step, jobId) {
    const several = this.job.steps?.find((report) => report.step === step)?.jobs.length > 1;
    this.setQuery({ step, job: several ? jobId : "" });
    const chosen = this.chosenJob();
    if (chosen) this.loadLog(chosen);
    this.render();
  }

  /** Input, output and logs of one job. */
  detail(id) {
    if (this.isRun && !this.query.step) return this.detailOf(this.id, `Run ${this.job.command}`);
    const step = this.job.steps?.find((step) => step.step === this.query.step);
    if (this.isRun && !id) return section(`Step ${this.query.step}`, { id: "detail", aside: this.rerunButton() }, this.unrun(step));
    return this.detailOf(id, this.isRun ? `Step ${this.query.step}` : "Input and output");
  }

  /** The reasons why a step has no job. */
  unrun(step) {
    if (!step) return empty("The run has no such step.");
    return padded(badge(step.outcome === "bypassed" ? "bypassed" : "queued"),
      step.bypasses.map((bypass, index) => h("p", { key: index }, textOf(bypass))),
      step.errors.map((text, index) => h("p", { class: "error-text", key: `e${index}` }, text)),
      !step.bypasses.length && !step.errors.length && softLine(OUTCOMES[step.outcome] ?? words(step.outcome)));
  }

  detailOf(id, title) {
    const log = this.logs.get(id);
    if (!log) return section(title, { id: "detail" }, loading(4));
    if (log.error) return section(title, { id: "detail" }, padded(errorBox(log.error)));
    const { job } = log;
    const latest = log.executions.at(-1);
    const number = Number(this.query.execution) || latest?.execution || job.execution;
    const execution = log.executions.find((execution) => execution.execution === number);
    const stderr = execution ? execution.stderr : this.liveText(id, number, "stderr");
    const result = execution ? execution.result ?? execution.stdout : this.liveText(id, number, "stdout");
    const numbers = [...new Set([...log.executions.map((execution) => execution.execution), ...(job.status === "running" ? [job.execution] : [])])];
    return section(title, { id: "detail", aside: id !== this.id && h("span", { class: "row" }, this.rerunButton(), idLink(id)) },
      numbers.length > 1 && tabs("Executions", `x${number}`, numbers.map((choice) => [`x${choice}`, `Execution ${choice}`]), (name) => { this.setQuery({ execution: name.slice(1) }); this.render(); }),
      padded(
        h("div", { class: "row soft" }, badge(execution?.status ?? job.status), execution && h("span", { class: "num" }, duration(execution.duration_ms)),
          job.plugin !== "pipeline" && execution?.exit_code !== null && execution?.exit_code !== undefined && h("span", {}, `exit ${execution.exit_code}`),
          execution?.signal && h("span", {}, `signal ${execution.signal}`),
          h("span", {}, `attempt ${execution?.attempt ?? job.attempt} of ${job.max_attempts}`)),
        (execution?.error ?? (ENDED.has(job.status) && job.last_error)) && h("p", { class: "error-text" }, execution?.error ?? job.last_error),
        pair("Input", output(job.payload, { label: "Input", empty: "No payload." })),
        pair("Output", output(result, { label: "Output", empty: job.status === "running" ? "Nothing yet." : "No result." })),
        pluginLogs(execution?.result?.logs),
        pair(["stderr", execution?.stderr_truncated && soft(" (only the beginning is kept)")], h("div", { class: "live" }, output(stderr, { label: "stderr", empty: job.status === "running" ? "Nothing yet." : "Nothing was printed." }))),
        artifacts(job)));
  }

  rerunButton() {
    const { step } = this.query;
    return ENDED.has(this.job.status) && may("job.retry_from_step") && button("Run again from here", () => this.rerunFrom(step), { kind: "small", label: `Run again from ${step}` });
  }

  liveText(id, execution, stream) {
    return this.live.get(`${id}-${execution}-${stream}`)?.text ?? "";
  }

  about() {
    const { job } = this;
    return section("About", { id: "about" }, padded(facts([
      ["Id", h("span", { class: "mono" }, job.job_id)],
      ["Submitted by", `${job.submitted_by}${job.submitted_detail ? ` (${job.submitted_detail})` : ""}`],
      ["Attempt", `${job.attempt} of ${job.max_attempts}`],
      ["Next attempt", job.next_retry_at && ago(job.next_retry_at)],
      ["Plugin", job.plugin !== "pipeline" && pluginLink(job.plugin)],
      ["Step", job.run_id && link(path`/ui/job/${job.run_id}?step=${job.step}`, job.step)],
      ["Started by job", job.parent_job_id && idLink(job.parent_job_id)],
      ["Dedupe key", job.dedupe_key && h("span", { class: "mono" }, job.dedupe_key)],
      ["Trace", job.trace_id && h("span", { class: "mono small" }, job.trace_id)],
    ].filter(([, value]) => value))));
  }

  happened() {
    return section("History", { id: "history" }, h("ol", { class: "list history" }, this.job.transitions.map((transition, index) =>
      h("li", { key: index }, wide(badge(transition.to), soft(words(transition.reason))),
        h("time", { class: "num soft", datetime: transition.at, title: transition.at }, clockTime(transition.at))))));
  }

  ledTo() {
    const children = this.data.tree?.tree.children.filter((child) => child.run_id !== this.id) ?? [];
    if (!children.length) return null;
    return section("Led to", { id: "led" }, linesOf(children.map((child) => h("li", { key: child.job_id }, wide(badge(child.status), jobLink(child))))));
  }
}

const OUTCOMES = {
  not_reached: "The run did not get here.", entered: "Its branches are shown below it.", waiting: "It has not been reached yet.",
};

function pair(name, value) {
  return h("div", { class: "pair" }, h("h3", {}, name), value);
}

function pluginLogs(logs) {
  if (!Array.isArray(logs) || !logs.length) return null;
  return pair("Plugin log", h("pre", { class: "output", tabindex: "0", "aria-label": "Plugin log" }, logs.map((line) => `${String(line?.level ?? "info").toUpperCase().padEnd(5)} ${line?.message ?? JSON.stringify(line)}`).join("\n")));
}

function artifacts(job) {
  if (!job.artifacts?.length) return null;
  return pair("Artifacts", h("ul", { class: "dots" }, job.artifacts.map(({ name, path: file, url, size }, index) => h("li", { key: index },
    file ? h("a", { href: path`/job/${job.job_id}/artifact/${name}`, download: name }, name)
      : isWeb(url) ? h("a", { href: url, rel: "noopener noreferrer", target: "_blank" }, name) : name,
    size !== undefined && size !== null && soft(` ${bytes(size)}`)))));
}

/** Only addresses of web pages become links: a plugin chooses the text. */
const isWeb = (url) => typeof url === "string" && /^https?:\/\//i.test(url);

/** The words of a finding, whatever its shape. */
function textOf(value) {
  if (typeof value === "string") return value;
  if (value.what && "good" in value) return `${value.what}: ${value.good ?? "none"} then, ${value.now ?? "none"} now`;
  return value.explanation ?? value.text ?? value.message ?? value.why ?? value.reason ?? value.what ?? Object.entries(value)
    .filter(([, part]) => part !== null)
    .map(([name, part]) => `${words(name)}: ${typeof part === "object" ? JSON.stringify(part) : part}`).join(", ");
}
