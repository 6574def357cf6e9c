// Endpoints, jobs that webhooks have started, and state webhooks, which can be sent again.

import { get, may, path, post } from "../api.js";
import { attempt, confirm } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, count, words } from "../format.js";
import { Page } from "../page.js";
import { RowWindow } from "../rows.js";
import { ago, badge, button, empty, errorBox, idLink, jobLink, linesOf, link, loading, padded, section, soft, softNumber, wide } from "../parts.js";

const STATUSES = ["", "pending", "delivered", "dropped", "gone"];

export class WebhooksPage extends Page {
  get title() { return "Webhooks"; }

  start() {
    this.rows = new RowWindow({ page: this, fetch: (cursor) => this.fetch(cursor), row: (item) => this.row(item) });
    this.rows.restart();
    if (may("webhook.list")) this.load("endpoints", "/webhooks");
    this.loadIncoming();
    this.follow(() => this.refresh(), { settle: 800 });
    this.every(5_000, () => this.rows.refresh());
  }

  refresh() {
    this.rows.refresh();
    this.loadIncoming();
  }

  loadIncoming() {
    if (may("job.list")) this.load("incoming", "/jobs", { submitted_by: "webhook", limit: 10 });
  }

  async fetch(cursor) {
    const page = await get("/webhooks/deliveries", { status: this.query.status, limit: 100, cursor });
    return { items: page.deliveries, next: page.next_cursor, key: "id" };
  }

  view() {
    return [h("h1", {}, "Webhooks"), this.problems("endpoints", "incoming"), h("div", { class: "stack" }, this.outgoing(), h("div", { class: "pairs" }, this.endpoints(), this.incoming()))];
  }

  outgoing() {
    const { rows, query } = this;
    const lost = query.status === "dropped" || query.status === "gone";
    return section("Sent to receivers", { id: "deliveries", aside: h("span", { class: "row" },
      h("select", { "aria-label": "Status", value: query.status ?? "", onchange: (event) => { this.setQuery({ status: event.target.value }); rows.restart(); } }, STATUSES.map((status) => h("option", { key: status, value: status, selected: status === (query.status ?? "") }, status || "any status"))),
      lost && may("webhook.resend_many") && rows.items.length > 0 && button("Send all again…", () => this.resendAll(), { kind: "small" })) },
      rows.error ? padded(errorBox(rows.error)) : rows.unloaded ? loading(4) : !rows.items.length ? empty("No state webhook was sent.", h("p", {}, "A job that is submitted with ", h("code", {}, "state_webhook_url"), " tells that address how it goes.")) : rows.view());
  }

  row(delivery) {
    return h("li", { key: delivery.id, class: "job-row delivery" },
      badge(delivery.status), h("span", { class: "what", title: delivery.url }, delivery.url),
      h("span", { class: `about ${delivery.last_error ? "error-text" : "soft"}`, title: delivery.last_error ?? "" }, `${delivery.state}${delivery.last_status ? `, ${delivery.last_status}` : ""}${delivery.last_error ? `: ${delivery.last_error}` : ""}`),
      h("span", { class: "num right soft" }, count(delivery.attempts, "attempt")), h("span", { class: "num right soft" }, ago(delivery.created_at)), h("span", { class: "right row end" }, idLink(delivery.job_id), may("webhook.resend") && delivery.status !== "pending" && button("Resend", () => this.resend(delivery), { kind: "small", label: `Resend ${delivery.state} to ${delivery.url}` })));
  }

  async resend(delivery) {
    await attempt(() => post(path`/webhooks/deliveries/${delivery.id}/resend`), "It is sent again.");
    this.rows.refresh();
  }

  async resendAll() {
    const where = { status: this.query.status };
    const counted = await attempt(() => post("/deliveries/resend", { ...where, dry_run: true }), ({ matched }) => `${count(matched, "delivery", "deliveries")} found.`);
    if (!counted) return;
    const many = count(counted.matched, "delivery", "deliveries");
    confirm({ title: `Send ${many} again?`, text: "Receivers get each of them once more.", action: `Send ${many}`, act: async () => { const done = await post("/deliveries/resend", where); this.rows.restart(); return done.message; } });
  }

  endpoints() {
    if (!may("webhook.list")) return null;
    const { listen, endpoints } = this.data.endpoints ?? {};
    return section("Endpoints", { id: "endpoints", note: listen ?? "" },
      !endpoints ? loading(3)
      : endpoints.length === 0 ? empty("No endpoint is configured.", h("p", {}, "An endpoint under ", h("code", {}, "webhooks.endpoints"), " lets other services start jobs."))
      : linesOf(endpoints.map((endpoint) => endpointRow(endpoint))));
  }

  incoming() {
    const jobs = this.data.incoming?.jobs;
    if (!may("job.list")) return null;
    return section("What came in", { id: "incoming", aside: jobs?.length > 0 && link("/ui/jobs", "All jobs") },
      !jobs ? loading(3)
      : jobs.length === 0 ? empty("No webhook has started a job.")
      : linesOf(jobs.map((job) => h("li", { key: job.job_id }, wide(badge(job.status), jobLink(job), soft(words(job.submitted_detail ?? ""))), softNumber(ago(job.created_at))))));
  }
}

function endpointRow({ name, path: address, plugin, command, pipeline, event, refused, max_body_size: limit }) {
  const target = plugin ? `runs ${plugin} ${command ?? ""}` : pipeline ? `runs pipeline ${pipeline}` : `publishes ${event}`;
  return h("li", { key: address },
    wide(h("strong", {}, name), h("code", {}, address), soft(target),
      refused && h("span", { class: "error-text" }, `refused ${count(refused.count, "request")}, the latest `, ago(refused.last_at), `: ${refused.why}`)),
    softNumber(`up to ${bytes(limit)}`));
}
