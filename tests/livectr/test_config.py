"""Settings from four sources: precedence, and messages about mistakes."""

from pathlib import Path

import pytest

from livectr.config import page
from livectr.config.settings import SETTINGS, Settings, commands_of
from livectr.config.sources import resolve
from livectr.serving.options import ServeOptions
from livectr.system.errors import ConfigError
from livectr.trainer.options import TrainOptions


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    toml = tmp_path / "livectr.toml"
    toml.write_text("batch_size = 2\nidle_partition_s = 2\nseed = 2\n")
    settings = resolve(
        {"batch_size": "4"},
        toml=toml,
        environment={"LIVECTR_BATCH_SIZE": "3", "LIVECTR_IDLE_PARTITION_S": "3"},
        pipeline={"batch_size": 1, "idle_partition_s": 1, "seed": 1, "metrics_window_s": 1},
    )
    assert (settings.batch_size, settings.idle_partition_s, settings.seed, settings.metrics_window_s) == (
        4,
        3.0,
        2,
        1.0,
    )


def test_defaults_are_those_of_the_options() -> None:
    settings = resolve({}, environment={})
    for options in (TrainOptions(source="file:x"), ServeOptions(redis="redis://x")):
        for name, value in vars(options).items():
            if name not in ("source", "redis", "pipeline_file"):
                assert getattr(settings, name) == value, name


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("500ms", "idle_partition_s", 0.5),
        ("2m", "idle_partition_s", 120.0),
        ("14d", "metrics_window_s", 14 * 86400.0),
        ("1.5s", "batch_interval_ms", 1500),
        ("250", "batch_interval_ms", 250),
        ("8GiB", "gpu_budget", 8 << 30),
        ("1.5 MiB", "max_message_bytes", 3 << 19),
        ("1e3", "gpu_budget", 1000),
        ("yes", "until_end", True),
        ("false", "until_end", False),
    ],
)
def test_values_are_read_in_the_unit_of_their_name(text: str, name: str, value: object) -> None:
    assert getattr(resolve({name: text}, environment={}), name) == value


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            {"batch_sise": "3"},
            "command line: there is no setting 'batch_sise'; did you mean 'batch_size'?",
        ),
        ({"batch_size": "0"}, "command line: batch_size is '0', but must be at least 1."),
        ({"batch_size": "1.5"}, "must be a whole number"),
        ({"batch_size": "many"}, "must be a number"),
        ({"publish_interval_s": "0"}, "must be more than 0"),
        ({"idle_partition_s": "3 parsecs"}, "must be a number or a duration"),
        ({"source": "kafak://x:1"}, "must begin with kafka:// or file:"),
        ({"gpu_budget": "8 GiBs"}, 'must be bytes or an amount of memory like "512MiB", "8GiB"'),
        ({"gpu_budget": "-1"}, "must be at least 0"),
        ({"until_end": "perhaps"}, "must be true or false"),
        ({"checkpoint": ""}, "must be a text that is not empty"),
    ],
)
def test_a_mistake_in_a_flag_is_a_sentence(flags: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(flags, environment={})
    assert says in str(error.value)


def test_unknown_names_are_errors_in_every_source(tmp_path: Path) -> None:
    toml = tmp_path / "x.toml"
    toml.write_text("batchsize = 3")
    with pytest.raises(ConfigError, match=r"x\.toml: there is no setting 'batchsize'"):
        resolve({}, toml=toml, environment={})
    with pytest.raises(ConfigError, match="environment variable LIVECTR_BATCHSIZE: there is no setting"):
        resolve({}, environment={"LIVECTR_BATCHSIZE": "3"})
    with pytest.raises(ConfigError, match="settings of the pipeline: there is no setting 'batchsize'"):
        resolve({}, environment={}, pipeline={"batchsize": 3})


def test_other_variables_with_our_prefix_are_left_alone() -> None:
    """Variables of the kernels, and Kubernetes' variables for a Service livectr-rank."""
    environment = {
        "LIVECTR_CACHE_DIR": "/x",
        "LIVECTR_SANITIZE": "address",
        "LIVECTR_THREADS": "2",
        "LIVECTR_RANK_SERVICE_HOST": "10.0.0.1",
        "LIVECTR_RANK_SERVICE_PORT_GRPC": "50051",
        "LIVECTR_RANK_PORT": "tcp://10.0.0.1:50051",
        "LIVECTR_RANK_PORT_50051_TCP_ADDR": "10.0.0.1",
        "LIVECTR_METRICS_PORT": "9100",
    }
    assert resolve({}, environment=environment) == Settings(metrics_port=9100)


@pytest.mark.parametrize(("text", "says"), [("batch_size = ", "is not TOML"), (None, "cannot be read")])
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        resolve({}, toml=path, environment={})


def test_every_setting_says_what_it_does() -> None:
    for declared in SETTINGS.values():
        assert declared.metadata["help"] and commands_of(declared), declared.name


def test_the_page_has_the_settings_of_today() -> None:
    text = page.PAGE.read_text()
    assert text == page.page(text), "python -m livectr.config.page"


def test_limits_hold_for_options_that_a_program_makes() -> None:
    for wrong, says in (
        ({"batch_size": 0}, "batch_size is 0, but must be at least 1"),
        ({"wire": "fp8"}, "wire is 'fp8', but must be fp32 or bf16"),
        ({"min_usable": 1.5}, "min_usable is 1.5, but must be at most 1"),
        ({"publish_interval_s": 0.0}, "publish_interval_s is 0.0, but must be more than 0"),
        ({"batch_size": "5"}, "batch_size is '5', but must be a number"),
        ({"batch_size": 5.5}, "batch_size is 5.5, but must be a whole number"),
        ({"until_end": "no"}, "until_end is 'no', but must be true or false"),
        ({"content": 5}, "content is 5, but must be a text"),
        ({"idle_partition_s": float("nan")}, "must be a finite number"),
    ):
        with pytest.raises(ConfigError, match=says):
            TrainOptions("file:x", **wrong)
    with pytest.raises(ConfigError, match="source is not set"):
        TrainOptions("")
