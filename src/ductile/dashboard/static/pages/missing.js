// The page for unknown addresses.

import { h } from "../dom.js";
import { Page } from "../page.js";
import { empty, link } from "../parts.js";

export class MissingPage extends Page {
  get title() { return "Not found"; }

  view() {
    return [h("h1", {}, "Not found"), empty("There is no page at this address.", link("/ui", "See what runs now"))];
  }
}
