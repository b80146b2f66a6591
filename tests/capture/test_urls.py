"""From a URL to its source."""

import pytest

from forge.capture import Filter, open_source
from forge.capture.urls import split_option
from forge.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://db/shop", "log"),
        ("postgres://db/shop?feed=log", "log"),
        ("postgresql://db/shop?feed=wal&connect_timeout=3", "wal"),
        ("mysql://root@db/shop", "mysql"),
        ("mariadb://root@db/shop", "mysql"),
        ("sqlite:///shop.db", "sqlite"),
        ("sqlite:////srv/shop.db?feed=queue", "sqlite"),
        ("mongodb://db/shop", "mongo"),
        ("mongodb+srv://cluster.example/shop", "mongo"),
    ],
)
def test_each_url_names_a_source_that_does_not_connect_yet(url: str, kind: str) -> None:
    source = open_source(url, Filter(tables=("orders",)))
    assert source.kind == kind
    assert source.name


@pytest.mark.parametrize(
    ("url", "what", "fix"),
    [
        ("postgresql://db/shop?feed=nothing", "no feed 'nothing'", "feed=log or feed=wal"),
        ("sqlite:///shop.db?feed=hook", "no feed 'hook'", "forge.capture.sqlite.Hook"),
        ("oracle://db/shop", "no source for oracle://", "mysql://"),
        ("shop.db", "no source for this://", "sqlite:///file"),
    ],
)
def test_what_no_source_has_is_refused(url: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        open_source(url)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    "url", ["postgresql://ada:s3cret@db/shop", "mysql://ada:s3cret@db/shop", "mongodb://a:s3cret@db/x"]
)
def test_the_name_has_no_secret(url: str) -> None:
    assert "s3cret" not in open_source(url).name


def test_an_option_is_taken_out_and_the_rest_stays() -> None:
    assert split_option("postgresql://h/d?a=1&feed=wal&b=%20", "feed") == ("postgresql://h/d?a=1&b=+", "wal")
    assert split_option("postgresql://h/d?feed=", "feed") == ("postgresql://h/d", "")
