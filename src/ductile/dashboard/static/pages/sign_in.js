// Signing in with an access token, or with the code of a link that `ductile ui open` has made.

import { post } from "../api.js";
import { h, patch } from "../dom.js";
import { errorBox, logo } from "../parts.js";

export function openSignIn(container, { message, code, done }) {
  let error = null;
  let busy = false;

  const enter = async (body) => {
    busy = true;
    error = null;
    draw();
    try {
      done(await post("/ui/session", body));
    } catch (problem) {
      error = problem;
      busy = false;
      draw();
      container.querySelector("input")?.focus();
    }
  };

  const submit = (event) => {
    event.preventDefault();
    enter({ token: new FormData(event.target).get("token") });
  };

  const draw = () => patch(container, h("main", { class: "sign-in" },
    h("form", { onsubmit: submit },
      logo(),
      h("h1", {}, "Sign in to Ductile"),
      message && h("p", { class: "soft", role: "status" }, message),
      error && errorBox(error),
      h("input", { name: "username", autocomplete: "username", value: "ductile", hidden: true, readonly: true, tabindex: "-1", "aria-hidden": "true" }),
      h("label", { for: "token" }, "Access token"),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false", oncreate: (input) => input.focus() }),
      h("button", { class: "button primary wide", type: "submit", disabled: busy }, busy ? "Signing in…" : "Sign in"),
      h("p", { class: "soft small" }, "On the machine itself, ", h("code", {}, "ductile ui open"), " signs you in without a token."))));

  draw();
  if (code) enter({ code });
}
