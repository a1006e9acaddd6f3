"""How many CPUs a process may use: the quota of its control group, as containers have one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def count_allowed_threads(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int:
    """Return the number of CPUs that the quota allows, rounded up; 0 where there is no quota.

    torch starts a thread for every core that it sees. Where the quota is smaller, the kernel stops all
    threads of the process for the rest of a period (usually 100 ms) as soon as they have used it up.
    A part of a CPU is worth a thread: with a quota of 1.5, two threads took up to 19 % less time than one.

    Args:
        groups: The file that names the control groups of the process.
        mount: Where control groups are mounted.
    """
    quotas = [quota for folder in _list_folders(groups, mount) if (quota := _read_quota(folder)) is not None]
    return math.ceil(min(quotas)) if quotas else 0


def _list_folders(groups: Path, mount: Path) -> Iterator[Path]:
    """Yield the folders of the group and of the groups around it, for version 2 and version 1."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mount / "cpu" if controllers else mount
        # Inside a container the named group may not be visible: its own folder is then the root.
        folder = root / path.strip("/")
        while True:
            yield folder
            if folder == root:
                break
            folder = folder.parent


def _read_quota(folder: Path) -> float | None:
    """Return the CPUs that one control group may use; None where it has no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if quota != "max" and float(quota) > 0.0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
