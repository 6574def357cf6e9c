// Schedules: a calendar of what ran, was skipped and comes, and the switches of each.

import { get, may, path, post } from "../api.js";
import { commandText } from "../commands.js";
import { attempt } from "../dialog.js";
import { h } from "../dom.js";
import { clockTime, count, dayName, duration, shortTime, words } from "../format.js";
import { Page } from "../page.js";
import { ago, badge, button, copyButton, empty, facts, idLink, link, loading, section } from "../parts.js";

const address = (each) => `/ui/schedule/${encodeURIComponent(each.plugin)}/${encodeURIComponent(each.id)}`;

/** Whether an event may change what is shown; one without a kind says only that something may have. */
const isSchedule = (event) => !event.kind || event.kind.startsWith("schedule.");

/** Buttons of one schedule; `done` is called after a change. */
function switches(schedule, done) {
  const act = async (verb, said) => {
    await attempt(() => post(path`/schedule/${schedule.plugin}/${schedule.id}/${verb}`), said);
    done();
  };
  const name = `${schedule.plugin} ${schedule.id}`;
  return h("span", { class: "row" },
    schedule.paused_at
      ? may("schedule.resume") && button("Resume", () => act("resume", `${name} runs again.`), { kind: "small", label: `Resume ${name}` })
      : may("schedule.pause") && button("Pause", () => act("pause", `${name} is paused.`), { kind: "small", label: `Pause ${name}` }),
    may("schedule.run") && button("Run now", () => act("run", `${name} is on the queue.`), { kind: "small", label: `Run ${name} now` }));
}

/** What became of a past occurrence: `failed` if its job failed, else whether it ran, was late or was skipped. */
const result = (each) => (["failed", "timed_out", "dead"].includes(each.job_status) ? "failed" : each.outcome);

/** What a schedule did or will do several times in a day, one line for each outcome and reason. */
function joined(entries) {
  const lines = new Map();
  for (const each of entries) {
    const key = `${each.name} ${each.outcome} ${each.reason ?? ""}`;
    const line = lines.get(key);
    if (line) Object.assign(line, { count: line.count + each.count, until: each.until });
    else lines.set(key, { ...each });
  }
  return [...lines.values()];
}

export class SchedulesPage extends Page {
  get title() { return "Schedules"; }

  start() {
    this.past = {};
    this.refresh();
    this.follow(() => this.refresh(), { settle: 800, when: (event) => isSchedule(event) || this.unfinished().includes(event.job_id) });
    // A job may end between the answer with its status and the moment its events are looked for.
    this.every(10_000, () => this.unfinished().length && this.refresh());
  }

  /** Ids of the jobs of past occurrences that are queued or running. */
  unfinished() {
    return Object.values(this.past).flat().filter((each) => ["queued", "running"].includes(each.job_status)).map((each) => each.job_id);
  }

  async refresh() {
    const found = await this.load("schedules", "/schedules");
    this.load("next", "/schedules/next", { count: 200 });
    for (const each of found?.schedules.slice(0, 40) ?? []) {
      get(path`/schedule/${each.plugin}/${each.id}/history`, { limit: 60 }).then((history) => { this.past[`${each.plugin}/${each.id}`] = history.occurrences; this.render(); }, () => {});
    }
  }

  view() {
    const found = this.data.schedules?.schedules;
    return [
      h("h1", {}, "Schedules"),
      this.problems("schedules", "next"),
      h("div", { class: "stack" },
        section("All schedules", { id: "all", note: found && count(found.length, "schedule") }, !found ? loading(3) : found.length === 0 ? empty("There are no schedules.", h("p", {}, "They are configured under ", h("code", {}, "plugins.NAME.schedules"), ".")) : h("ul", { class: "list" }, found.map((each) => this.row(each)))),
        section("Calendar", { id: "calendar", note: "past and coming runs" }, this.calendar())),
    ];
  }

  row(each) {
    return h("li", { key: `${each.plugin}/${each.id}` },
      h("div", { class: "grow" }, link(address(each), `${each.plugin} ${each.id}`), h("span", { class: "soft" }, each.rule ?? "no longer configured"),
        each.paused_at && h("span", { class: "badge warn" }, "paused"), each.breaker !== "closed" && h("span", { class: "badge failed" }, `breaker ${words(each.breaker)}`)),
      !each.paused_at && each.next_at && h("span", { class: "soft num" }, ago(each.next_at, "next ")),
      each.last_job_id && idLink(each.last_job_id), switches(each, () => this.refresh()));
  }

