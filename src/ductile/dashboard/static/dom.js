// Views are trees of plain objects; `patch` makes the document equal to them and changes nothing else,
// so that focus, selection and scroll positions stay when new data arrives.

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "checked", "disabled", "open", "indeterminate", "selected"]);

/** An element: `h("a", {href, key, onclick}, "text", child, [more])`. Falsy children are left out. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, key: props?.key, children: flat(children) };
}

function flat(children, views = []) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, views);
    else if (child === 0 || child) views.push(typeof child === "object" ? child : String(child));
  }
  return views;
}

/** Make the children of an element equal to these views. */
export function patch(parent, views) {
  const newViews = flat([views]);
  const old = parent.$views ?? [];
  const keyed = new Map();
  const loose = [];
  for (const entry of old) {
    if (entry.view.key !== undefined) keyed.set(entry.view.key, entry);
    else loose.push(entry);
  }
  const entries = newViews.map((view) => {
    const before = view.key !== undefined ? keyed.get(view.key) : takeLike(loose, view);
    if (before && isAlike(before.view, view)) {
      if (view.key !== undefined) keyed.delete(view.key);
      update(before.node, before.view, view);
      return { view, node: before.node };
    }
    return { view, node: create(view, parent) };
  });
  for (const entry of [...keyed.values(), ...loose]) entry.node.remove();
  let following = parent.firstChild;
  for (const { node } of entries) {
    if (node === following) following = following.nextSibling;
    else parent.insertBefore(node, following);
  }
  parent.$views = entries;
}

/** Take the first entry that can become the view. */
function takeLike(loose, view) {
  const index = loose.findIndex((entry) => isAlike(entry.view, view));
  return index < 0 ? undefined : loose.splice(index, 1)[0];
}

function isAlike(before, after) {
  return (typeof before === "string" && typeof after === "string") || (before.tag !== undefined && before.tag === after.tag);
}

function create(view, parent) {
  if (typeof view === "string") return document.createTextNode(view);
  const inSvg = view.tag === "svg" || (parent.namespaceURI === SVG && parent.tagName !== "foreignObject");
  const node = inSvg ? document.createElementNS(SVG, view.tag) : document.createElement(view.tag);
  patch(node, view.children);
  setProps(node, {}, view.props);
  if (view.props.oncreate) queueMicrotask(() => view.props.oncreate(node));
  return node;
}

function update(node, before, view) {
  if (typeof view === "string") {
    if (node.data !== view) node.data = view;
    return;
  }
  patch(node, view.children);
  setProps(node, before.props, view.props);
}

function setProps(node, before, after) {
  for (const name of Object.keys(before)) if (!(name in after)) setProp(node, name, undefined, before[name]);
  for (const [name, value] of Object.entries(after)) {
    if (value !== before[name] || AS_PROPERTY.has(name)) setProp(node, name, value, before[name]);
  }
}

function setProp(node, name, value, before) {
  if (name === "key" || name === "oncreate") return;
  if (name.startsWith("on")) node[name] = value ?? null;
  else if (name === "vars") setVariables(node, value ?? {}, before ?? {});
  else if (AS_PROPERTY.has(name)) {
    // A value is set again only if the page itself changed it: typed text stays.
    const same = name === "value" && before !== undefined && value === before;
    if (!same && node[name] !== value) node[name] = value ?? "";
  } else if (value === undefined || value === null || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}

/** Custom properties for the stylesheet. Style attributes are forbidden by the content security policy. */
function setVariables(node, value, before) {
  for (const name of Object.keys(before)) if (!(name in value)) node.style.removeProperty(name);
  for (const [name, text] of Object.entries(value)) node.style.setProperty(name, String(text));
}
