"""Directory for the files of temporary servers: in memory where there is plenty, else the system's temporary one.

Files in memory survive a crash of the processes that wrote them, as files on a disk do; making a database there takes a
tenth of the time. Nothing that measures a disk belongs there.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 4 << 30
"""Bytes that must be free there, and twice as many in the machine's memory."""


def temporary_folder(prefix: str, *, on_disk: bool = False) -> Path:
    """A new folder for a server's files; who asked for it removes it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=None if on_disk or not _plenty() else MEMORY))


def _plenty() -> bool:
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        return False
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(told["MemAvailable"].split()[0]) << 10 >= 2 * ROOM
