// A form made from the JSON Schema of a command's input. What the schema does not say is entered as JSON.

import { h } from "./dom.js";

const SIMPLE = new Set(["string", "integer", "number", "boolean"]);

/** The fields of a form; null if the schema describes no object with properties. */
export function fields(schema) {
  const properties = Object.entries(schema?.properties ?? {});
  if (!properties.length) return null;
  const required = new Set(schema.required ?? []);
  return properties.map(([name, own]) => ({ name, own: own ?? {}, type: typeOf(own), required: required.has(name) }));
}

function typeOf(schema) {
  const type = Array.isArray(schema?.type) ? schema.type.find((each) => each !== "null") : schema?.type;
  if (Array.isArray(schema?.enum)) return "enum";
  return SIMPLE.has(type) ? type : "json";
}

export function fieldViews(found) {
  return found.map(({ name, own, type, required }) => {
    const id = `field-${name}`;
    return h("div", { class: "field", key: name },
      h("label", { for: id }, own.title ?? name, required && h("span", { class: "soft" }, " (required)")),
      control(id, name, own, type, required),
      own.description && h("p", { class: "soft small", id: `${id}-about` }, own.description));
  });
}

function control(id, name, own, type, required) {
  const common = { id, name, required, "aria-describedby": own.description && `${id}-about` };
  if (type === "enum") return h("select", common, !required && h("option", { value: "" }, ""), own.enum.map((each, index) => h("option", { key: index, value: JSON.stringify(each), selected: each === own.default }, String(each))));
  if (type === "boolean") return h("select", common, h("option", { value: "" }, required ? "choose" : ""), h("option", { value: "true", selected: own.default === true }, "true"), h("option", { value: "false", selected: own.default === false }, "false"));
  if (type === "integer" || type === "number") return h("input", { ...common, type: "number", min: own.minimum, max: own.maximum, step: type === "integer" ? 1 : "any", value: own.default ?? "" });
  if (type === "json") return h("textarea", { ...common, spellcheck: "false", placeholder: "JSON" }, own.default === undefined ? "" : JSON.stringify(own.default));
  return h("input", { ...common, type: own.format === "password" || own.writeOnly ? "password" : "text", maxlength: own.maxLength, pattern: undefined, value: own.default ?? "" });
}

/** The payload that was entered; empty fields are left out. Throws an Error that names a field with bad JSON. */
export function readFields(found, data) {
  const payload = {};
  for (const { name, type, own } of found) {
    const text = data.get(name) ?? "";
    if (text === "") continue;
    payload[name] = type === "integer" || type === "number" ? Number(text)
      : type === "string" ? text
      : parse(text, own.title ?? name);
  }
  return payload;
}

export function parse(text, name) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name} is not valid JSON`);
  }
}
