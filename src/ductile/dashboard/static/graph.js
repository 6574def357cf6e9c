// A pipeline as a graph of boxes: steps of a sequence are below each other, branches are side by side.

import { h } from "./dom.js";
import { duration } from "./format.js";
import { badge, soft, softNumber } from "./parts.js";

export function graph({ tree, trigger, steps, chosen, choose }) {
  const reports = new Map(steps.map((step) => [step.step, step]));
  const context = { reports, chosen, choose };
  return h("div", { class: "graph", tabindex: "0", role: "group", "aria-label": "Graph of the pipeline" },
    h("div", { class: "flow" }, h("div", { class: "node start" }, trigger), sequence(tree, context), h("div", { class: "finish", "aria-hidden": "true" })));
}

function sequence(steps, context) {
  return steps.map((step) => h("div", { class: "element", key: step.path }, box(step, context)));
}

function box(step, context) {
  const report = context.reports.get(step.path);
  const inside = step.inside.filter((branch) => branch.steps.length);
  const node = h("button", {
    type: "button", class: `node ${stateOf(report)} ${step.path === context.chosen ? "chosen" : ""}`, "data-step": step.path,
    "aria-pressed": String(step.path === context.chosen), onclick: () => context.choose(step.path),
  },
    h("span", { class: "head" }, h("strong", {}, step.id ?? step.path), report && status(report)),
    soft(step.does),
    step.if && h("span", { class: "condition" }, `if ${step.if}`),
    report?.bypasses.map((bypass, index) => h("span", { class: "false", key: index }, bypass.explanation)),
    report?.errors.map((text, index) => h("span", { class: "error-text", key: `e${index}` }, text)));
  if (!inside.length) return node;
  const isCall = step.does?.startsWith("call ");
  return [node, h("div", { class: isCall ? "block call" : "block" },
    h("div", { class: "branches" }, inside.map((branch, index) =>
      h("div", { class: "branch", key: index }, branchName(branch) && h("span", { class: "branch-name" }, branchName(branch)), h("div", { class: "flow" }, sequence(branch.steps, context))))))];
}

function status(report) {
  const job = report.jobs.at(-1);
  if (report.outcome === "bypassed") return badge("bypassed");
  if (!job) return null;
  return [badge(job.status), job.duration_ms !== null && softNumber(duration(job.duration_ms)), report.jobs.length > 1 && soft(`×${report.jobs.length}`)];
}

function stateOf(report) {
  if (!report || report.outcome === "not_reached") return "idle";
  if (report.outcome === "bypassed") return "bypassed";
  return report.jobs.at(-1)?.status ?? "";
}

/** The name of a branch; empty if its only step has the same name. */
function branchName({ kind, name, steps }) {
  if (!name || (kind === "branch" && steps.length === 1 && steps[0].id === name)) return "";
  return kind === "branch" ? name : `on ${name}`;
}
