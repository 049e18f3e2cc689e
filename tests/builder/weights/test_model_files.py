"""One set of a model's weights is taken, in the best format, and no file that is no part of it."""

import pytest

from builder.config.config import WeightFormat
from builder.weights.model_files import supporting_names, weight_names
from errors.build_config import WeightFormatMissing

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (["pytorch_model.bin", "model.safetensors", "x.pt"], None, ("safetensors", ["model.safetensors"])),
        (["pytorch_model.bin", "x.pt"], None, ("bin", ["pytorch_model.bin"])),
        (["consolidated.00.pth"], None, ("pt", ["consolidated.00.pth"])),
        (["pytorch_model.bin", "model.safetensors"], "bin", ("bin", ["pytorch_model.bin"])),
        ([*SHARDS, "consolidated.safetensors"], None, ("safetensors", SHARDS)),
        (["model.safetensors", "model.fp16.safetensors"], None, ("safetensors", ["model.safetensors"])),
        (["adapter_model.safetensors", "pytorch_model.bin"], None, ("bin", ["pytorch_model.bin"])),
        (["training_args.bin", "optimizer.bin", "x.pt"], None, ("pt", ["x.pt"])),
        (["onnx/model.safetensors", "pytorch_model.bin"], None, ("bin", ["pytorch_model.bin"])),
    ],
)
def test_one_set_of_weights_is_chosen(
    names: list[str], wanted: WeightFormat | None, expected: tuple[str, list[str]]
) -> None:
    assert weight_names("m", names, wanted) == expected


@pytest.mark.parametrize(
    ("names", "wanted", "remedy"),
    [
        (["model.safetensors", "pytorch_model.bin"], "pt", "it has safetensors and bin"),
        (["training_args.bin", "README.md"], None, "it has none in another format either"),
        ([], "bin", "it has none in another format either"),
    ],
)
def test_a_missing_format_is_answered_by_those_there_are(
    names: list[str], wanted: WeightFormat | None, remedy: str
) -> None:
    with pytest.raises(WeightFormatMissing) as caught:
        weight_names("m", names, wanted)
    assert remedy in str(caught.value)


def test_further_chat_templates_are_taken_of_their_folder_alone() -> None:
    names = [f"additional_chat_templates/{each}" for each in ("tool_use.jinja", "a/b.jinja", "x.txt")]
    names += ["sub/additional_chat_templates/tool_use.jinja", "chat_template.jinja"]
    assert supporting_names(names, code=True) == [names[0], "chat_template.jinja"]


def test_code_is_taken_only_when_asked_for_and_subfolders_never() -> None:
    names = ["config.json", "tokenizer.model", "merges.txt", "README.md", "x.py", "sub/config.json", "a.txt"]
    assert supporting_names(names, code=False) == ["config.json", "tokenizer.model", "merges.txt"]
    assert supporting_names(names, code=True) == ["config.json", "tokenizer.model", "merges.txt", "x.py"]
