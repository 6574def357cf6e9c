// The keyboard shortcuts, shown with the question mark.

import { h, patch } from "./dom.js";

const KEYS = [["1 … 7", "open a page"], ["/", "search jobs"], ["j  k", "next and previous row of a list"], ["Enter", "open the row"], ["?", "this help"], ["Esc", "close a dialog"]];

export function showKeys() {
  const host = document.createElement("dialog");
  host.className = "dialog";
  host.onclose = () => host.remove();
  document.body.append(host);
  patch(host, h("form", { method: "dialog" },
    h("h2", {}, "Keys"),
    h("dl", { class: "facts" }, KEYS.map(([keys, text]) => h("div", {}, h("dt", {}, h("kbd", {}, keys)), h("dd", {}, text)))),
    h("div", { class: "row end" }, h("button", { class: "button primary" }, "Close"))));
  host.showModal();
}

/** Focus the next or previous row of the list. */
export function moveRow(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  rows[Math.max(0, Math.min(rows.length - 1, at + step))]?.focus();
}
