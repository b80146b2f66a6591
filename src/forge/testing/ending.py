"""Stop and end the processes of servers: as asked, and by force where that takes too long."""

import os
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


def freeze(process: "subprocess.Popen[bytes]") -> None:
    """Stop a child process with all its threads; returns when it has stopped, for the signal takes effect later."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
