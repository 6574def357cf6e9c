// Times, durations and other values as people read them.

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const UNITS = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [SECOND, "s"]];

/** `3 min ago`, `in 2 h`, `just now`. */
export function relative(iso, now = Date.now()) {
  const elapsed = now - Date.parse(iso);
  const size = Math.abs(elapsed);
  if (size < 5 * SECOND) return elapsed >= 0 ? "just now" : "in a moment";
  const [unit, name] = UNITS.find(([length]) => size >= length);
  const text = `${Math.floor(size / unit)} ${name}`;
  return elapsed >= 0 ? `${text} ago` : `in ${text}`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const short = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const day = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });

export const clockTime = (iso) => clock.format(new Date(iso));
export const shortTime = (iso) => short.format(new Date(iso));
export const weekdayName = (iso) => weekday.format(new Date(iso));
export const dayName = (iso) => day.format(new Date(iso));
/** The local time in full, for a tooltip; the exact instant follows it. */
export const fullTime = (iso) => `${day.format(new Date(iso))}, ${clock.format(new Date(iso))} (${iso})`;

export const isToday = (iso) => new Date(iso).toDateString() === new Date().toDateString();
/** `14:05:09`, with the day before it if that is not today. */
export const moment = (iso) => (isToday(iso) ? "" : `${dayName(iso)} `) + clockTime(iso);

/** `850 ms`, `4.2 s`, `3 min 10 s`, `2 h 5 min`. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "";
  if (ms < 1) return ms > 0 ? "<1 ms" : "0 ms";
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${(ms / SECOND).toFixed(ms < 10 * SECOND ? 1 : 0)} s`;
  const index = UNITS.findIndex(([unit]) => ms >= unit);
  const [unit, name] = UNITS[index];
  const [smaller, smallerName] = UNITS[index + 1];
  const remainder = Math.floor((ms % unit) / smaller);
  return `${Math.floor(ms / unit)} ${name}${remainder ? ` ${remainder} ${smallerName}` : ""}`;
}

/** How long a job runs or ran; empty if it has not started. */
export function runTime(job, now = Date.now()) {
  if (!job.started_at) return "";
  const end = job.completed_at ? Date.parse(job.completed_at) : job.status === "running" ? now : null;
  return end === null ? "" : duration(Math.max(0, end - Date.parse(job.started_at)));
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString()} ${number === 1 ? noun : plural}`;
}

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  return size < 1024 * 1024 ? `${(size / 1024).toFixed(1)} KB` : `${(size / 1024 / 1024).toFixed(1)} MB`;
}

/** The end of an id: ids of jobs of one moment have the same beginning. */
export const shortId = (id) => (id ? `…${id.slice(-6)}` : "");

/** `plugin_error` -> `plugin error`. */
export const words = (token) => (token ?? "").replaceAll("_", " ");

/** What a job does: `greeter handle`, or `pipeline order`. */
export const jobName = (job) => `${job.plugin} ${job.command}`;

export const json = (value) => JSON.stringify(value, null, 2);

/** A word of a shell, in quotes where it needs them. */
export const quoted = (text) => (/^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
