// Questions before a change, and messages after it.

import { path, post } from "./api.js";
import { h, patch } from "./dom.js";
import { jobName } from "./format.js";
import { errorBox } from "./parts.js";

/** Ask before `act` is called, and announce the message it returns. The dialog stays open, with the error, if it fails. */
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
      const message = await act();
      close();
      if (message) announce(message);
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

/** Ask, then cancel a job. `done` is called when it is cancelled. */
export function confirmCancel(job, done) {
  confirm({
    title: `Cancel ${jobName(job)}?`, text: "A running process is killed. The job ends as dead and can be retried.",
    action: "Cancel the job", danger: true,
    act: async () => { await post(path`/job/${job.job_id}/cancel`); done(); return "The job was cancelled."; },
  });
}

/** Show a message for a few seconds. Screen readers read it aloud. */
export function announce(text, { bad = false } = {}) {
  const container = document.getElementById("messages");
  if (!container) return;
  const line = document.createElement("p");
  line.textContent = text;
  line.className = bad ? "message bad" : "message";
  container.replaceChildren(line);
  setTimeout(() => line.remove(), 6000);
}

/** Call `action`, then announce `message`, which may be a function of the result; or announce the error. */
export async function attempt(action, message) {
  try {
    const result = await action();
    announce(typeof message === "function" ? message(result) : message);
    return result;
  } catch (error) {
    announce(error.hint ? `${error.message}. ${error.hint}` : error.message, { bad: true });
    return undefined;
  }
}
