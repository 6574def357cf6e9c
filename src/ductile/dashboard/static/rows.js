// A list of any length: pages are fetched when needed, and only rows near the view are in the document.

import { h } from "./dom.js";

const ROW = 46;
const NARROW_ROW = 66;
/** Rows above and below the view that are in the document too. */
const MARGIN = 20;

export class RowWindow {
  /** `fetch(cursor)` returns {items, next, key}; `row(item)` draws one, in a fixed height. */
  constructor({ page, fetch, row }) {
    Object.assign(this, { page, fetch, row, items: [], next: null, unloaded: true, error: null, from: 0, generation: 0 });
    const onScroll = () => this.scrolled();
    addEventListener("scroll", onScroll, { passive: true });
    addEventListener("resize", onScroll, { passive: true });
    page.endings.push(() => { removeEventListener("scroll", onScroll); removeEventListener("resize", onScroll); });
  }

  get height() { return matchMedia("(max-width: 760px)").matches ? NARROW_ROW : ROW; }

  /** Load the list anew after the filters have changed. Rows stay until the new ones are there. */
  async restart() {
    const generation = ++this.generation;
    this.busy = false;
    await this.take(async () => {
      const fetched = await this.fetch(undefined);
      if (generation !== this.generation) return;
      Object.assign(this, { items: fetched.items, next: fetched.next, key: fetched.key, unloaded: false, error: null, from: 0 });
    }, generation);
  }

  /** Load the newest page again and put it before the other rows. */
  async refresh() {
    if (this.busy || this.unloaded) return;
    const generation = this.generation;
    await this.take(async () => {
      const fetched = await this.fetch(undefined);
      if (generation !== this.generation) return;
      const fresh = new Set(fetched.items.map((item) => item[fetched.key]));
      const older = this.items.filter((item) => !fresh.has(item[fetched.key]));
      // Without an overlap there may be rows between them, so only the new ones are kept.
      if (this.items.length && older.length === this.items.length && fetched.next) Object.assign(this, { items: fetched.items, next: fetched.next });
      else this.items = [...fetched.items, ...older];
    }, generation);
  }

  /** Load the next page. */
  async more() {
    if (this.busy || !this.next) return;
    const generation = this.generation;
    await this.take(async () => {
      const fetched = await this.fetch(this.next);
      if (generation !== this.generation) return;
      const known = new Set(this.items.map((item) => item[fetched.key]));
      this.items = [...this.items, ...fetched.items.filter((item) => !known.has(item[fetched.key]))];
      this.next = fetched.next;
    }, generation);
  }

  /** Wait for `work`, and show its error unless the list was restarted meanwhile. */
  async take(work, generation) {
    this.busy = true;
    try {
      await work();
    } catch (error) {
      if (generation === this.generation) Object.assign(this, { error, unloaded: false });
    }
    if (generation === this.generation) this.busy = false;
    this.page.render();
  }

  scrolled() {
    const list = this.page.container.querySelector(".rows");
    if (!list) return;
    const from = Math.max(0, Math.floor(-list.getBoundingClientRect().top / this.height) - MARGIN);
    if (Math.abs(from - this.from) >= MARGIN / 2 || from === 0 !== (this.from === 0)) {
      this.from = from;
      this.page.render();
    }
    if (from + this.shown >= this.items.length - MARGIN) this.more();
  }

  get shown() { return Math.ceil(innerHeight / this.height) + 2 * MARGIN; }

  view() {
    const visible = this.items.slice(this.from, this.from + this.shown);
    return [
      h("ul", { class: "rows", vars: { "--count": this.items.length, "--from": this.from, "--row": `${this.height}px` } }, visible.map((item) => this.row(item))),
      this.next ? h("p", { class: "rows-end soft" }, this.busy ? "Loading more…" : `${this.items.length.toLocaleString()} shown, scroll for more`) : h("p", { class: "rows-end soft" }, `${this.items.length.toLocaleString()} in all`),
    ];
  }
}
