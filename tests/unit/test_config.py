"""Configuration: who wins, what is refused, and what is never printed."""

from pathlib import Path

import pytest

from forge.config import Config, described, hide, load, shown_size, size
from forge.errors import ConfigError

SECRET = "hunter2"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_anything_the_defaults_are_in_force(directory: Path) -> None:
    assert load() == Config()
    assert {origin for _, _, origin in described(load())} == {"default"}


def test_flags_win_over_the_file_and_the_file_over_the_environment(directory: Path) -> None:
    (directory / "forge.toml").write_text('retention_days = 20\nwakeup = "notify"\n')
    environ = {"FORGE_RETENTION_DAYS": "10", "FORGE_WAKEUP": "poll", "FORGE_LOG_SIZE_LIMIT": "1kB"}
    config = load({"wakeup": "auto", "database_url": None}, environ)
    assert (config.log_size_limit, config.retention_days, config.wakeup) == (1024, 20, "auto")
    assert config.origins == {
        "retention_days": "forge.toml",
        "log_size_limit": "FORGE_LOG_SIZE_LIMIT",
        "wakeup": "--wakeup",
    }


def test_an_empty_variable_is_unset(directory: Path) -> None:
    assert load({}, {"FORGE_DATABASE_URL": ""}).database_url is None


def test_a_directory_in_the_file_is_meant_from_there(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('data = "state"')
    assert load({}, {}, tmp_path / "other.toml").data == tmp_path / "state"


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('databse_url = "x"', "databse_url", "did you mean database_url?"),
        ("zzz = 1", "zzz", "the settings are"),
        ("retention_days = 0", "retention_days", "1 or more"),
        ("retention_days = true", "retention_days", "1 or more"),
        ('log_size_limit = "much"', "log_size_limit", "10GB"),
        ('wakeup = "never"', "wakeup", "auto, notify, poll"),
        ("data = 3", "data", "directory"),
        ('database_url = "oracle://db"', "database_url", "postgresql://"),
        ("retention_days 3", "not TOML", "correct"),
    ],
)
def test_a_file_with_something_wrong_is_refused(directory: Path, text: str, what: str, fix: str) -> None:
    (directory / "forge.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load()
    assert what in str(caught.value)
    assert "forge.toml" in str(caught.value)
    assert fix in caught.value.fix
    assert "\n" not in str(caught.value)


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        load({}, {}, tmp_path / "absent.toml")


def test_a_variable_that_resembles_a_setting_is_refused_and_any_other_is_not_ours(directory: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, {"FORGE_DATABSE_URL": "postgresql://db"})
    assert "FORGE_DATABASE_URL" in caught.value.fix
    assert load({}, {"FORGE_VERSION": "9", "FORGE_HOME": "/x", "FORGED": "1"}) == Config()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}@db:5432/shop",
        f"postgresql://:{SECRET}@db/shop",
        f"postgresql://ada:{SECRET}?x@db/shop",
        f"postgresql://ada:{SECRET}/x@db/shop",
        f"postgresql://ada:a@{SECRET}@db/shop",
        f"postgresql://ada@db/shop?password={SECRET}",
        f"postgresql://ada@db/shop?application_name=x&p%61ssword={SECRET}&sslpassword={SECRET}",
        f"mysql://ada:{SECRET}@db/shop",
        f"mongodb://ada:{SECRET}@a:1,b:2/shop?replicaSet=x",
        f"host=db password={SECRET}",
        f"host=db password = '{SECRET} \\' {SECRET}' user=ada",
        f"host=db sslpassword='{SECRET}",
    ],
)
def test_no_secret_is_ever_shown(directory: Path, url: str) -> None:
    assert SECRET not in hide(url)
    shown = described(load({"database_url": url}))
    assert SECRET not in str(shown)
    assert "***" in str(shown)


@pytest.mark.parametrize("url", [f"ada:{SECRET}@db/shop", f"oracle://ada:{SECRET}@db/shop"])
def test_not_even_that_of_a_refused_url(directory: Path, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"database_url": url})
    assert SECRET not in str(caught.value) + caught.value.fix


def test_hiding_keeps_the_rest() -> None:
    assert hide("postgresql:///shop?host=/run/pg&port=5432") == "postgresql:///shop?host=/run/pg&port=5432"
    assert hide("postgresql://ada@db/shop") == "postgresql://ada@db/shop"


def test_sizes_are_read_as_they_are_shown() -> None:
    for count in (0, 1, 1024, 3 * 1024**2, 10 * 1024**3, 2 * 1024**4):
        assert size(shown_size(count).replace(" bytes", "")) == count
