// A form made from the JSON Schema of a command's input. Other than simple values are entered as JSON.

import { h } from "./dom.js";

const SIMPLE = new Set(["string", "integer", "number", "boolean"]);

/** The fields of a form; null if the schema describes no object with properties. */
export function fields(schema) {
  const properties = Object.entries(schema?.properties ?? {});
  if (!properties.length) return null;
  const required = new Set(schema.required ?? []);
  return properties.map(([name, schema]) => ({ name, schema: schema ?? {}, type: typeOf(schema), required: required.has(name) }));
}

function typeOf(schema) {
  const type = Array.isArray(schema?.type) ? schema.type.find((name) => name !== "null") : schema?.type;
  if (Array.isArray(schema?.enum)) return "enum";
  return SIMPLE.has(type) ? type : "json";
}

export function fieldViews(described) {
  return described.map(({ name, schema, type, required }) => {
    const id = `field-${name}`;
    return h("div", { class: "field", key: name },
      h("label", { for: id }, schema.title ?? name, required && h("span", { class: "soft" }, " (required)")),
      control(id, name, schema, type, required),
      schema.description && h("p", { class: "soft small", id: `${id}-about` }, schema.description));
  });
}

function control(id, name, schema, type, required) {
  const common = { id, name, required, "aria-describedby": schema.description && `${id}-about` };
  if (type === "enum") return h("select", common, !required && h("option", { value: "" }, ""), schema.enum.map((choice, index) => h("option", { key: index, value: JSON.stringify(choice), selected: choice === schema.default }, String(choice))));
  if (type === "boolean") return h("select", common, h("option", { value: "" }, required ? "choose" : ""), h("option", { value: "true", selected: schema.default === true }, "true"), h("option", { value: "false", selected: schema.default === false }, "false"));
  if (type === "integer" || type === "number") return h("input", { ...common, type: "number", min: schema.minimum, max: schema.maximum, step: type === "integer" ? 1 : "any", value: schema.default ?? "" });
  if (type === "json") return h("textarea", { ...common, spellcheck: "false", placeholder: "JSON" }, schema.default === undefined ? "" : JSON.stringify(schema.default));
  return h("input", { ...common, type: schema.format === "password" || schema.writeOnly ? "password" : "text", maxlength: schema.maxLength, value: schema.default ?? "" });
}

/** The payload that was entered; empty fields are left out. Throws an Error that names a field with bad JSON. */
export function readFields(described, data) {
  const payload = {};
  for (const { name, type, schema } of described) {
    const text = data.get(name) ?? "";
    if (text === "") continue;
    payload[name] = type === "integer" || type === "number" ? Number(text)
      : type === "string" ? text
      : parse(text, schema.title ?? name);
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
