"""The command line: what each command prints, and what it answers to wrong options."""

import json
import subprocess
import sys

import pytest

import lapgrad
from lapgrad import cli, info


def test_info_says_in_a_few_short_lines_what_is_in_use(capsys):
    assert cli.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 12
    shown = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in lines[:8]}
    facts = info.collect()
    assert shown["lapgrad"].startswith(facts["lapgrad"]["version"])
    assert f"{facts['torch']['threads']} thread" in shown["torch"]
    assert facts["cpu"]["model"] in shown["CPU"]
    assert shown["kernels"].startswith("compiled core") == bool(facts["core"].get("core"))
    assert "=" not in "".join(line for line in lines if "LAPGRAD_" not in line), "no tables for developers"


def test_info_says_what_is_accelerated(capsys):
    lapgrad.accelerate(only={"eigh"})
    try:
        cli.main(["info"])
        assert "on: eigh" in capsys.readouterr().out
    finally:
        lapgrad.accelerate.off()
    cli.main(["info"])
    assert "off (" in capsys.readouterr().out


def test_verbose_info_has_version_cpu_blas_threads_and_cuda(capsys):
    assert cli.main(["info", "--verbose"]) == 0
    printed = capsys.readouterr().out
    for section in ("lapgrad", "torch", "cpu", "core", "blas", "cuda"):
        assert f"\n{section}\n" in "\n" + printed
    assert "threads" in printed


def test_verbose_info_fits_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["info", "--verbose"]) == 0
    wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
    assert all("/" in line for line in wide), "only paths are longer"


def test_an_interruption_is_acknowledged(capsys, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "collect", interrupt)
    assert cli.main(["info"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_info_as_json_is_what_collect_returns(capsys):
    assert cli.main(["info", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == info.collect().keys()
    assert printed["lapgrad"]["version"]


def test_info_says_so_when_a_layer_is_absent():
    assert "not available" in info._describe("lapgrad._no_such_layer")["state"]


@pytest.mark.parametrize(
    ("typed", "expected"), [([], "bench"), (["bench"], "sweep"), (["reproduce"], "table1")], ids=str
)
def test_without_a_command_or_topic_the_help_is_printed(typed, expected, capsys):
    assert cli.main(typed) == 2
    assert expected in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("lapgrad ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "ops", "--ops", "portf"], "'portf' is not one of potrf"),
        (["bench", "ops", "--batches", "8xx8"], "'8xx8' is not a shape"),
        (["bench", "ops", "--dtypes", "float16"], "'float16' is not one of"),
        (["bench", "ops", "--threads", "0"], "'0' is not a list of thread counts"),
        (["bench", "accelerate", "--only", "choleski"], "'choleski' is not one of cholesky"),
        (["bench", "accelerate", "--dtypes", "float16"], "'float16' is not one of"),
        (["bench", "accelerate", "--only", ""], "'' names none of cholesky"),
        (["bench", "sweep", "--threads", "0"], "'0' is not a positive whole number"),
        (["bench", "sweep", "--cases", "-1"], "'-1' is not a positive whole number"),
        (["bench", "grid", "--sizes", "0"], "'0' is not a positive whole number"),
        (["reproduce", "table1", "--datasets", ","], "',' names none of naval1"),
        (["demo", "--steps", "0"], "'0' is not a positive whole number"),
    ],
)
def test_wrong_options_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_is_no_results_file(tmp_path, capsys):
    assert cli.main(["bench", "ops", "--output", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m lapgrad.cli info | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("lapgrad ")
    assert "Error" not in done.stderr
