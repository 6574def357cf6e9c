"""The systemd unit of a configuration: what restarts and watches it, and what it may not do."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from string import Template

from ductile.admin.config import state_file
from ductile.config.snapshot import Snapshot

#: Beyond the grace for running jobs: the time to end what did not finish, and to write it down.
_MARGIN = timedelta(seconds=15)
_VAR_LIB = Path("/var/lib")
#: The version of systemd that a key came with, of those that are younger than any systemd in use.
_SINCE = {
    "ProtectHostname": 242,
    "RestrictSUIDSGID": 242,
    "ProtectKernelLogs": 244,
    "ProtectClock": 245,
    "RestartSteps": 254,
    "RestartMaxDelaySec": 254,
}
#: What is assumed where it is not known: older than any that is still looked after.
_UNKNOWN = 245
#: Without a growing delay each restart waits this long.
_STEADY = "10"

_UNIT = Template(
    """\
# Before the first start, once, as root:
#   useradd --system --home-dir $state --shell /usr/sbin/nologin $user
#   install --directory --owner $user --group $user --mode 0700 $state
#   chown --recursive $user: $config
# From then on only $user can read the configuration and reach the daemon:
#   sudo -u $user $command status --config $config

[Unit]
Description=Ductile: $name
After=network.target
# Restarts never give up: the store is whole after every crash, and the next start goes on from it.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart=$command system start --config $config
ExecReload=/bin/kill -HUP $$MAINPID
User=$user
Group=$user
UMask=0077
WorkingDirectory=$state
$made
Restart=on-failure
RestartSec=$pause
RestartSteps=8
RestartMaxDelaySec=5min
# A configuration that cannot be used does not get better by trying again.
RestartPreventExitStatus=78
WatchdogSec=60
TimeoutStartSec=5min
TimeoutStopSec=$stop
# The daemon is told to stop, and ends its plugins itself; what is left after that is killed.
KillMode=mixed
# A dump of the daemon's memory would hold every secret of the configuration.
LimitCORE=0

# Plugins run with these limits too. Take away what yours need.
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=$home
ReadWritePaths=$state
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LockPersonality=yes
SystemCallArchitectures=native
CapabilityBoundingSet=

[Install]
WantedBy=multi-user.target
"""
)


def systemd_unit(
    snapshot: Snapshot, config: Path, command: Path, user: str, *, version: int | None = None
) -> str:
    """The text of the unit, with the keys that this version of systemd knows.

    Paths with a space in them are quoted as systemd wants it.
    """
    known = _UNKNOWN if version is None else version
    state = state_file(snapshot).parent.absolute()
    stop = snapshot.service.shutdown_grace + _MARGIN
    places = (state, config.absolute(), command)
    in_home = any(str(place).startswith(("/home/", "/root/")) for place in places)
    text = _UNIT.substitute(
        name=snapshot.service.name,
        command=_quoted(command),
        config=_quoted(config.absolute()),
        state=_quoted(state),
        user=user,
        made=_made_by_systemd(state),
        stop=f"{round(stop.total_seconds())}",
        home="read-only" if in_home else "yes",
        pause="1" if known >= _SINCE["RestartSteps"] else _STEADY,
    )
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if _SINCE.get(line.partition("=")[0], 0) <= known)


def _made_by_systemd(state: Path) -> str:
    """A directory right below /var/lib is one that systemd makes, and gives to the user of the service."""
    if state.parent != _VAR_LIB or " " in state.name:
        return ""
    return f"StateDirectory={state.name.replace('%', '%%')}\nStateDirectoryMode=0700\n"


def _quoted(path: Path) -> str:
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if " " in text else text
