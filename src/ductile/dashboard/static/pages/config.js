// The configuration in force, its history and differences, and the findings of the doctor.

import { get, may, withQuery } from "../api.js";
import { commandText } from "../commands.js";
import { h } from "../dom.js";
import { json, words } from "../format.js";
import { Page } from "../page.js";
import { ago, button, copyButton, empty, errorBox, linesOf, loading, output, padded, section, soft, softLine, softNumber, tabs, wide } from "../parts.js";

export class ConfigPage extends Page {
  get title() { return "Configuration"; }

  start() { this.refresh(); }

  refresh() {
    this.load("config", "/config/view");
    if (may("system.doctor")) this.load("doctor", "/system/doctor");
    if (may("config.history")) this.load("history", "/config/history");
    if (may("config.diff")) this.load("disk", "/config/diff");
  }

  view() {
    const sections = Object.keys(this.data.config?.config ?? {});
    const chosen = sections.includes(this.query.section) ? this.query.section : sections[0];
    return [
      h("div", { class: "page-head" }, h("h1", {}, "Configuration"), h("div", { class: "row actions" }, copyButton("ductile config show", "Copy command"))),
      this.problems("config"),
      h("div", { class: "columns" },
        h("div", {}, !this.data.config ? section("In force", {}, loading(6)) : h("section", { class: "panel", "aria-label": "In force" },
          tabs("Sections", chosen, sections.map((name) => [name, name]), (name) => { this.setQuery({ section: name }); this.render(); }),
          h("div", { class: "body", role: "tabpanel", "aria-labelledby": `tab-${chosen}` }, output(this.data.config.config[chosen], { label: `Section ${chosen}` }))),
          this.history()),
        h("div", {}, this.doctor(), this.disk())),
    ];
  }

  doctor() {
    const report = this.data.doctor;
    if (!may("system.doctor")) return null;
    const faults = report?.findings.filter((finding) => finding.level !== "ok").sort((a, b) => (a.level < b.level ? -1 : 1));
    return section("Doctor", { id: "doctor", note: report && `${report.counts.ok} checks are fine` },
      this.errors.doctor ? padded(errorBox(this.errors.doctor))
      : !report ? loading(4)
      : faults.length === 0 ? empty("Nothing is wrong.")
      : linesOf(faults.map((finding, index) => h("li", { key: index, class: "tall" }, findingView(finding)))));
  }

  disk() {
    const { comparisons = [], problem } = this.data.disk ?? {};
    const changed = comparisons.filter((comparison) => !comparison.same);
    if (!problem && !changed.length) return null;
    return section("On disk, not in force", { id: "disk" }, padded(
      problem && h("p", { class: "error-text" }, problem),
      changed.map((comparison, index) => h("div", { key: index },
        h("h3", {}, `${words(comparison.before)} → ${words(comparison.after)}`), comparisonView(comparison)))));
  }

  history() {
    const entries = this.data.history?.history;
    if (!may("config.history")) return null;
    return section("History", { id: "history" },
      !entries ? loading(3)
      : entries.length === 0 ? empty("No configuration was loaded yet.")
      : linesOf(entries.map((entry, index) => this.historyRow(entry, entries[index + 1]))));
  }

  /** `earlier` is the entry before this one in time, with which it can be compared. */
  historyRow(entry, earlier) {
    const origin = [entry.command ?? entry.origin, entry.author && `by ${entry.author}`].filter(Boolean).join(" ");
    return h("li", { key: entry.id + entry.at, class: "tall" },
      wide(
        h("div", {}, h("strong", {}, words(entry.event)), entry.in_force && h("span", { class: "badge succeeded" }, "in force"), soft(origin)),
        entry.changes && softLine(entry.changes),
        this.compared?.id === entry.id && comparedView(this.compared)),
      softNumber(ago(entry.at)),
      may("config.diff") && earlier && button("Difference", () => this.compare(earlier.id, entry.id), { kind: "small", label: `Difference of ${entry.id} to the one before` }));
  }

  async compare(before, id) {
    this.compared = this.compared?.id === id ? null : { id, diff: null };
    this.render();
    if (!this.compared) return;
    try {
      this.compared = { id, diff: await get(withQuery("/config/diff", { before, after: id })) };
    } catch (error) {
      this.compared = { id, error };
    }
    this.render();
  }
}

function findingView({ level, message, where, fix }) {
  return wide(
    h("div", {}, h("span", { class: `badge ${level}` }, level), h("strong", {}, commandText(message))),
    where && h("p", { class: "mono soft" }, commandText(where)),
    fix && h("p", {}, commandText(fix)));
}

function comparedView({ diff, error }) {
  if (error) return errorBox(error);
  if (!diff) return softLine("Loading");
  return h("div", {}, diff.comparisons.map((comparison, index) => h("div", { key: index }, comparisonView(comparison))));
}

/** The changed lines of each file; the changed keys where the files are not known. */
function comparisonView({ files = [], keys = [], same }) {
  if (same) return softLine("They are the same.");
  return [
    files.map((file) => h("div", { key: file.name }, h("p", { class: "mono" }, `${file.name}: ${file.change}`), changedLines(file))),
    !files.length && keys?.length > 0 && lines(keys.map((key) => (typeof key === "string" ? key : json(key)))),
  ];
}

function changedLines({ text, differences }) {
  const changed = text ?? differences;
  return changed?.length > 0 && lines(Array.isArray(changed) ? changed : changed.split("\n"));
}

/** Lines of a difference; added and removed ones stand out. */
function lines(texts) {
  return h("pre", { class: "output diff", tabindex: "0", "aria-label": "Difference" }, texts.map((text, index) => h("span", { key: index, class: { "+": "added", "-": "removed", "~": "changed" }[text[0]] ?? "" }, `${text}\n`)));
}
