// The JSON API, called with the cookie of the session.

class ApiError extends Error {
  constructor(status, body) {
    super(body?.error?.message ?? body?.message ?? `the gateway answered ${status}`);
    this.status = status;
    this.code = body?.error?.code ?? "";
    this.hint = body?.error?.hint ?? "";
    this.details = body?.error?.details ?? {};
  }
}

/** `lost` while the gateway does not answer; `onChange` is called when that changes. */
export const connection = {
  lost: false,
  onChange: () => {},
  set(lost) {
    if (this.lost === lost) return;
    this.lost = lost;
    this.onChange();
  },
};

export const session = { current: null, onEnded: () => {} };

/** Whether the session's token may call an operation, such as `job.cancel`. */
export const may = (operation) => session.current?.operations.includes(operation) ?? false;
export const mayRun = (plugin, command) => session.current?.commands[plugin]?.includes(command) ?? false;
export const maySee = (plugin) => session.current?.plugins.includes(plugin) ?? false;

/** A path with encoded values: path`/job/${id}`. */
export function path(texts, ...values) {
  return texts.reduce((whole, text, index) => whole + encodeURIComponent(values[index - 1]) + text);
}

/** An address with the values of a query that are not empty. */
export function withQuery(address, query) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value || value === 0)).toString();
  return text ? `${address}?${text}` : address;
}

export async function get(address, query = {}, options = {}) {
  return send("GET", withQuery(address, query), undefined, options);
}

export async function post(address, body = {}, options = {}) {
  return send("POST", address, body, options);
}

async function send(method, address, body, { signal } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && session.current) headers["X-CSRF-Token"] = session.current.csrf;
  let response;
  try {
    response = await fetch(address, { method, headers, body: body && JSON.stringify(body), signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    connection.set(true);
    throw new ApiError(0, { message: "The gateway does not answer." });
  }
  connection.set(false);
  const document = await response.json().catch(() => ({}));
  if (signal?.aborted) throw signal.reason; // The document may be incomplete.
  if (response.ok) return document;
  const error = new ApiError(response.status, document);
  if (response.status === 401 && session.current && address !== "/ui/session") session.onEnded(error);
  throw error;
}
