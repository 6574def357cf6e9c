// Waits and executions as bars on a scale of time. Waits are hatched, and the bar of a running job grows.

import { h } from "./dom.js";
import { clockTime, duration, words } from "./format.js";
import { badge, tone } from "./parts.js";

/** A row for each job or step; `choose(row)` is called for the one that is clicked. */
export function timeline({ rows, start, end, chosen, choose }) {
  const length = Math.max(1, end - start);
  const at = (instant) => Math.max(0, Math.min(100, ((instant - start) / length) * 100));
  return h("div", { class: "timeline" },
    h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}), h("div", {}, [0, 0.25, 0.5, 0.75, 1].map((part) => h("i", { key: part, vars: { "--at": `${part * 100}%` } }, duration(length * part) || "0")))),
    h("ol", {}, rows.map((row) => h("li", { key: row.key },
      h(choose ? "button" : "div", {
        class: `track-row ${row.step && row.step === chosen ? "chosen" : ""}`, type: choose && "button",
        "aria-pressed": choose ? String(row.step === chosen) : undefined, onclick: choose && (() => choose(row)), "data-step": row.step,
      },
        h("span", { class: "track-name", vars: { "--depth": row.depth } }, h("span", { class: "text", title: row.step ?? row.name }, row.name), row.job ? badge(row.job.status) : row.about && sign(row.about)),
        h("span", { class: "track" }, row.job ? bars(row, at, end) : row.about && h("span", { class: "remark" }, remark(row.about))))))));
}

/** The remarks on steps that have no job. */
const KINDS = { split: "in parallel", wait: "waits", approve: "waits for an approval", foreach: "for each item" };

function sign(step) {
  if (step.outcome === "bypassed") return badge("bypassed");
  if (step.errors.length) return badge("failed");
  return null;
}

function remark(step) {
  if (step.bypasses.length) return step.bypasses.map((bypass) => bypass.explanation).join("; ");
  if (step.errors.length) return step.errors.join("; ");
  return step.outcome === "not_reached" ? "not reached" : step.kind === "call" ? `calls ${step.does}` : KINDS[step.kind] ?? "";
}

function bars({ job, executions }, at, end) {
  const segments = [];
  let before = Date.parse(job.created_at);
  const bar = (key, kind, from, to, text) => segments.push(h("span", { key, class: `seg ${kind}`, title: text, vars: { "--from": `${at(from)}%`, "--to": `${at(to)}%` } }));
  for (const execution of executions) {
    const from = Date.parse(execution.started_at ?? execution.completed_at), to = Date.parse(execution.completed_at);
    if (from > before) bar(`w${execution.execution}`, "wait", before, from, `waited ${duration(from - before)}`);
    bar(`x${execution.execution}`, tone(execution.status), from, to, `execution ${execution.execution}: ${words(execution.status)} after ${duration(to - from)}, ${clockTime(execution.completed_at)}`);
    before = to;
  }
  const known = executions.some((execution) => execution.execution === job.execution);
  if (job.status === "running" && !known) {
    const from = Date.parse(job.started_at);
    if (from > before) bar("wait", "wait", before, from, `waited ${duration(from - before)}`);
    bar("now", "running", from, end, `runs for ${duration(end - from)}`);
  } else if (job.status === "queued") {
    bar("wait", "wait", before, end, `waits for ${duration(end - before)}`);
  } else if (!executions.length && job.started_at && job.completed_at) {
    bar("run", tone(job.status), Date.parse(job.started_at), Date.parse(job.completed_at), words(job.status));
  }
  return segments;
}
