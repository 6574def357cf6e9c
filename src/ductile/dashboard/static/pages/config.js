// What configuration is in force, how it came to be, and what the doctor finds.

import { get, may, withQuery } from "../api.js";
import { commandText } from "../commands.js";
import { h } from "../dom.js";
import { json, words } from "../format.js";
import { Page } from "../page.js";
import { ago, button, copyButton, empty, errorBox, loading, output, section, tabs } from "../parts.js";

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
    const found = this.data.doctor;
    if (!may("system.doctor")) return null;
    const worth = found?.findings.filter((each) => each.level !== "ok").sort((a, b) => (a.level < b.level ? -1 : 1));
    return section("Doctor", { id: "doctor", note: found && `${found.counts.ok} checks are fine` }, this.errors.doctor ? h("div", { class: "body" }, errorBox(this.errors.doctor)) : !found ? loading(4) : worth.length === 0 ? empty("Nothing is wrong.") : h("ul", { class: "list" }, worth.map((each, index) => h("li", { key: index, class: "tall" }, h("div", { class: "grow" }, h("div", {}, h("span", { class: `badge ${each.level}` }, each.level), h("strong", {}, commandText(each.message))), each.where && h("p", { class: "mono soft" }, commandText(each.where)), each.fix && h("p", {}, commandText(each.fix)))))));
  }

  disk() {
    const changed = this.data.disk?.comparisons.filter((each) => !each.same) ?? [];
    if (!this.data.disk?.problem && !changed.length) return null;
    return section("On disk, not in force", { id: "disk" }, h("div", { class: "body" }, this.data.disk.problem && h("p", { class: "error-text" }, this.data.disk.problem), changed.map((each, index) => h("div", { key: index }, h("h3", {}, `${words(each.before)} → ${words(each.after)}`), diff(each)))));
  }

  history() {
    const found = this.data.history?.history;
    if (!may("config.history")) return null;
    return section("History", { id: "history" }, !found ? loading(3) : found.length === 0 ? empty("No configuration was loaded yet.") : h("ul", { class: "list" }, found.map((each, index) => h("li", { key: each.id + each.at, class: "tall" },
      h("div", { class: "grow" }, h("div", {}, h("strong", {}, words(each.event)), each.in_force && h("span", { class: "badge succeeded" }, "in force"), h("span", { class: "soft" }, [each.command ?? each.origin, each.author && `by ${each.author}`].filter(Boolean).join(" "))), each.changes && h("p", { class: "soft" }, each.changes), this.compared?.id === each.id && diffView(this.compared)),
      h("span", { class: "soft num" }, ago(each.at)), may("config.diff") && found[index + 1] && button("Difference", () => this.compare(found[index + 1].id, each.id), { kind: "small", label: `Difference of ${each.id} to the one before` })))));
  }

  async compare(before, id) {
    this.compared = this.compared?.id === id ? null : { id, found: null };
    this.render();
    if (!this.compared) return;
    try {
      this.compared = { id, found: await get(withQuery("/config/diff", { before, after: id })) };
    } catch (error) {
      this.compared = { id, error };
    }
    this.render();
  }
}

function diffView({ found, error }) {
  if (error) return errorBox(error);
  if (!found) return h("p", { class: "soft" }, "Loading");
  return h("div", {}, found.comparisons.map((each, index) => h("div", { key: index }, diff(each))));
}

function diff({ files = [], keys = [], same }) {
  if (same) return h("p", { class: "soft" }, "They are the same.");
  return [
    files.map((file) => h("div", { key: file.name }, h("p", { class: "mono" }, `${file.name}: ${file.change}`), (file.text ?? file.differences)?.length > 0 && lines(Array.isArray(file.text ?? file.differences) ? (file.text ?? file.differences) : String(file.text).split("\n")))),
    !files.length && keys?.length > 0 && lines(keys.map((each) => (typeof each === "string" ? each : json(each)))),
  ];
}

/** Lines of a difference; added and removed ones stand out. */
function lines(texts) {
  return h("pre", { class: "output diff", tabindex: "0", "aria-label": "Difference" }, texts.map((text, index) => h("span", { key: index, class: { "+": "added", "-": "removed", "~": "changed" }[text[0]] ?? "" }, `${text}\n`)));
}
