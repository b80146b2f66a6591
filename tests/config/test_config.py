"""Configuration: who wins, what is refused, and what is never printed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import msgspec
import pytest

from forge.cli import main
from forge.config import SETTINGS, Config, described, hide, in_force, load, seconds, shown_seconds, shown_size, size
from forge.config.defaults import Default
from forge.deliver.consumers import ConsumerSettings as ConsumerSettings
from forge.deliver.outbox.worker import OutboxSettings as OutboxSettings
from forge.errors import ConfigError
from forge.react.group import Settings
from forge.serve.limits import Limits
from forge.serve.node import Options

SECRET = "hunter2"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_anything_the_defaults_are_in_force(directory: Path) -> None:
    assert load() == Config()
    assert {origin for _, _, origin in described(load())} == {"default"}


def test_flags_win_over_the_environment_and_that_over_the_file(directory: Path) -> None:
    (directory / "forge.toml").write_text('retention_days = 20\nlog_size_limit = "2kB"\nwakeup = "notify"\n')
    environ = {"FORGE_WAKEUP": "poll", "FORGE_LOG_SIZE_LIMIT": "1kB"}
    config = load({"wakeup": "auto", "database_url": None}, environ)
    assert (config.hold_days, config.retention_days, config.log_size_limit, config.wakeup) == (7, 20, 1024, "auto")
    assert config.origins == {
        "retention_days": "forge.toml",
        "log_size_limit": "FORGE_LOG_SIZE_LIMIT",
        "wakeup": "--wakeup",
    }


def test_the_same_order_holds_within_tables_and_code_wins_over_all(directory: Path) -> None:
    (directory / "forge.toml").write_text(
        "[realtime]\nmax_sessions_per_user = 2\nmax_sessions_per_ip = 2\nmax_subscriptions_per_user = 2\n"
    )
    environ = {"FORGE_REALTIME_MAX_SESSIONS_PER_IP": "3", "FORGE_REALTIME_MAX_SUBSCRIPTIONS_PER_USER": "3"}
    config = load({}, environ)
    options = in_force(Options(limits=Limits(subscriptions_per_user=4)), config)
    limits = options.limits
    assert (limits.requests_per_user, limits.sessions_per_user) == (8, 2)
    assert (limits.sessions_per_ip, limits.subscriptions_per_user) == (3, 4)
    assert [origin for name, _, origin in described(config) if name.startswith("realtime.max_s")] == [
        "forge.toml",
        *environ,
    ]


def test_a_default_that_code_gives_explicitly_wins_too(directory: Path) -> None:
    config = load({}, {"FORGE_REALTIME_MAX_SESSIONS_PER_USER": "1", "FORGE_REALTIME_RESYNC_INTERVAL": "1m"})
    assert in_force(Limits(sessions_per_user=8), config).sessions_per_user == 8
    assert in_force(Limits(), config).sessions_per_user == 1
    assert in_force(Settings(resync=600.0), config).resync == 600
    assert in_force(Settings(), config).resync == 60


def test_the_tables_their_names_and_defaults() -> None:
    assert {name: setting.default for name, setting in SETTINGS.items() if "." in name} == {
        "realtime.max_sessions_per_user": 8,
        "realtime.max_sessions_per_ip": 32,
        "realtime.max_subscriptions_per_user": 500,
        "realtime.max_cached_result_bytes": 10_485_760,
        "realtime.debounce": 0.05,
        "realtime.max_debounce": 0.2,
        "realtime.max_concurrent_runs": 64,
        "realtime.resync_interval": 600.0,
        "realtime.check_interval": 5.0,
        "realtime.idle_timeout": 5.0,
        "realtime.keepalive_interval": 25.0,
        "serve.host": "127.0.0.1",
        "serve.port": 8710,
        "serve.workers": 1,
        "serve.connections": 16,
        "serve.live_connections": 8,
        "serve.timeout": 30.0,
        "serve.requests_per_user": 8,
        "serve.waiting_per_user": 32,
        "serve.request_bytes": 1_048_576,
        "serve.argument_bytes": 65_536,
        "serve.messages_per_second": 50.0,
        "serve.message_burst": 100,
        "serve.origins": (),
        "serve.allowed_hosts": (),
        "deliver.tick_interval": 0.25,
        "deliver.report_interval": 1.0,
        "deliver.lag_interval": 5.0,
        "deliver.idle_interval": 10.0,
        "deliver.blocked_after": 1.0,
        "deliver.outbox_poll_interval": 1.0,
        "deliver.outbox_lag_interval": 2.0,
        "deliver.outbox_batch_timeout": 10.0,
        "deliver.outbox_server_timeout": 20.0,
        "pipeline.lake": None,
        "pipeline.master": None,
        "pipeline.interval": 10.0,
        "pipeline.max_events": 500_000,
        "pipeline.tables": (),
        "pipeline.start": "history",
        "pipeline.models": None,
        "pipeline.verify": None,
    }


@pytest.mark.parametrize(
    "struct",
    [Limits(), Options(), Settings(), ConsumerSettings(), OutboxSettings()],
    ids=lambda each: type(each).__module__,
)
def test_every_field_that_can_be_configured_takes_its_value(directory: Path, struct: msgspec.Struct) -> None:
    """Every number, duration and size is doubled by the environment."""
    plain = {int: "{:d}", float: "{:g}"}
    environ = {
        setting.variable: plain[type(setting.default)].format(setting.default * 2)
        for name, setting in SETTINGS.items()
        if name.startswith(("realtime.", "serve.", "deliver.")) and isinstance(setting.default, int | float)
    }
    configured = in_force(struct, load({}, environ))
    for name in struct.__struct_fields__:
        before, after = getattr(struct, name), getattr(configured, name)
        if isinstance(before, Default) and isinstance(before, int | float):
            assert after == before * 2, name


def test_values_of_tables_are_written_as_people_write_them(directory: Path) -> None:
    (directory / "forge.toml").write_text(
        '[realtime]\nmax_cached_result_bytes = "20MB"\ndebounce = "10ms"\n'
        'resync_interval = "5m"\nkeepalive_interval = 9\n'
        '[serve]\norigins = ["https://a.example"]\n[pipeline]\nlake = "lake"\nmodels = "/models"\n'
    )
    config = load({}, {"FORGE_PIPELINE_TABLES": "orders, customers", "FORGE_SERVE_MESSAGES_PER_SECOND": "0.5"})
    realtime = config.realtime
    assert (realtime.max_cached_result_bytes, realtime.debounce) == (20 * 1024**2, 0.01)
    assert (realtime.resync_interval, realtime.keepalive_interval) == (300, 9)
    assert (config.serve.origins, config.serve.messages_per_second) == (("https://a.example",), 0.5)
    assert config.pipeline.tables == ("orders", "customers")
    shown = {name: value for name, value, _ in described(config)}
    assert (shown["realtime.debounce"], shown["realtime.resync_interval"]) == ("10ms", "5m")
    assert (shown["realtime.max_cached_result_bytes"], shown["pipeline.tables"]) == ("20 MB", ["orders", "customers"])
    (directory / "forge.toml").rename(directory / "other.toml")
    elsewhere = load({}, {}, directory / "other.toml").pipeline
    assert (elsewhere.lake, elsewhere.models) == (str(directory / "lake"), "/models")
    (directory / "other.toml").write_text('[pipeline]\nlake = "s3a://lake/shop"\n')
    assert load({}, {}, directory / "other.toml").pipeline.lake == "s3a://lake/shop"


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
        ("[realtme]\nmax_sessions_per_user = 1", "unknown table 'realtme'", "did you mean [realtime]?"),
        ("[zzz]", "unknown table 'zzz'", "the tables are realtime, serve, deliver, pipeline"),
        ("realtime = 3", "realtime", "write [realtime]"),
        ("[realtime]\nmax_session_per_user = 1", "'max_session_per_user'", "did you mean max_sessions_per_user?"),
        ("[deliver]\nzzz = 1", "unknown setting 'zzz'", "the settings are tick_interval"),
        ("max_sessions_per_user = 1", "unknown setting", "write it below [realtime]"),
        ("[serve]\nretention_days = 1", "unknown setting", "write it above the first table"),
        ("[realtime]\nmax_sessions_per_user = -1", "realtime.max_sessions_per_user", "1 or more"),
        ("[realtime]\nmax_sessions_per_user = 1.5", "realtime.max_sessions_per_user", "1 or more"),
        ('[realtime]\nmax_sessions_per_user = "many"', "realtime.max_sessions_per_user", "1 or more"),
        ("[realtime]\nmax_sessions_per_user = true", "realtime.max_sessions_per_user", "1 or more"),
        ("[realtime.max_sessions_per_user]\nx = 1", "realtime.max_sessions_per_user", "1 or more"),
        ('[realtime]\nmax_cached_result_bytes = "-10MB"', "max_cached_result_bytes", "10GB"),
        ('[realtime]\ndebounce = "soon"', "realtime.debounce", "50ms, 10s or 10m"),
        ("[realtime]\ndebounce = -1", "realtime.debounce", "above 0"),
        ("[realtime]\ndebounce = nan", "realtime.debounce", "above 0"),
        ("[realtime]\nresync_interval = inf", "realtime.resync_interval", "above 0"),
        ("[serve]\nport = 65536", "serve.port", "65535"),
        ("[serve]\norigins = [1]", "serve.origins", "list of texts"),
        ("[serve]\nhost = 1", "serve.host", "give a text"),
        ('[pipeline]\nlake = ""', "pipeline.lake", "directory or a URL"),
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
    with pytest.raises(ConfigError) as caught:
        load({}, {"FORGE_REALTIME_MAX_SESSION_PER_USER": "1"})
    assert caught.value.fix == "did you mean FORGE_REALTIME_MAX_SESSIONS_PER_USER?"
    with pytest.raises(ConfigError, match="in FORGE_REALTIME_MAX_SESSIONS_PER_USER cannot be '-1'"):
        load({}, {"FORGE_REALTIME_MAX_SESSIONS_PER_USER": "-1"})
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


def test_durations_are_read_as_they_are_shown() -> None:
    for value in (0.001, 0.05, 0.25, 1, 1.5, 59, 60, 90, 600, 3600, 5400, 604_800):
        assert seconds(shown_seconds(value)) == pytest.approx(value)


def test_forge_pipeline_takes_its_table_and_flags_win(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    from forge.pipeline.run import LakeSettings as PipelineSettings

    runs: list[tuple[Any, ...]] = []

    class Running:
        def follow(self, seconds: float) -> None:
            runs[-1] += (seconds,)

    @contextmanager
    def pipeline(spark: Any, url: str, lake: Any, settings: Any, **_: Any) -> Iterator[Running]:
        runs.append((spark.master, lake.path, settings))
        yield Running()

    monkeypatch.setattr("signal.signal", Mock())
    monkeypatch.setattr("forge.pipeline.session.session", lambda master, **_: Mock(master=master))
    monkeypatch.setattr("forge.pipeline.run.pipeline", pipeline)
    monkeypatch.setattr("forge.cli.session.await_server", Mock())
    monkeypatch.setattr("forge.cli.pipeline.run.connect", MagicMock())
    monkeypatch.setattr("forge.cli.pipeline.run.require_installed", Mock())
    (directory / "forge.toml").write_text(
        'database_url = "postgresql://db"\n[pipeline]\nlake = "lake"\nmaster = "local[1]"\ninterval = "2s"\n'
        'max_events = 7\ntables = ["orders"]\nstart = "now"\nmodels = "models"\n'
    )
    monkeypatch.setenv("FORGE_PIPELINE_MAX_EVENTS", "8")
    flags = ("--lake", "s3a://lake/shop", "--master", "yarn", "--interval", "3s", "--max-events", "9", "--start", "log")
    for given in ((), (*flags, "--tables", "a,b", "--models", "others")):
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", "run", *given])
        assert ended.value.code == 0, capsys.readouterr().err
    lake = str(directory / "lake")
    assert runs == [
        ("local[1]", lake, PipelineSettings(("orders",), "now", 8, models="models"), 2.0),
        ("yarn", "s3a://lake/shop", PipelineSettings(("a", "b"), "log", 9, models="others"), 3.0),
    ]
    assert "every 2s" in capsys.readouterr().out
