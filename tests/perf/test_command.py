"""``python -m perf``: each command has help, and a wrong one gets one sentence."""

import pytest

from perf.__main__ import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["soke"], "'soke' is not one of bench, peers"),
        (["bench", "--fast"], "unrecognized arguments: --fast"),
        (["peers", "--servers", "api-0"], "'api-0' is not one of slot, triton-front"),
        (["peers", "--arguments", "{"], "'{' is not JSON"),
        (["load", "--rate", "1"], "the following arguments are required: --unit, --duration"),
    ],
)
def test_a_wrong_command_or_option_is_one_sentence(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert line.endswith(".")