  /** Days with what happened and will happen on them, today in the middle. */
  calendar() {
    const entries = [
      ...Object.entries(this.past).flatMap(([name, list]) => list.map((each) => ({ name, at: each.nominal_at, outcome: result(each), reason: each.reason, job: each.job_id, count: each.count, until: each.until_at ?? each.nominal_at }))),
      ...(this.data.next?.occurrences ?? []).filter((each) => each.start_at).map((each) => ({ name: `${each.plugin}/${each.id}`, at: each.start_at, outcome: each.skip ? "skipped" : "due", reason: each.skip, count: 1, until: each.start_at })),
    ];
    if (!entries.length) return empty("Nothing has run yet, and nothing is due.");
    const days = new Map();
    for (const entry of entries.sort((a, b) => (a.at < b.at ? -1 : 1))) {
      const day = new Date(entry.at).toDateString();
      days.set(day, [...(days.get(day) ?? []), entry]);
    }
    const today = new Date().toDateString();
    return h("ol", { class: "calendar", tabindex: "0", "aria-label": "Calendar" }, [...days].map(([day, list]) => h("li", { key: day, class: day === today ? "today" : "" },
      h("h3", {}, day === today ? "Today" : dayName(list[0].at)),
      h("ul", {}, joined(list).map((each) => h("li", { key: each.name + each.at + each.outcome, class: each.outcome },
        h("span", { class: "num soft" }, shortTime(each.at)), h("span", { class: `dot ${each.outcome}`, "aria-hidden": "true" }),
        h("a", { href: each.job && each.count === 1 ? `/ui/job/${each.job}` : `/ui/schedule/${each.name.split("/").map(encodeURIComponent).join("/")}` }, each.name.replace("/", " ")),
        h("span", { class: "soft" }, `${each.outcome === "ran" ? "" : each.outcome}${each.count > 1 ? ` ${each.count}×, last ${shortTime(each.until)}` : ""}${each.reason ? `: ${words(each.reason)}` : ""}`)))))));
  }
}

export class SchedulePage extends Page {
  get title() { return `${this.parameters.plugin} ${this.parameters.id}`; }

  start() {
    this.refresh();
    this.follow(() => this.refresh(), { settle: 800 });
  }

  refresh() {
    const { plugin, id } = this.parameters;
    this.load("schedules", "/schedules", { plugin });
    this.load("history", path`/schedule/${plugin}/${id}/history`, { limit: 100 });
    this.load("next", "/schedules/next", { plugin, schedule: id, count: 10 });
    this.load("explanation", path`/schedule/${plugin}/${id}/explain`);
  }

  view() {
    const { plugin, id } = this.parameters;
    const own = this.data.schedules?.schedules.find((each) => each.id === id);
    const { history, next, explanation } = this.data;
    return [
      h("div", { class: "page-head" }, h("div", {}, h("nav", { class: "crumbs", "aria-label": "Place" }, link("/ui/schedules", "Schedules")), h("h1", {}, this.title), own && h("p", { class: "soft" }, own.rule, own.timezone !== "UTC" && ` (${own.timezone})`)),
        h("div", { class: "row actions" }, own && switches(own, () => this.refresh()), copyButton(`ductile schedule explain ${plugin} ${id}`, "Copy command"))),
      this.problems("schedules", "history"),
      h("div", { class: "columns" },
        h("div", {}, section("What became of every due run", { id: "history" }, !history ? loading(5) : history.occurrences.length === 0 ? empty("It has not been due yet.") : h("ul", { class: "list" }, history.occurrences.map((each) => h("li", { key: each.nominal_at + each.outcome },
          h("div", { class: "grow" }, badge(each.outcome), each.job_status && badge(each.job_status), each.reason && h("span", { class: "soft" }, words(each.reason)), each.count > 1 && h("span", { class: "soft" }, `${each.count} times until ${shortTime(each.until_at)}`), each.late_ms && h("span", { class: "soft" }, `${duration(each.late_ms)} late`)),
          each.job_id && idLink(each.job_id), h("span", { class: "soft num" }, `${dayName(each.nominal_at)} ${clockTime(each.nominal_at)}`)))))),
        h("div", {},
          explanation && section("How it stands", { id: "why" }, h("div", { class: "body" }, h("p", {}, commandText(explanation.verdict ?? "")), (explanation.advice ?? []).map((text, index) => h("p", { class: "advice", key: index }, commandText(text))))),
          section("Next runs", { id: "next" }, !next ? loading(3) : next.occurrences.length === 0 ? empty("It is not due again.") : h("ul", { class: "list" }, next.occurrences.map((each) => h("li", { key: each.nominal_at }, h("div", { class: "grow" }, each.start_at ? `${dayName(each.start_at)} ${shortTime(each.start_at)}` : "at the next start", each.skip && h("span", { class: "soft" }, `skipped: ${words(each.skip)}`)), h("span", { class: "soft num" }, ago(each.start_at)))))),
          own && section("About", { id: "about" }, h("div", { class: "body" }, facts([["Command", own.command], ["Last run", own.last_fired_at && ago(own.last_fired_at)], ["Paused", own.paused_at && ago(own.paused_at)], ["Circuit breaker", words(own.breaker)]]))))),
    ];
  }
}
