"""What `holdfast run` tells Spark."""

from __future__ import annotations

import sys

import pytest

from holdfast.cli.run import launch


def arguments_for(environment: dict[str, str], **options: object) -> list[str]:
    changes = launch.spark_environment(environment, **{"master": None, "settings": ()} | options)  # type: ignore[arg-type]
    return changes["PYSPARK_SUBMIT_ARGS"].split(" ")


def test_the_command_line_wins_over_the_environment():
    words = arguments_for(
        {"PYSPARK_SUBMIT_ARGS": "--master yarn --conf a=1 pyspark-shell x"},
        master="local[2]",
        settings=[("b", "2 3")],
    )
    given = ["--master", "yarn", "--conf", "a=1"]
    assert words[2:] == [*given, "--master", "'local[2]'", "--conf", "'b=2", "3'", "pyspark-shell", "x"]
    assert arguments_for({}) == ["--conf", "spark.ui.showConsoleProgress=false", "pyspark-shell"]


@pytest.mark.parametrize(
    ("variables", "options", "is_set"),
    [
        ({}, {}, True),
        ({}, {"master": "local[4]"}, True),
        ({}, {"master": "spark://host:7077"}, False),
        ({}, {"settings": [("spark.master", "yarn")]}, False),
        ({}, {"settings": [("spark.pyspark.python", "python3.12")]}, False),
        ({"PYSPARK_PYTHON": "python3.12"}, {}, False),
    ],
)
def test_workers_on_this_machine_run_under_the_same_python(variables, options, is_set):
    changes = launch.spark_environment(variables, **{"master": None, "settings": ()} | options)
    assert (changes.get("PYSPARK_PYTHON") == sys.executable) is is_set


def test_log_settings_of_others_are_respected(tmp_path):
    def has_ours(variables: dict[str, str], *settings: tuple[str, str]) -> bool:
        changes = launch.spark_environment(variables, master=None, settings=settings)
        return "log4j2.properties" in changes.get("SPARK_SUBMIT_OPTS", "")

    assert has_ours({})
    assert has_ours({"SPARK_SUBMIT_OPTS": "-Xss4m"})
    assert not has_ours({"SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=x"})
    assert not has_ours({}, ("spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=x"))
    assert has_ours({"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "log4j2.properties").touch()
    assert not has_ours({"SPARK_CONF_DIR": str(tmp_path)})
    assert launch.LOG_SETTINGS.exists()


def test_what_did_not_count_is_said():
    asked = {"spark.master": "local[4]", "spark.x": "1", "spark.y": "2"}
    assert list(launch.unheeded(asked, {"spark.master": "local[2]", "spark.x": "1"})) == [
        "--master local[4] does not count: the file itself sets spark.master to local[2]",
        "--conf spark.y=2 does not count: the file itself sets spark.y",
    ]
