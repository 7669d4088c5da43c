"""`EnvConfig`: the environment's keywords, whatever they are, with splits."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from tiny import train_tokenizer

from mathturn_gym import Problem
from mathturn_gym.env import ENV_DEFAULTS, MathMultiTurnEnv
from mathturn_gym.env.config import EnvConfig, EnvKeywords, env_parameters
from mathturn_gym.errors import InvalidValueError, SharedPromptsError
from mathturn_gym.problems import Curriculum


def always_right(response: str, gold: Any) -> bool:
    return True


def half_a_point(context: Any) -> float:
    return 0.5


def louder(context: Any) -> str:
    return "AGAIN"


def test_the_keywords_are_those_of_the_environment() -> None:
    signature = inspect.signature(MathMultiTurnEnv).parameters
    assert set(EnvKeywords.__annotations__) == set(signature), (
        "for type checkers: keep EnvKeywords as the environment is"
    )
    for env_id, defaults in ENV_DEFAULTS.items():
        expected = {**{name: one.default for name, one in signature.items()}, **defaults}
        assert dict(env_parameters(env_id)) == expected
        config = EnvConfig(env_id)
        assert {name: config.value(name) for name in signature} == expected
        env = gym.make(env_id).unwrapped
        assert isinstance(env, MathMultiTurnEnv)
        assert config.value("num_turns") == env.num_turns
        assert config.value("stop_on_success") == env.stop_on_success


def test_only_what_is_given_is_kept_so_that_an_ids_defaults_hold() -> None:
    assert EnvConfig("MathSingleTurn-v0", problems="lins").keywords == {"problems": "lins"}
    env: Any = EnvConfig("MathSingleTurn-v0", problems="lins").make("test")
    assert env.unwrapped.num_turns == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_turn": 3}, "unknown keyword of MathMultiTurnUntilCorrect-v0 'num_turn': did you mean 'num_turns'"),
        ({"validaton": "x"}, "did you mean 'validation'"),
        ({"id": "MathMultiTurn-v1"}, "did you mean 'MathMultiTurn-v0'"),
        ({"id": "CartPole-v1"}, "must make a MathMultiTurnEnv"),
        ({"id": "no_such_module:X-v0"}, "cannot be loaded"),
        ({"id": 3}, "unknown environment 3"),
        ({"allow_overlap": 1}, "allow_overlap must be True or False, got 1"),
    ],
)
def test_mistakes_are_named_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        EnvConfig(**arguments)


def test_values_are_checked_where_the_environment_is_made() -> None:
    with pytest.raises(InvalidValueError, match="num_turns must be an integer >= 1"):
        EnvConfig(problems="lins", num_turns=0).make()
    with pytest.raises(InvalidValueError, match="unknown keyword"):
        EnvConfig().value("turns")


def test_splits_are_parts_of_the_problems_or_problems() -> None:
    config = EnvConfig(problems="lins", test="add2:test", validation="all")
    assert [config.problems(split).name for split in ("train", "validation", "test")] == [
        "lins:train",
        "lins:all",
        "add2:test",
    ]
    mine = [Problem("a/1", "1+1=?", "2")]
    assert EnvConfig(problems="lins", test=mine).problems("test").get(0, 0) is mine[0]
    with pytest.raises(InvalidValueError, match="unknown split 'tset': did you mean 'test'"):
        config.problems("tset")


def test_a_curriculum_is_for_training_and_evaluations_have_all_of_it() -> None:
    config = EnvConfig(problems="curriculum:integers,linear@1-2")
    train, again = config.problems("train"), config.problems("train")
    assert isinstance(train, Curriculum)
    assert train is not again
    assert set(train.weights()) == {"integers@1", "integers@2", "linear@1", "linear@2"}
    validation: Any = config.problems("validation")
    assert [source.name for source in validation.sources] == [
        f"{family}@{level}:validation" for family in ("integers", "linear") for level in (1, 2)
    ]
    for wrong in ("curriculum:integers", "curriculum:", "curriculum:integers@2-1"):
        with pytest.raises(InvalidValueError, match="FAMILY,FAMILY@LOW-HIGH"):
            EnvConfig(problems=wrong).problems("train")


def test_training_and_testing_on_the_same_prompts_is_refused_unless_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"question": f"What is {i}+{i}?", "answer": str(2 * i)} for i in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = str(file)
    EnvConfig(problems=path).check_splits("validation", "test")
    for config in (
        EnvConfig(problems=path, test=path),
        EnvConfig(problems=path, test="train"),
        EnvConfig(problems=path, train="all"),
        EnvConfig(problems="lins", test="lins:all"),
        EnvConfig(problems={"train": rows, "test": rows[:3]}),
    ):
        with pytest.raises(SharedPromptsError, match=r"share .* prompts"):
            config.check_splits("test")
        config.replace(allow_overlap=True).check_splits("test")
    EnvConfig(problems="guess8").check_splits("validation", "test")
    EnvConfig(problems="add1:all").check_splits("test")


def test_a_mixture_is_split_part_by_part() -> None:
    source: Any = EnvConfig(problems="lins+2*add2").problems("test")
    assert [one.name for one in source.sources] == ["lins:test", "add2:test"]


def test_environments_are_made_one_or_many_with_the_policys_tokenizer() -> None:
    config = EnvConfig(problems="lins", num_turns=2)
    one: Any = config.make("test")
    assert one.unwrapped.source.name == "lins:test"
    many: Any = config.make("train", 3, num_turns=1)
    assert (many.num_envs, many.envs[0].num_turns) == (3, 1)
    assert many.metadata["autoreset_mode"] is gym.vector.AutoresetMode.DISABLED

    class Policy:
        tokenizer = train_tokenizer()

    spoken: Any = config.make("test", policy=Policy())
    assert spoken.unwrapped.dialogue.tokenizer is Policy.tokenizer
    own: Any = config.replace(tokenizer="builtin").make("test", policy=Policy())
    assert own.unwrapped.dialogue.tokenizer is not Policy.tokenizer, "what the config names wins"


def test_callables_go_by_import_path_too() -> None:
    here = f"{always_right.__module__}"
    by_path = EnvConfig(
        problems="lins",
        num_turns=2,
        stop_on_success=False,
        verifier=f"{here}:always_right",
        feedback=f"{here}:louder",
        reward_terms={"bonus": f"{here}:half_a_point"},  # type: ignore[dict-item]
    )
    env: Any = by_path.make("test")
    env.reset(seed=0)
    _, reward, _, _, info = env.step(env.action_space.sample())
    assert (reward, info["feedback"]) == (1.5, "AGAIN")
    with pytest.raises(InvalidValueError, match="verifier 'nowhere:x' cannot be imported: ModuleNotFoundError"):
        EnvConfig(problems="lins", verifier="nowhere:x").make()


def test_it_is_json_where_its_parts_are() -> None:
    here = always_right.__module__
    config = EnvConfig(
        "MathMultiTurn-v0",
        problems=[Problem("a/1", "1+1=?", ("2", "two"), hints=("small",), metadata={"level": 1})],
        train="all",
        test=Path("held_out.jsonl"),
        verifier=always_right,
        reward_terms={"overlong": 1.0, "mine": half_a_point},
        system_prompt="Be brief.",
        max_context_tokens=None,
    )
    data = json.loads(json.dumps(config.to_json()))
    assert data["verifier"] == f"{here}:always_right"
    assert data["reward_terms"] == {"overlong": 1.0, "mine": f"{here}:half_a_point"}
    assert data["test"] == "held_out.jsonl"
    again = EnvConfig.from_json(data)
    assert again.to_json() == config.to_json()
    assert again.problems("train").get(0, 0) == config.problems("train").get(0, 0)


def test_what_has_no_import_path_is_described_and_cannot_be_read_back() -> None:
    config = EnvConfig(problems="lins", verifier=lambda response, gold: True)
    data = config.to_json()
    assert list(data["verifier"]) == ["object"]
    assert "lambda" in data["verifier"]["object"]
    assert data == EnvConfig(problems="lins", verifier=config.keywords["verifier"]).to_json(), "the same each time"
    with pytest.raises(InvalidValueError, match="verifier was an object of its program"):
        EnvConfig.from_json(data)


def test_it_travels_to_other_processes() -> None:
    config = EnvConfig(problems="lins", verifier=always_right, num_turns=2, test="all")
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.make("test").unwrapped.num_turns == 2


def test_it_shows_what_was_given() -> None:
    assert repr(EnvConfig(problems="lins", test="all")) == (
        "EnvConfig('MathMultiTurnUntilCorrect-v0', problems='lins', test='all')"
    )
    assert EnvConfig(problems="lins").replace(num_turns=2, test="all") == EnvConfig(
        problems="lins", num_turns=2, test="all"
    )


@pytest.mark.parametrize("make", [gym.make, lambda env_id, **kw: gym.make_vec(env_id, num_envs=2, **kw)])
def test_gymnasiums_make_suggests_the_keyword_that_was_meant(make: Any) -> None:
    with pytest.raises(
        InvalidValueError, match="unknown keyword of the environment 'num_turn': did you mean 'num_turns'"
    ):
        make("MathMultiTurn-v0", num_turn=3)
