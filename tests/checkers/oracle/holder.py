"""A subscriber that keeps what a client would keep, whole results or deltas, and notes what must not be."""

from collections.abc import Callable, Hashable

from forge.cursor import Snapshot
from forge.errors import ForgeError
from forge.react.push import Push
from forge.react.result import Result, apply


class Holder:
    """Holds a query's result. `wrong` says what was pushed that should not have been."""

    def __init__(self, session: int, crashes: Callable[[], int], *, delta: bool) -> None:
        self._session = session
        self._crashes = crashes
        self._crashed = crashes()
        self._delta = delta
        self._coverage: Snapshot | None = None
        self.result: Result | None = None
        self.error: ForgeError | None = None
        self.pushes = 0
        self.deltas = 0
        self.wrong: list[str] = []

    @property
    def session(self) -> Hashable:
        return self._session

    def push(self, push: Push, /) -> None:
        self.pushes += 1
        failed, self.error = self.error is not None, None
        crashed, self._crashed = self._crashed, self._crashes()
        # a crash takes back the numbers of transactions that wrote nothing to disk, and only those
        if crashed == self._crashed and self._coverage is not None and self._coverage.xmax > push.coverage.xmax:
            self.wrong.append(f"a result of {push.coverage} came after one of {self._coverage}")
        self._coverage = push.coverage
        held, self.result = self.result, push.result
        if held is None:
            return
        if held.hash == push.result.hash:
            if not failed:  # after an error it says that all is well again
                self.wrong.append("the same result was pushed again")
            return
        if push.previous is None or push.previous.hash != held.hash:
            self.wrong.append("what is pushed does not follow what was pushed before")
        elif self._delta and push.delta is not None:
            self.deltas += 1
            self.result = apply(held, push.delta)
            if self.result != push.result:
                self.wrong.append(f"a delta leads from {held.rows} to {self.result.rows} and not to {push.result.rows}")

    def fail(self, error: ForgeError, /) -> None:
        self.error = error
