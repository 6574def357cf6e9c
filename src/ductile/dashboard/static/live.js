// Follows changes by server-sent events, or by polling if the token may not follow events.
// Hidden pages do not follow: browsers allow few connections to one host, and each tab needs one.

import { connection, session, withQuery } from "./api.js";

const POLL_MS = 4000;

/** Call `changed(event)` for each event and whenever the page becomes visible again. Returns a function that ends it. */
export function follow({ jobId, changed, output }) {
  let source = null;
  let timer = null;
  let lastId = null;

  const onEvent = (event) => {
    if (event.lastEventId) lastId = event.lastEventId;
    changed(event.data ? JSON.parse(event.data) : {});
  };

  const start = () => {
    if (source || timer) return;
    if (!session.current.events) {
      timer = setInterval(() => changed({}), POLL_MS);
      return;
    }
    source = new EventSource(withQuery("/events", { job_id: jobId, after: lastId }));
    for (const kind of session.current.kinds) source.addEventListener(kind, onEvent);
    source.addEventListener("gap", onEvent);
    if (output) source.addEventListener("job.output", (event) => output(JSON.parse(event.data)));
    source.onopen = () => connection.set(false);
    source.onerror = () => {
      connection.set(true);
      // A refusal closes the source. If the session is over, the next request shows that.
      if (source?.readyState === EventSource.CLOSED) {
        stop();
        changed({});
        setTimeout(() => document.hidden || ended || start(), POLL_MS);
      }
    };
  };

  const stop = () => {
    source?.close();
    clearInterval(timer);
    source = timer = null;
  };

  let ended = false;
  const onVisibility = () => {
    if (document.hidden) stop();
    else {
      changed({});
      start();
    }
  };
  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) start();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", onVisibility);
    stop();
  };
}
