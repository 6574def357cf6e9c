// Texts of the gateway: commands in them are marked, ids of jobs become links, and times are local.

import { h } from "./dom.js";
import { quoted } from "./format.js";
import { idLink, instant } from "./parts.js";

const COMMAND = /(`[^`]+`|\bchmod \d+ \S+|\bductile (?:[a-z]+(?: [a-z]+)?)(?: (?:--?[\w-]+|[\w./:@-]*[\w/@-]))*)/;
const ID_OR_TIME = /([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

export function commandText(text) {
  return text.split(COMMAND).map((part, index) => (index % 2 ? h("code", {}, part.replaceAll("`", "")) : plainText(part)));
}

function plainText(text) {
  return text.split(ID_OR_TIME).map((part, index) => (index % 2 === 0 ? part : part.includes("T") ? instant(part) : idLink(part)));
}

/** A call of the API as a curl command, with a variable for the token, which the page does not know. */
export function curl(method, address, body) {
  const parts = ["curl"];
  if (method !== "GET") parts.push("-X", method);
  parts.push("-H", '"Authorization: Bearer $DUCTILE_TOKEN"');
  if (body) parts.push("-d", quoted(JSON.stringify(body)));
  return [...parts, quoted(location.origin + address)].join(" ");
}
