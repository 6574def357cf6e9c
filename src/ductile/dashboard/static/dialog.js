// Questions before something is changed, and a line that says what was done.

import { h, patch } from "./dom.js";
import { errorBox } from "./parts.js";

/** Ask before `act` is called. The dialog stays open, with the error, if it fails. */
export function confirm({ title, text, action, act, danger = false }) {
  const host = document.createElement("dialog");
  host.className = "dialog";
  document.body.append(host);
  let error = null;
  let busy = false;
  const close = () => host.close();
  host.onclose = () => host.remove();

  const submit = async (event) => {
    event.preventDefault();
    busy = true;
    draw();
    try {
      const said = await act();
      close();
      if (said) announce(said);
    } catch (problem) {
      error = problem;
      busy = false;
      draw();
    }
  };

  const draw = () => patch(host, h("form", { onsubmit: submit, "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, title),
    typeof text === "string" ? h("p", {}, text) : text,
    error && errorBox(error),
    h("div", { class: "row end" },
      h("button", { type: "button", class: "button", onclick: close }, "Keep as it is"),
      h("button", { type: "submit", class: `button ${danger ? "danger" : "primary"}`, disabled: busy }, action))));
  draw();
  host.showModal();
}

/** Say what was done, to eyes and to screen readers. */
export function announce(text, { bad = false } = {}) {
  const place = document.getElementById("messages");
  if (!place) return;
  const line = document.createElement("p");
  line.textContent = text;
  line.className = bad ? "message bad" : "message";
  place.replaceChildren(line);
  setTimeout(() => line.remove(), 6000);
}

/** Do something at once, and say what became of it. */
export async function attempt(action, said) {
  try {
    const result = await action();
    announce(typeof said === "function" ? said(result) : said);
    return result;
  } catch (error) {
    announce(error.hint ? `${error.message}. ${error.hint}` : error.message, { bad: true });
    return undefined;
  }
}
