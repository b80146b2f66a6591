"""Layout of a lake: a folder on any filesystem that Spark can write; everything but the checkpoint is a Delta table.

bronze/changes            every change, by day            silver/current/public.orders   the table's present rows
bronze/definitions        definitions of the tables       silver/history/public.orders   all versions of its rows
bronze/instants           instants available to as-of     silver/quarantine              rows that did not fit
gold/…                    who changed what, activity      checkpoint/                    the stream's position
about                     metadata, one row per run       batches                        the ledger of batches
bronze/horizon            what was purged                 silver/ends                    ends of whole tables
checks                    results of comparisons
"""

import msgspec


class Lake(msgspec.Struct, frozen=True):
    """The paths of a lake.

    >>> lake = Lake("s3a://lake/shop/")
    >>> lake.changes, lake.current("public.orders"), lake.history('odd."n/me"')
    ('s3a://lake/shop/bronze/changes', 's3a://lake/shop/silver/current/public.orders', 's3a://lake/shop/silver/history/odd.~22n~2fme~22')
    """

    path: str

    @property
    def about(self) -> str:
        return self._under("about")

    @property
    def batches(self) -> str:
        return self._under("batches")

    @property
    def checks(self) -> str:
        return self._under("checks")

    @property
    def changes(self) -> str:
        return self._under("bronze/changes")

    @property
    def definitions(self) -> str:
        return self._under("bronze/definitions")

    @property
    def instants(self) -> str:
        return self._under("bronze/instants")

    @property
    def horizon(self) -> str:
        return self._under("bronze/horizon")

    @property
    def quarantine(self) -> str:
        return self._under("silver/quarantine")

    def checkpoint(self, run: int) -> str:
        """The path of a run's checkpoint; reading the tables again begins a new run."""
        return self._under(f"checkpoint/{run}")

    def current(self, table: str) -> str:
        """The path of a table's present rows; the name includes the schema."""
        return self._under(f"silver/current/{folder(table)}")

    def history(self, table: str) -> str:
        """The path of all versions of a table's rows."""
        return self._under(f"silver/history/{folder(table)}")

    def gold(self, name: str) -> str:
        return self._under(f"gold/{folder(name)}")

    def _under(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"


def folder(table: str) -> str:
    """Encode a table's name as the name of a folder, unique for every possible name.

    >>> folder('public.orders'), folder('a/b ~ü')
    ('public.orders', 'a~2fb~20~7e~c3~bc')
    """
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else _escaped(c) for c in table)


def _escaped(character: str) -> str:
    return "".join(f"~{byte:02x}" for byte in character.encode())
