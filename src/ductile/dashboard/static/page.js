// The base of all pages: loads data, draws a view of it, and ends everything when the page is left.

import { get } from "./api.js";
import { patch } from "./dom.js";
import { follow } from "./live.js";
import { errorBox } from "./parts.js";

/** Times such as `3 min ago` are drawn again this often. */
const TICK_MS = 1000;
/** Changes within this time lead to one request. */
const SETTLE_MS = 250;

export class Page {
  /** `parameters` are those of the path, `query` those after the question mark. */
  constructor({ container, parameters = {}, query = {}, shell }) {
    Object.assign(this, { container, parameters, query, shell });
    this.data = {};
    this.errors = {};
    this.stopped = false;
    this.endings = [];
    this.loading = new Map();
  }

  get title() { return "Ductile"; }

  /** Load the data of the page, and begin to follow its changes. */
  start() {}

  /** Return the view of the present data. */
  view() { return []; }

  open() {
    this.render();
    this.start();
    this.every(TICK_MS, () => this.render());
  }

  close() {
    this.stopped = true;
    for (const end of this.endings) end();
    for (const controller of this.loading.values()) controller.abort();
  }

  render() {
    if (this.stopped || this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      if (this.stopped) return;
      document.title = `${this.title} · ${this.shell.service}`;
      patch(this.container, this.view());
    });
  }

  /** Fetch into `data[name]`. A newer request for the same name replaces an older one. */
  async load(name, address, query = {}) {
    this.loading.get(name)?.abort();
    const controller = new AbortController();
    this.loading.set(name, controller);
    try {
      this.data[name] = await get(address, query, { signal: controller.signal });
      delete this.errors[name];
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      this.errors[name] = error;
    } finally {
      if (this.loading.get(name) === controller) this.loading.delete(name);
    }
    this.render();
    return this.data[name];
  }

  every(ms, action) {
    const timer = setInterval(() => document.hidden || action(), ms);
    this.endings.push(() => clearInterval(timer));
  }

  /** Call `refresh` soon after a change, once for several changes. */
  follow(refresh, { jobId, output, when = () => true, settle = SETTLE_MS } = {}) {
    let timer = null;
    const changed = (event) => {
      if (timer || !when(event)) return;
      timer = setTimeout(() => {
        timer = null;
        if (!this.stopped) refresh();
      }, settle);
    };
    const end = follow({ jobId, changed, output });
    this.endings.push(() => { end(); clearTimeout(timer); });
    return end;
  }

  /** The errors of loading, for the top of the page; the frame shows a lost connection. */
  problems(...names) {
    return names.filter((name) => this.errors[name]?.status).map((name) => errorBox(this.errors[name]));
  }

  setQuery(changes) {
    const query = { ...this.query, ...changes };
    this.query = Object.fromEntries(Object.entries(query).filter(([, value]) => value));
    this.shell.replaceQuery(this.query);
  }
}
