"""A plugin's environment is an allow-list."""

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
    """No credential of the daemon, and none of its own settings, reaches a plugin."""
    made = plugin_environment(DAEMON, job=JOB)
    assert "canary" not in made.values()
    assert set(made) == {"PATH", "HOME", "LANG", "LC_TIME", "TZ", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", *JOB}


def test_more_is_passed_through_by_name() -> None:
    """`plugin_env_passthrough`; a name that is not set stays unset."""
    made = plugin_environment(DAEMON, passthrough=["HTTP_PROXY", "NOT_SET"], job=JOB)
    assert made["HTTP_PROXY"] == "http://proxy"
    assert "NOT_SET" not in made


def test_the_plugins_own_variables_win_over_the_daemons() -> None:
    """The plugin's `env`."""
    made = plugin_environment(DAEMON, own={"PATH": "/opt/bin", "TOKEN": "t"}, job=JOB)
    assert (made["PATH"], made["TOKEN"]) == ("/opt/bin", "t")


def test_the_variables_of_the_job_cannot_be_replaced() -> None:
    """Recovery finds processes by these variables."""
    made = plugin_environment(DAEMON, own={"DUCTILE_JOB_ID": "other"}, job=JOB)
    assert made["DUCTILE_JOB_ID"] == "j"


def test_the_job_is_described() -> None:
    """Which job it is; a trace only where there is one."""
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
    kept = job_variables(
        store_id="s", daemon="h:1:2", job_id="j", plugin="mail", command="poll", attempt=2, data_dir="/d"
    )
    assert kept["DUCTILE_DATA_DIR"] == "/d"
