// The entry: signs in, draws the frame around all pages, and opens the page of an address.

import { connection, get, may, post, session } from "./api.js";
import { announce } from "./dialog.js";
import { h, patch } from "./dom.js";
import { icon, logo } from "./parts.js";
import { ROUTES } from "./routes.js";
import { openSignIn } from "./pages/sign_in.js";
import { moveRow, showKeys } from "./keys.js";

const app = document.getElementById("app");

const NAVIGATION = [
  ["/ui", "now", "Now", "queue.list"],
  ["/ui/jobs", "jobs", "Jobs", "job.list"],
  ["/ui/figures", "figures", "Figures", "log.series"],
  ["/ui/schedules", "schedules", "Schedules", "schedule.list"],
  ["/ui/plugins", "plugins", "Plugins", "plugin.list"],
  ["/ui/webhooks", "webhooks", "Webhooks", "webhook.deliveries"],
  ["/ui/config", "config", "Configuration", "system.config"],
];

class Shell {
  constructor() {
    this.page = null;
    connection.onChange = () => {
      this.draw();
      // Events of the time without a connection are missing.
      if (connection.lost) this.wasLost = true;
      else if (this.wasLost) this.page?.refresh?.();
    };
    session.onEnded = () => this.signIn("Your session has ended. Sign in again.");
    addEventListener("popstate", () => this.route());
    document.addEventListener("click", (event) => this.onClick(event));
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  get service() { return session.current?.service ?? "Ductile"; }

  async start() {
    const code = new URLSearchParams(location.hash.slice(1)).get("open");
    if (code) {
      history.replaceState(null, "", location.pathname);
      this.signIn("", code);
      return;
    }
    try {
      session.current = await get("/ui/session");
      this.route();
    } catch (error) {
      this.signIn(error.status === 401 ? "" : error.message);
    }
  }

  signIn(message, code) {
    this.page?.close();
    this.page = null;
    session.current = null;
    document.title = "Sign in · Ductile";
    patch(app, []);
    openSignIn(app, { message, code, done: (opened) => { session.current = opened; patch(app, []); this.route(); } });
  }

  navigate(address) {
    if (address === location.pathname + location.search) return;
    history.pushState(null, "", address);
    this.route();
    scrollTo(0, 0);
    // Screen readers go on reading at the title of the new page.
    document.getElementById("page").focus({ preventScroll: true });
  }

  replaceQuery(query) {
    const text = new URLSearchParams(query).toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  }

  route() {
    if (!session.current) return;
    this.page?.close();
    let address = location.pathname.replace(/\/+$/, "") || "/ui";
    const first = NAVIGATION.find(([, , , operation]) => may(operation));
    if (address === "/ui" && first) {
      // A token that may not see all jobs begins with its first page.
      address = first[0];
      if (address !== "/ui") history.replaceState(null, "", address);
    }
    const parts = address.split("/").slice(2).map(decodeURIComponent);
    const [create, parameters] = findPage(parts);
    this.draw();
    const container = document.createElement("div");
    document.getElementById("page").replaceChildren(container);
    this.page = new create({ container, parameters, query: Object.fromEntries(new URLSearchParams(location.search)), shell: this });
    this.page.open();
  }

  draw() {
    if (!session.current) return;
    const current = location.pathname.replace(/\/+$/, "");
    patch(app, [
      h("a", { class: "skip", href: "#page" }, "Skip to the content"),
      h("div", { class: "frame" },
        h("header", { class: "side" },
          h("a", { class: "brand", href: "/ui" }, logo(), h("span", {}, this.service)),
          h("nav", { "aria-label": "Pages" }, NAVIGATION.filter(([, , , operation]) => may(operation)).map(([href, name, text]) =>
            h("a", { href, title: text, "aria-current": isCurrent(href, current) ? "page" : undefined }, icon(name), h("span", {}, text)))),
          h("div", { class: "foot" },
            h("span", { class: "who", title: `Scopes: ${session.current.scopes.join(", ")}` }, session.current.token),
            h("button", { class: "plain", type: "button", onclick: () => this.signOut() }, "Sign out"))),
        h("div", { class: "main" },
          h("p", { class: "offline", role: "status" }, connection.lost && "The gateway does not answer. This page goes on by itself when it is back."),
          h("main", { id: "page", tabindex: "-1" }))),
      h("div", { id: "messages", class: "messages", role: "status", "aria-live": "polite" }),
    ]);
  }

  async signOut() {
    try {
      await post("/ui/session/end");
    } catch (error) {
      // Without an answer the session may still be valid, and the page must not say otherwise.
      if (error.status !== 401) return announce(`You are still signed in. ${error.message}`, { bad: true });
    }
    return this.signIn("You are signed out.");
  }

  onClick(event) {
    const anchor = event.target.closest?.("a[href^='/ui']");
    if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || anchor.target) return;
    event.preventDefault();
    this.navigate(anchor.getAttribute("href"));
  }

  onKey(event) {
    const typing = event.target.closest?.("input, textarea, select, dialog, [contenteditable]");
    if (typing || event.metaKey || event.ctrlKey || event.altKey || !session.current) return;
    if (event.key === "/") {
      event.preventDefault();
      const field = document.querySelector("[data-search]");
      if (field) field.focus();
      else this.navigate("/ui/jobs?focus=1");
    } else if (event.key === "?") showKeys();
    else if (event.key === "j" || event.key === "k") moveRow(event.key === "j" ? 1 : -1);
    else if (/^[1-9]$/.test(event.key)) document.querySelectorAll(".side nav a")[Number(event.key) - 1]?.click();
  }
}

function findPage(parts) {
  for (const [pattern, page] of ROUTES) {
    if (pattern.length !== parts.length) continue;
    const parameters = {};
    if (pattern.every((part, index) => part[0] === ":" ? (parameters[part.slice(1)] = parts[index]) : part === parts[index])) return [page, parameters];
  }
  return [ROUTES.at(-1)[1], {}];
}

function isCurrent(href, current) {
  if (href === "/ui") return current === "/ui" || current === "";
  return current === href || current.startsWith(`${href.replace(/s$/, "")}/`) || current.startsWith(`${href}/`);
}

new Shell().start();
