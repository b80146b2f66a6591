"""Ending a server's process: as asked, and by force where that takes too long."""

import signal
import subprocess


def end(process: "subprocess.Popen[bytes]", how: signal.Signals, patience: float) -> None:
    """It is over when this returns."""
    process.send_signal(how)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
