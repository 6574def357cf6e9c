"""The environment of a plugin is an allow-list."""

from __future__ import annotations

from ductile.runner.port import job_variables, plugin_environment

DAEMON = {
    "PATH": "/bin",
    "HOME": "/home/d",
    "LANG": "C",
    "LC_TIME": "de",
    "TZ": "UTC",
    "XDG_RUNTIME_DIR": "/run/1",
    "SSH_AUTH_SOCK": "/s",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "DUCTILE_TOKEN": "canary",
    "PYTHONPATH": "canary",
    "LD_PRELOAD": "canary",
    "HTTP_PROXY": "http://proxy",
    "PATHOLOGY": "canary",
}
JOB = job_variables(store_id="s", daemon="h:1:2", job_id="j", plugin="mail", command="poll", attempt=2)


def test_only_what_is_allowed_is_inherited() -> None:
    """No credential and no setting of the daemon reaches a plugin."""
    environment = plugin_environment(DAEMON, job=JOB)
    assert "canary" not in environment.values()
    assert set(environment) == {
        "PATH",
        "HOME",
        "LANG",
        "LC_TIME",
        "TZ",
        "XDG_RUNTIME_DIR",
        "SSH_AUTH_SOCK",
        *JOB,
    }


def test_more_is_passed_through_by_name() -> None:
    """The setting is `plugin_env_passthrough`; a name that is not set stays unset."""
    environment = plugin_environment(DAEMON, passthrough=["HTTP_PROXY", "NOT_SET"], job=JOB)
    assert environment["HTTP_PROXY"] == "http://proxy"
    assert "NOT_SET" not in environment


def test_the_plugins_own_variables_win_over_the_daemons() -> None:
    """The setting is the plugin's `env`."""
    environment = plugin_environment(DAEMON, own={"PATH": "/opt/bin", "TOKEN": "t"}, job=JOB)
    assert (environment["PATH"], environment["TOKEN"]) == ("/opt/bin", "t")


def test_the_variables_of_the_job_cannot_be_replaced() -> None:
    """Recovery finds processes by these variables."""
    environment = plugin_environment(DAEMON, own={"DUCTILE_JOB_ID": "other"}, job=JOB)
    assert environment["DUCTILE_JOB_ID"] == "j"


def test_the_job_is_described() -> None:
    """The variables identify the job; a trace id is set only if there is a trace."""
    assert JOB == {
        "DUCTILE_STORE_ID": "s",
        "DUCTILE_DAEMON": "h:1:2",
        "DUCTILE_JOB_ID": "j",
        "DUCTILE_PLUGIN": "mail",
        "DUCTILE_COMMAND": "poll",
        "DUCTILE_ATTEMPT": "2",
    }
    traced = job_variables(
        store_id="s", daemon="h:1:2", job_id="j", plugin="mail", command="poll", attempt=2, trace_id="t"
    )
    assert traced["DUCTILE_TRACE_ID"] == "t"
    variables = job_variables(
        store_id="s", daemon="h:1:2", job_id="j", plugin="mail", command="poll", attempt=2, data_dir="/d"
    )
    assert variables["DUCTILE_DATA_DIR"] == "/d"
