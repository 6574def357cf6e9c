"""The rows of the table for those who write plugins, and for what is kept of a plugin."""

from __future__ import annotations

from ductile.cli.spec import DRY_RUN, Action, Argument, Example, Option

_NAME = Argument("NAME", "name of the plugin, as it is configured")
DRAIN = Option(("--drain",), "let plugins that are removed or disabled finish their accepted work first")
DRAIN_TIMEOUT = Option(
    ("--timeout",), "give up a drain that takes longer (default 1h), and change nothing", "DURATION"
)
_REVEAL = Option(("--reveal",), "show all of it, secrets too")

PLUGIN_AUTHORING = (
    Action(
        "test",
        "check that a plugin keeps the protocol, by running it",
        "authoring:test",
        arguments=(Argument("NAME|DIR", "a plugin by name, or the directory of one"),),
        options=(
            Option(("--command",), "run only this command", "NAME"),
            Option(("--payload",), "what commands are given, instead of a sample: JSON, @FILE or -", "JSON"),
            Option(
                ("--settings",),
                "the plugin's `config`, instead of what is configured: JSON, @FILE or -",
                "JSON",
            ),
            Option(("--timeout",), "how long each run may take, such as 5s", "DURATION"),
        ),
        about="Runs every command twice, with a payload that is made from its schema, and sends a few "
        "requests that are odd on purpose. The plugin really runs, side effects and all. Nothing is stored. "
        "A plugin by name gets its configuration, one in a directory an empty one. Exit status 1 if "
        "a check failed.",
        examples=(
            Example("ductile plugin test ./greet", "one that is being written, in its directory"),
            Example(
                'ductile plugin test ./greet --command handle --payload \'{"name": "Ada"}\'',
                "one command, with this payload",
            ),
        ),
    ),
    Action(
        "new",
        "write a new plugin from a template",
        "authoring:new",
        arguments=(Argument("NAME", "name of the new plugin, and of its directory"),),
        options=(
            Option(("--lang",), "python (default), sh, node, go or rust", "LANGUAGE"),
            Option(("--dir",), "where to put its directory (default: here)", "DIR"),
            DRY_RUN,
        ),
        about="With a manifest and three commands that answer. Overwrites nothing.",
        examples=(
            Example(
                "ductile plugin new greet --lang sh --dir plugins", "in plugins/greet, as a shell script"
            ),
        ),
    ),
    Action(
        "disable",
        "disable a plugin: edit the configuration, seal it and reload",
        "plugin_switch:disable",
        arguments=(_NAME,),
        options=(
            Option(("--drain",), "let it finish its accepted work first; needs the daemon"),
            DRAIN_TIMEOUT,
            DRY_RUN,
        ),
        about="Sets plugins.NAME.enabled to false as `config set --lock` does, then reloads the daemon if "
        "one runs. Its queued jobs end as dead (plugin_removed). With --drain the plugin first takes no new "
        "jobs and is not scheduled; its accepted jobs, and the pipeline runs that use it, run to their end. "
        "Nothing is written before that: Ctrl-C, a timeout or a crash leaves the plugin enabled.",
        examples=(
            Example("ductile plugin disable echo --dry-run", "which of its jobs would end?"),
            Example("ductile plugin disable echo --drain --timeout 10m", "run them first"),
        ),
    ),
    Action(
        "enable",
        "enable a plugin: edit the configuration, seal it and reload",
        "plugin_switch:enable",
        arguments=(_NAME,),
        options=(DRY_RUN,),
        about="Sets plugins.NAME.enabled to true as `config set --lock` does, then reloads the daemon if one "
        "runs. An installed plugin that the configuration does not name yet is added to it.",
    ),
    Action(
        "lock",
        "renew the seal of plugins: authorise them as they are now",
        "plugin_records:lock",
        arguments=(Argument("NAME", "only this plugin", required=False),),
        options=(DRY_RUN,),
        about="What the seal says of files stays as it is; `config lock` renews all of it.",
    ),
    Action(
        "state",
        "show what a plugin keeps from run to run",
        "plugin_records:state",
        arguments=(_NAME,),
        options=(_REVEAL,),
        about="Values under keys that look secret are masked.",
    ),
    Action(
        "facts",
        "show the facts that a plugin has recorded, newest first",
        "plugin_records:facts",
        arguments=(_NAME,),
        options=(
            _REVEAL,
            Option(("-n", "--limit"), "at most this many, from 1 to 200 (default 50)", "NUMBER"),
            Option(("--cursor",), "continue after the previous page: its `next_cursor`", "TEXT"),
        ),
    ),
)
