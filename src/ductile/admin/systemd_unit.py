"""The systemd unit of a configuration: restarts, watchdog and restrictions."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from string import Template

from ductile.config.snapshot import Snapshot

#: Added to the grace period of running jobs: time to end those that did not finish, and to store their ends.
_STOP_MARGIN = timedelta(seconds=15)
_VAR_LIB = Path("/var/lib")
#: The systemd version that introduced a key, for keys that versions in use may lack.
_SINCE = {
    "ProtectHostname": 242,
    "RestrictSUIDSGID": 242,
    "ProtectKernelLogs": 244,
    "ProtectClock": 245,
    "RestartSteps": 254,
    "RestartMaxDelaySec": 254,
}
#: Assumed where the version of systemd is unknown: older than all supported ones.
_OLDEST_VERSION = 245
#: Seconds between restarts, for a systemd without growing delays.
_RESTART_SECONDS = "10"

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
# Restarts never give up: the store is whole after every crash, and the next start continues from it.
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
$state_directory
Restart=on-failure
RestartSec=$restart_delay
RestartSteps=8
RestartMaxDelaySec=5min
# A restart does not help if the configuration cannot be used.
RestartPreventExitStatus=78
WatchdogSec=60
TimeoutStartSec=5min
TimeoutStopSec=$stop
# SIGTERM goes to the daemon alone, which ends its plugins; processes that are left are killed.
KillMode=mixed
# A core dump would contain every secret of the configuration.
LimitCORE=0

# Plugins run under these restrictions, too. Remove those that yours cannot work with.
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
    """Return the text of the unit, with the keys that this version of systemd knows."""
    if version is None:
        version = _OLDEST_VERSION
    state = snapshot.state.directory.absolute()
    stop = snapshot.service.shutdown_grace + _STOP_MARGIN
    paths = (state, config.absolute(), command)
    in_home = any(str(path).startswith(("/home/", "/root/")) for path in paths)
    # systemd creates a directory directly below /var/lib, and gives it to the user of the service.
    state_directory = ""
    if state.parent == _VAR_LIB and " " not in state.name:
        state_directory = f"StateDirectory={state.name.replace('%', '%%')}\nStateDirectoryMode=0700\n"
    text = _UNIT.substitute(
        name=snapshot.service.name,
        command=_quoted(command),
        config=_quoted(config.absolute()),
        state=_quoted(state),
        user=user,
        state_directory=state_directory,
        stop=f"{round(stop.total_seconds())}",
        home="read-only" if in_home else "yes",
        restart_delay="1" if version >= _SINCE["RestartSteps"] else _RESTART_SECONDS,
    )
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if _SINCE.get(line.partition("=")[0], 0) <= version)


def _quoted(path: Path) -> str:
    """Return a path in the quotes and escapes of systemd."""
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if " " in text else text
