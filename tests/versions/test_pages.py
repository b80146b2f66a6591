"""Page tokens: they come back as they were given, and nothing else is one."""

from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as some

from forge.errors import TokenInvalid
from forge.versions.pages import VersionsQuery, WindowPosition, opened, sealed

KEY = bytes(range(32))
QUESTION = VersionsQuery("changes", 7, None)
PLACE = WindowPosition(5, 2**62, 17, 4, 1)
versions = some.integers(0, 2**63 - 1)


@given(some.builds(WindowPosition, versions | some.none(), versions, versions, versions, *[some.integers(0, 2)] * 2))
def test_a_place_comes_back_as_it_was(place: WindowPosition) -> None:
    assert opened(KEY, QUESTION, sealed(KEY, QUESTION, place)) == place


@given(some.builds(WindowPosition, versions | some.none(), versions, versions, versions, *[some.integers(0, 2)] * 2))
def test_a_token_tells_nothing_of_its_place(place: WindowPosition) -> None:
    """The place may be that of a document that its reader must not know of."""
    token = sealed(KEY, QUESTION, place)
    assert len(token) == len(sealed(KEY, QUESTION, PLACE))
    data = urlsafe_b64decode(token + "==")
    for number in place:
        if number is not None and number > 2**32:
            assert number.to_bytes(8) not in data
    near = urlsafe_b64decode(sealed(KEY, QUESTION, place._replace(document=place.document ^ 1)) + "==")
    assert sum(one == other for one, other in zip(data, near, strict=True)) < len(data) / 2


@pytest.mark.contract("V4")
def test_a_token_that_was_altered_anywhere_is_refused() -> None:
    token = sealed(KEY, QUESTION, PLACE)
    for at, letter in enumerate(token):
        for other in ("A", "B", "_", "=", "!", "é", ""):
            if other != letter:
                with pytest.raises(TokenInvalid):
                    opened(KEY, QUESTION, token[:at] + other + token[at + 1 :])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((bytes(32), QUESTION), id="database"),
        pytest.param((KEY, QUESTION._replace(query="deletes")), id="query"),
        pytest.param((KEY, QUESTION._replace(resource=8)), id="resource"),
        pytest.param((KEY, QUESTION._replace(subject="ada")), id="subject"),
        pytest.param((KEY, QUESTION._replace(subject="")), id="empty subject"),
    ],
)
def test_a_token_of_something_else_is_refused(other: tuple[bytes, VersionsQuery]) -> None:
    with pytest.raises(TokenInvalid):
        opened(*other, sealed(KEY, QUESTION, PLACE))


@given(some.text() | some.text("ABCDabcd0123-_=", max_size=80))
def test_what_nobody_gave_is_refused(text: str) -> None:
    with pytest.raises(TokenInvalid) as raised:
        opened(KEY, QUESTION, text)
    assert raised.value.fix


def test_what_is_longer_than_any_token_is_refused_unread() -> None:
    with pytest.raises(TokenInvalid):
        opened(KEY, QUESTION, sealed(KEY, QUESTION, PLACE) + "A" * 1_000_000)


@pytest.mark.parametrize(("kind", "after"), [(0, 4), (1, 4), (2, 3)])
def test_a_page_that_ends_between_the_items_of_a_document_goes_on_with_the_rest(kind: int, after: int) -> None:
    assert PLACE.after(kind) == after
