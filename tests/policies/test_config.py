"""`PolicyConfig`: plain data, checked before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.policies import BUILTIN_PATH, PolicyConfig

CONFIGS = st.builds(
    PolicyConfig,
    model=st.sampled_from(["builtin", "runs/x", "hf:gpt2", "http://127.0.0.1:8000", "mine:policy"]),
    tokenizer=st.none() | st.just("builtin"),
    device=st.none() | st.sampled_from(["cpu", "cuda:1"]),
    dtype=st.none() | st.sampled_from(["float32", "bfloat16", "float16"]),
    init=st.sampled_from(["pretrained", "random"]),
    seed=st.integers(0, 2**40),
    grammar=st.none() | st.sampled_from(["boxed-integer", "none"]),
    temperature=st.none() | st.floats(0, 10),
    top_p=st.none() | st.floats(0.01, 1),
    top_k=st.none() | st.integers(0, 1000),
    min_p=st.none() | st.floats(0, 1),
    max_batch_size=st.none() | st.integers(1, 512),
    options=st.dictionaries(st.text(min_size=1), st.integers() | st.text() | st.booleans()),
)


@given(CONFIGS)
def test_json_gives_the_same_config(config: PolicyConfig) -> None:
    assert PolicyConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_a_path_is_a_name() -> None:
    assert PolicyConfig(Path("runs/x")).model == "runs/x"  # type: ignore[arg-type]
    assert (BUILTIN_PATH / "config.json").is_file()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": " "}, "model must be a non-empty text"),
        ({"dtype": "float23"}, "unknown dtype 'float23': did you mean 'float32'"),
        ({"init": None}, "unknown init None"),
        ({"grammar": "boxed-int"}, "did you mean 'boxed-integer'"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"temperature": -0.1}, "temperature must be a finite number"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\].*temperature=0"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"min_p": 2}, "min_p"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"lora": 16}, "lora must be keywords by name"),
        ({"options": ["timeout"]}, "options must be keywords by name"),
        ({"lora": {"r": 4}, "adapter": "x"}, "give one of them"),
        ({"lora": {"r": 4}, "init": "random"}, "nothing to adapt"),
        ({"model": "http://user:secret@host/"}, "MATHTURN_API_KEY"),
        ({"model": "http://a,https://user:secret@host/v1"}, "MATHTURN_API_KEY"),
    ],
)
def test_values_outside_their_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        PolicyConfig(**changes)
    assert "secret" not in str(caught.value)


def test_unknown_fields_are_named() -> None:
    with pytest.raises(InvalidValueError, match="unknown policy field 'temprature': did you mean 'temperature'"):
        PolicyConfig.from_json({"model": "builtin", "temprature": 1.0})
