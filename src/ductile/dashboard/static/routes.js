// The pages by address; `:name` is a parameter.

import { ConfigPage } from "./pages/config.js";
import { FiguresPage } from "./pages/figures.js";
import { JobPage } from "./pages/job.js";
import { JobsPage } from "./pages/jobs.js";
import { MissingPage } from "./pages/missing.js";
import { NowPage } from "./pages/now.js";
import { PluginPage, PluginsPage } from "./pages/plugins.js";
import { SchedulePage, SchedulesPage } from "./pages/schedules.js";
import { WebhooksPage } from "./pages/webhooks.js";

export const ROUTES = [
  [[], NowPage],
  [["jobs"], JobsPage],
  [["job", ":id"], JobPage],
  [["figures"], FiguresPage],
  [["schedules"], SchedulesPage],
  [["schedule", ":plugin", ":id"], SchedulePage],
  [["plugins"], PluginsPage],
  [["plugin", ":name"], PluginPage],
  [["webhooks"], WebhooksPage],
  [["config"], ConfigPage],
  [["*"], MissingPage],
];
