// Views that several pages use. All texts from the gateway become text nodes.

import { path } from "./api.js";
import { h } from "./dom.js";
import { fullTime, json, jobName, moment, relative, shortId, words } from "./format.js";

const ICONS = {
  now: "M4 13h4l2.5-7 4 12 2.5-5h3",
  jobs: "M5 6h14M5 12h14M5 18h9",
  figures: "M5 19V11M10 19V5M15 19v-6M20 19V8",
  schedules: "M5 8h14v11H5zM5 8V6h14v2M9 4v3M15 4v3M5 12h14",
  plugins: "M9 4v5M15 4v5M6 9h12v3a6 6 0 0 1-12 0zM12 18v3",
  webhooks: "M12 8a3 3 0 1 0-2.6-4.5M9.4 8.6 6.6 14M5.5 14a3 3 0 1 0 3 4h7M14.6 8.6l2.8 5.2M18.5 14a3 3 0 1 1-3 4.2",
  config: "M5 7h8M17 7h2M5 17h2M11 17h8M13 5v4M9 15v4",
  succeeded: "M7 12.5l3.5 3.5L17 9",
  failed: "M8.5 8.5l7 7M15.5 8.5l-7 7",
  dead: "M8 12h8",
  timed_out: "M12 7.5V12l3 2",
  queued: "M12 12h.01",
  running: "M12 5a7 7 0 0 1 7 7",
  bypassed: "M8 12h6M11.5 9l3 3-3 3",
  search: "M10.5 5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M15 15l4 4",
  more: "M9 6l6 6-6 6",
};

export const icon = (name) =>
  h("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" },
    h("path", { d: ICONS[name] ?? ICONS.more }));

const element = (tag, className) => (...children) => h(tag, { class: className }, ...children);
export const soft = element("span", "soft");
export const softNumber = element("span", "soft num");
export const softLine = element("p", "soft");
export const wide = element("div", "grow");
export const padded = element("div", "body");
export const linesOf = element("ul", "list");

const STATUS_ICON = { awaiting_approval: "timed_out", cancelled: "dead", interrupted: "dead", orphaned: "dead", superseded: "dead", partial_success: "failed" };
// Others are shown as their words.
const STATUS_CLASS = { waiting: "queued", awaiting_approval: "warn", approved: "succeeded", rejected: "failed", cancelled: "dead", interrupted: "dead", orphaned: "dead", superseded: "dead", dropped: "failed", gone: "dead", delivered: "succeeded", pending: "queued", ran: "succeeded", skipped: "bypassed", late: "timed_out" };

/** The class that gives a status its colour. */
export const tone = (status) => STATUS_CLASS[status] ?? status;

/** A status as a sign and a word, so that nothing depends on colour alone. */
export function badge(status, title) {
  const name = STATUS_ICON[status] ?? STATUS_CLASS[status] ?? status;
  return h("span", { class: `badge ${tone(status)}`, title },
    h("svg", { viewBox: "0 0 24 24", class: "sign", "aria-hidden": "true" },
      h("circle", { cx: 12, cy: 12, r: 9 }), h("path", { d: ICONS[name] ?? ICONS.queued })),
    h("span", {}, words(status)));
}

export function ago(iso, prefix = "") {
  return iso ? h("time", { datetime: iso, title: fullTime(iso) }, `${prefix}${relative(iso)}`) : "";
}

/** An instant in the local time, with its day unless that is today. */
export const instant = (iso) => h("time", { datetime: iso, title: fullTime(iso) }, moment(iso));

export const link = (href, ...children) => h("a", { href }, ...children);
export const jobLink = (job, text = jobName(job)) => h("a", { class: "job-link", href: `/ui/job/${job.job_id}` }, text);
export const pluginLink = (name, text = name) => link(path`/ui/plugin/${name}`, text);
export const scheduleLink = (plugin, id) => link(path`/ui/schedule/${plugin}/${id}`, `${plugin} ${id}`);
export const idLink = (id) => h("a", { class: "mono id", href: `/ui/job/${id}`, title: id }, shortId(id));

/** The mark of Ductile, as in icon.svg. */
export function logo() {
  return h("svg", { viewBox: "0 0 32 32", class: "logo", "aria-hidden": "true" },
    h("rect", { width: 32, height: 32, rx: 8 }),
    h("path", { d: "M7 21c5 0 5-10 9-10s4 10 9 10" }),
    h("circle", { cx: 7, cy: 21, r: 2.6 }), h("circle", { cx: 25, cy: 21, r: 2.6 }));
}

export function section(title, { aside, id, note } = {}, ...children) {
  return h("section", { class: "panel", "aria-labelledby": id && `${id}-title`, key: id },
    h("header", {}, h("h2", { id: id && `${id}-title` }, title), note && h("span", { class: "note" }, note), aside),
    ...children);
}

export function empty(text, ...more) {
  return h("div", { class: "empty" }, h("p", {}, text), ...more);
}

export function errorBox(error) {
  return h("div", { class: "error-box", role: "alert" },
    h("strong", {}, error.message), error.hint && h("p", {}, error.hint));
}

/** Grey bars in place of data that is being loaded, as high as the data, so that nothing moves. */
export function loading(lines = 3) {
  return h("div", { class: "loading", "aria-busy": "true" }, h("span", { class: "visually-hidden" }, "Loading"),
    Array.from({ length: lines }, () => h("span", { class: "bone" })));
}

export function button(text, onclick, { kind = "", title, disabled, label } = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick, title, disabled, "aria-label": label }, text);
}

/** Text as it was printed, or a value as JSON. */
export function output(text, { label, empty: none = "Nothing." } = {}) {
  if (text === null || text === undefined || text === "") return softLine(none);
  return h("pre", { class: "output", tabindex: "0", "aria-label": label }, typeof text === "string" ? text : json(text));
}

/** `text` may be a function of the button, called when it is pressed. */
export function copyButton(text, label) {
  return h("button", {
    type: "button", class: "button small", "data-copy": label,
    onclick: async (event) => {
      const pressed = event.currentTarget;
      try {
        await navigator.clipboard.writeText(typeof text === "function" ? text(pressed) : text);
        pressed.dataset.done = "Copied";
      } catch {
        pressed.dataset.done = "Not allowed here";
      }
      setTimeout(() => delete pressed.dataset.done, 1500);
    },
  }, label);
}

/** Definitions in two columns; those without a value are left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))));
}

export function tabs(label, chosen, choices, choose) {
  return h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: moveTab },
    choices.map(([name, text]) => h("button", {
      type: "button", role: "tab", key: name, id: `tab-${name}`, "aria-selected": String(name === chosen),
      tabindex: name === chosen ? "0" : "-1", onclick: () => choose(name),
    }, text)));
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const all = [...event.currentTarget.children];
  const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
  next.focus();
  next.click();
}
