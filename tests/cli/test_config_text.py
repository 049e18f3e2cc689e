"""A config written as text is read as the same config again, below comments on what changed."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from builder.config.config import BuildConfig
from builder.config.file import parse_config
from cli.migrate import config_text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.dictionaries(st.text(), SCALARS), st.text(min_size=1).filter(lambda each: each.isprintable()))
def test_any_config_survives_being_written(args: dict[str, Any], name: str) -> None:
    step = {"script": "x.py", "output_dir": "./" + name.replace("..", "."), "args": args}
    build = {"executable": "trtllm-build", "output_dir": "o", "fit_lengths": True}
    more = {"quantize": step, "build": build, "target": {"gpus": 2}}
    config = BuildConfig.model_validate({"version": 1, "model_id": "a/b", "revision": "1.0", **more})
    text = config_text(config)
    assert parse_config(text.encode(), shown="x", folder=None).config == config


def test_notes_are_comments_on_one_line_each() -> None:
    build = {"output_dir": "o", "args": {"gemm_plugin": "auto", "tp_size": 2}}
    config = BuildConfig.model_validate({"model_id": "a/b", "build": build})
    assert config_text(config, ["build.args.n_head: dropped (the checkpoint has it)", "a\nb: 1"]) == (
        "# build.args.n_head: dropped (the checkpoint has it)\n"
        "# 'a\\nb: 1'\n"
        "version: 1\n"
        "model_id: a/b\n"
        "build:\n"
        "  output_dir: o\n"
        "  args:\n"
        "    gemm_plugin: auto\n"
        "    tp_size: 2\n"
    )


def test_an_empty_argument_stays_empty_and_an_empty_key_goes() -> None:
    build = {"output_dir": "o", "script": None, "args": {"dry_run": None}}
    text = config_text(BuildConfig.model_validate({"model_id": "a/b", "dtype": None, "build": build}))
    assert yaml.safe_load(text) == {
        "version": 1,
        "model_id": "a/b",
        "build": {"output_dir": "o", "args": {"dry_run": None}},
    }
