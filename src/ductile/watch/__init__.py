"""The terminal screen of `ductile system watch`: jobs, runs, schedules, plugins and events, with actions."""
