"""What is tried, one function each: it raises if anything was lost, and tells what it did otherwise."""

from collections.abc import Callable
from pathlib import Path

from faults import bare, damaged, disks, processes, sudden
from faults.small import Row

SCENARIOS: dict[str, Callable[[Path, bool], Row | list[Row]]] = {
    "kills": processes.kills,
    "signals": processes.signals,
    "second_signals": processes.second_signals,
    "full_disk": disks.full_disk,
    "read_only": disks.read_only,
    "lost_permission": disks.lost_permission,
    "links": disks.links,
    "damage": damaged.damage,
    "dead_worker": processes.dead_worker,
    "lost_picture": processes.lost_picture,
    "planted": processes.planted,
    "orphans": bare.orphans,
    "endless": bare.endless,
    "unprinted": bare.unprinted,
    "homeless": bare.homeless,
    "little_memory": bare.little_memory,
    "not_a_number": sudden.not_a_number,
    "clock": sudden.clock,
}
