"""The example of the design: a student's identity changes, and the graduation plan that refers to it is told."""

import pytest

from forge.postgres.connection import Connection
from forge.versions.documents import get, put
from forge.versions.identity import change_identity
from forge.versions.reading import changes, key_changes, representation
from forge.versions.strategies import STRATEGIES, Strategy, use_strategy
from tests.versions.journals import PLANS, STUDENTS, journals


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.contract("V1", "V4")
@pytest.mark.every_version
def test_an_identity_that_changes_at_100_changes_who_refers_to_it(versions: Connection, strategy: Strategy) -> None:
    use_strategy(versions, strategy)
    student = put(versions, STUDENTS, {"studentUniqueId": "604821"}, {"firstSurname": "Ada"}).document
    plan = put(versions, PLANS, {"year": 2026}, {"credits": 24}, {"student": student}).document
    versions.execute("SELECT setval('forge_versions.change_version', 99)")

    assert change_identity(versions, student, {"studentUniqueId": "604999"}).version == 100

    assert [row for row in journals(versions)["document"] if row[0] >= 99] == [(100, student.id)]
    assert [row for row in journals(versions)["identity"] if row[0] >= 99] == [(100, student.id)]
    after = get(versions, plan.id)
    assert (after.content_version, after.identity_version) == (plan.content_version, plan.identity_version)
    (found,) = changes(versions, PLANS, 99, 100).items
    assert (found.version, found.id) == (100, plan.id)
    assert representation(found.document) == {
        "identity": {"year": 2026},
        "body": {"credits": 24},
        "references": {"student": {"studentUniqueId": "604999"}},
    }
    assert [(item.version, item.id) for item in changes(versions, STUDENTS, 99, 100).items] == [(100, student.id)]
    assert [item.old_identity for item in key_changes(versions, STUDENTS, 99, 100).items] == [student.identity]
    assert changes(versions, PLANS, 1, 99).items == []
