"""What the demo says while it waits for its lake: one line on a terminal, few lines elsewhere."""

import io

from forge.demo.waiting import Waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_is_one_line_that_is_written_over_and_gone_at_the_end() -> None:
    out = Terminal()
    waiting = Waiting(out)
    for missing in (None, 1204, 1, 0):
        waiting.tell(missing)
    waiting.clear()
    waiting.clear()
    assert "\n" not in out.getvalue()
    first, *shown, last = out.getvalue().split("\r\x1b[K")
    assert (first, last) == ("", "")
    assert [line.removeprefix("the lake takes in the rest: ") for line in shown] == [
        "Spark warms up for a minute   Ctrl-C ends the wait",
        "1,204 changes to come   Ctrl-C ends the wait",
        "1 change to come   Ctrl-C ends the wait",
        "all is in, and is compared   Ctrl-C ends the wait",
    ]
    assert max(map(len, shown)) < 80


def test_elsewhere_it_is_a_line_every_ten_seconds_at_most() -> None:
    now = 100.0
    out = io.StringIO()
    waiting = Waiting(out, clock=lambda: now)
    for second in range(25):
        now = 100.0 + second
        waiting.tell(25 - second)
    waiting.clear()
    lines = out.getvalue().splitlines()
    assert [line.split(": ")[1].split()[0] for line in lines] == ["25", "15", "5"]
