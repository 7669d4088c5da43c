"""The options of an environment: the same for every command, none missing."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.cli._options import NOT_OFFERED, OPTIONS, PANELS, RARE, EnvOptions, with_env_options
from mathturn_gym.cli.app import app
from mathturn_gym.env.config import DEFAULT_ENV, OWN_FIELDS, EnvConfig, env_parameters
from mathturn_gym.errors import InvalidValueError

COMMANDS = ("train", "eval", "play", "demo", "compare", "serve")


def test_every_keyword_of_the_environment_is_an_option() -> None:
    offered = set(OPTIONS) - {"question_column", "answer_column"}
    elsewhere = {"train", "validation", "test", "allow_overlap", "fields", "shuffle"}  # --split, --set, the columns
    assert offered | set(NOT_OFFERED) == {*env_parameters(DEFAULT_ENV), *OWN_FIELDS} - elsewhere
    assert all(text.endswith((".", "}'.")) for _, text, _ in OPTIONS.values()), "each says in a sentence what it is"
    kinds = {name: kind for name, (kind, _, _) in OPTIONS.items() if kind is not str}
    assert kinds == {
        "skip_bad_rows": bool, "num_turns": int, "max_completion_tokens": int, "max_context_tokens": int,
        "max_episode_tokens": int, "max_episode_seconds": float, "stop_on_success": bool, "reward_scaling": float,
        "reward_bias": float, "reward_terms": list[str],
    }  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_them(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [command, "--help"]).output
    assert "--env-set" in shown
    for name, (_, _, spellings) in OPTIONS.items():
        for spelling in spellings or (f"--{name.replace('_', '-')}",):
            if name in RARE:
                assert spelling not in shown, spelling
                assert name in shown, "under --env-set"
            else:
                assert spelling in shown, spelling


def test_every_option_stands_in_one_group_at_most() -> None:
    names = [name for group in PANELS.values() for name in group]
    assert len(names) == len(set(names))
    assert set(names) | set(RARE) <= set(OPTIONS)


def parsed(*args: str) -> EnvOptions:
    import typer

    seen: list[EnvOptions] = []

    @with_env_options
    def command(env: EnvOptions, other: int = 3) -> None:
        seen.append(env)

    one = typer.Typer()
    one.command()(command)
    CliRunner().invoke(one, list(args), catch_exceptions=False)
    return seen[0]


def test_what_is_not_given_stays_what_it_was() -> None:
    base = EnvConfig(problems="lins", num_turns=2, system_prompt="Be brief.")
    assert parsed().given == {}
    assert parsed().config(base) == base
    given = parsed("--num-turns", "3", "--problems", "add2", "--no-stop-on-success")
    assert given.config(base) == base.replace(num_turns=3, problems="add2", stop_on_success=False)
    assert given.settings() == {"env.num_turns": 3, "env.problems": "add2", "env.stop_on_success": False}


def test_columns_and_reward_terms() -> None:
    given = parsed(
        "--question-column", "q", "--answer-column", "a", "--reward-term", "overlong=0.5", "--reward-term", "mine=m:f"
    ).given
    assert given == {"fields": {"prompt": "q", "gold": "a"}, "reward_terms": {"overlong": 0.5, "mine": "m:f"}}
    wrong: list[tuple[list[str], Any]] = [
        (["--answer-column", "a"], "--answer-column needs --question-column"),
        (["--reward-term", "=3"], "--reward-term must be NAME=WEIGHT"),
    ]
    for args, message in wrong:
        with pytest.raises(InvalidValueError, match=message):
            parsed(*args)


def test_variables_of_the_chat_template_are_json() -> None:
    given = parsed("--chat-template-kwargs", '{"enable_thinking": false}', "--history", "template").given
    assert given == {"chat_template_kwargs": {"enable_thinking": False}, "history": "template"}
    with pytest.raises(InvalidValueError, match="--chat-template-kwargs must be a JSON object"):
        parsed("--chat-template-kwargs", "enable_thinking=false")


def test_any_keyword_can_be_set_and_the_rare_ones_keep_their_options() -> None:
    given = parsed("--env-set", "reward_bias=0.5", "--env-set", "tokenizer=mine", "--reward-scaling", "2").given
    assert given == {"reward_scaling": 2.0, "reward_bias": 0.5, "tokenizer": "mine"}
    with pytest.raises(InvalidValueError, match="--env-set must be FIELD=VALUE"):
        parsed("--env-set", "reward_bias")
    with pytest.raises(InvalidValueError, match="did you mean 'num_turns'"):
        parsed("--env-set", "num_turn=1").config(EnvConfig())
