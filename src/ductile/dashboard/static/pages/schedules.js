// Schedules: a calendar of past and coming runs, and buttons to pause, resume and run them.

import { get, may, path, post } from "../api.js";
import { commandText } from "../commands.js";
import { attempt } from "../dialog.js";
import { h } from "../dom.js";
import { clockTime, count, dayName, duration, shortTime, words } from "../format.js";
import { Page } from "../page.js";
import { ago, badge, button, copyButton, empty, facts, idLink, linesOf, link, loading, padded, scheduleLink, section, soft, softLine, softNumber, wide } from "../parts.js";

/** Whether an event may be about a schedule. An event without a kind may be about anything. */
const isSchedule = (event) => !event.kind || event.kind.startsWith("schedule.");

/** Buttons of one schedule; `done` is called after a change. */
function buttonsOf(schedule, done) {
  const act = async (verb, message) => {
    await attempt(() => post(path`/schedule/${schedule.plugin}/${schedule.id}/${verb}`), message);
    done();
  };
  const name = `${schedule.plugin} ${schedule.id}`;
  return h("span", { class: "row" },
    schedule.paused_at
      ? may("schedule.resume") && button("Resume", () => act("resume", `${name} runs again.`), { kind: "small", label: `Resume ${name}` })
      : may("schedule.pause") && button("Pause", () => act("pause", `${name} is paused.`), { kind: "small", label: `Pause ${name}` }),
    may("schedule.run") && button("Run now", () => act("run", `${name} is on the queue.`), { kind: "small", label: `Run ${name} now` }));
}

/** `failed` if the job of an occurrence failed, else its outcome. */
const result = (occurrence) => (["failed", "timed_out", "dead"].includes(occurrence.job_status) ? "failed" : occurrence.outcome);

/** The entries of a day, one line for each schedule, outcome and reason. */
function joined(entries) {
  const lines = new Map();
  for (const entry of entries) {
    const key = `${entry.name} ${entry.outcome} ${entry.reason ?? ""}`;
    const line = lines.get(key);
    if (line) Object.assign(line, { count: line.count + entry.count, until: entry.until });
    else lines.set(key, { ...entry });
  }
  return [...lines.values()];
}

export class SchedulesPage extends Page {
  get title() { return "Schedules"; }

  start() {
    this.past = {};
    this.refresh();
    this.follow(() => this.refresh(), { settle: 800, when: (event) => isSchedule(event) || this.unfinished().includes(event.job_id) });
    // The event of a job's end may arrive before the response that names the job.
    this.every(10_000, () => this.unfinished().length && this.refresh());
  }

  /** Ids of past jobs that have not ended. */
  unfinished() {
    return Object.values(this.past).flat().filter((occurrence) => ["queued", "running"].includes(occurrence.job_status)).map((occurrence) => occurrence.job_id);
  }

  async refresh() {
    const listed = await this.load("schedules", "/schedules");
    this.load("next", "/schedules/next", { count: 200 });
    for (const { plugin, id } of listed?.schedules.slice(0, 40) ?? []) {
      get(path`/schedule/${plugin}/${id}/history`, { limit: 60 }).then((history) => {
        this.past[`${plugin}/${id}`] = history.occurrences;
        this.render();
      }, () => {});
    }
  }

  view() {
    const schedules = this.data.schedules?.schedules;
    return [
      h("h1", {}, "Schedules"),
      this.problems("schedules", "next"),
      h("div", { class: "stack" },
        section("All schedules", { id: "all", note: schedules && count(schedules.length, "schedule") },
          !schedules ? loading(3)
          : schedules.length === 0 ? empty("There are no schedules.", h("p", {}, "They are configured under ", h("code", {}, "plugins.NAME.schedules"), "."))
          : linesOf(schedules.map((schedule) => this.row(schedule)))),
        section("Calendar", { id: "calendar", note: "past and coming runs" }, this.calendar())),
    ];
  }

  row(schedule) {
    return h("li", { key: `${schedule.plugin}/${schedule.id}` },
      wide(scheduleLink(schedule.plugin, schedule.id), soft(schedule.rule ?? "no longer configured"),
        schedule.paused_at && h("span", { class: "badge warn" }, "paused"), schedule.breaker !== "closed" && h("span", { class: "badge failed" }, `breaker ${words(schedule.breaker)}`)),
      !schedule.paused_at && schedule.next_at && softNumber(ago(schedule.next_at, "next ")),
      schedule.last_job_id && idLink(schedule.last_job_id), buttonsOf(schedule, () => this.refresh()));
  }

  /** Days with their past and coming runs. */
  calendar() {
    const entries = [
      ...Object.entries(this.past).flatMap(([name, list]) => list.map((past) => ({ name, at: past.nominal_at, outcome: result(past), reason: past.reason, job: past.job_id, count: past.count, until: past.until_at ?? past.nominal_at }))),
      ...(this.data.next?.occurrences ?? []).filter((coming) => coming.start_at).map((coming) => ({ name: `${coming.plugin}/${coming.id}`, at: coming.start_at, outcome: coming.skip ? "skipped" : "due", reason: coming.skip, count: 1, until: coming.start_at })),
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
      h("ul", {}, joined(list).map((line) => calendarLine(line))))));
  }
}

/** A line of a day: time, outcome, and a link to the only job, else to the schedule. */
function calendarLine({ name, at, outcome, reason, job, count: times, until }) {
  const about = `${outcome === "ran" ? "" : outcome}${times > 1 ? ` ${times}×, last ${shortTime(until)}` : ""}${reason ? `: ${words(reason)}` : ""}`;
  const href = job && times === 1 ? `/ui/job/${job}` : `/ui/schedule/${name.split("/").map(encodeURIComponent).join("/")}`;
  return h("li", { key: name + at + outcome, class: outcome },
    h("span", { class: "num soft" }, shortTime(at)), h("span", { class: `dot ${outcome}`, "aria-hidden": "true" }),
    h("a", { href }, name.replace("/", " ")), soft(about));
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
    const schedule = this.data.schedules?.schedules.find((listed) => listed.id === id);
    const { history, next, explanation } = this.data;
    return [
      h("div", { class: "page-head" },
        h("div", {},
          h("nav", { class: "crumbs", "aria-label": "Place" }, link("/ui/schedules", "Schedules")),
          h("h1", {}, this.title),
          schedule && softLine(schedule.rule, schedule.timezone !== "UTC" && ` (${schedule.timezone})`)),
        h("div", { class: "row actions" },
          schedule && buttonsOf(schedule, () => this.refresh()), copyButton(`ductile schedule explain ${plugin} ${id}`, "Copy command"))),
      this.problems("schedules", "history"),
      h("div", { class: "columns" },
        h("div", {}, section("What became of every due run", { id: "history" },
          !history ? loading(5)
          : history.occurrences.length === 0 ? empty("It has not been due yet.")
          : linesOf(history.occurrences.map((occurrence) => pastRow(occurrence))))),
        h("div", {},
          explanation && section("How it stands", { id: "why" }, padded(
            h("p", {}, commandText(explanation.verdict ?? "")),
            (explanation.advice ?? []).map((text, index) => h("p", { class: "advice", key: index }, commandText(text))))),
          section("Next runs", { id: "next" },
            !next ? loading(3)
            : next.occurrences.length === 0 ? empty("It is not due again.")
            : linesOf(next.occurrences.map((occurrence) => comingRow(occurrence)))),
          schedule && section("About", { id: "about" }, padded(facts([
            ["Command", schedule.command],
            ["Last run", schedule.last_fired_at && ago(schedule.last_fired_at)],
            ["Paused", schedule.paused_at && ago(schedule.paused_at)],
            ["Circuit breaker", words(schedule.breaker)],
          ]))))),
    ];
  }
}

/** One past occurrence, or several in a row that were skipped for the same reason. */
function pastRow({ nominal_at: nominal, until_at: until, outcome, job_id: jobId, job_status: jobStatus, reason, count: times, late_ms: late }) {
  return h("li", { key: nominal + outcome },
    wide(
      badge(outcome), jobStatus && badge(jobStatus),
      reason && soft(words(reason)),
      times > 1 && soft(`${times} times until ${shortTime(until)}`),
      late && soft(`${duration(late)} late`)),
    jobId && idLink(jobId), softNumber(`${dayName(nominal)} ${clockTime(nominal)}`));
}

function comingRow({ nominal_at: nominal, start_at: start, skip }) {
  return h("li", { key: nominal },
    wide(start ? `${dayName(start)} ${shortTime(start)}` : "at the next start", skip && soft(`skipped: ${words(skip)}`)),
    softNumber(ago(start)));
}
