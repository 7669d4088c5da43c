"""`load_policy`: every kind of name, what a run remembers, and names and folders that are mistakes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_tiny_model, train_tokenizer

from mathturn_gym.base.import_paths import names_code
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.errors import ChatTemplateError, CheckpointError, InvalidValueError, MissingDependencyError
from mathturn_gym.policies import BUILTIN_PATH, OpenAIPolicy, PolicyConfig
from mathturn_gym.policies.config import MODEL_SCHEMES
from mathturn_gym.testing import RandomPolicy, ScriptedPolicy
from mathturn_gym.types import Ids
from mathturn_gym.wrappers import CausalLMPolicy, load_policy, loading
from mathturn_gym.wrappers.loading import PolicyKind

# What this release of peft asks of this release of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
PROMPT: Ids = np.array([5, 80, 9])


def sample(policy: Any, rows: int = 4) -> list[tuple[list[int], list[float]]]:
    found = policy.complete([PROMPT] * rows, max_tokens=[6] * rows, seeds=range(rows))
    return [(completion.ids.tolist(), np.round(completion.logprobs, 4).tolist()) for completion in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The built-in model, as a folder that a test may change."""
    shutil.copytree(BUILTIN_PATH, tmp_path / "model")
    return tmp_path / "model"


# ---- names


def test_builtin_is_the_models_folder() -> None:
    policy = load_policy("builtin")
    assert isinstance(policy, CausalLMPolicy)
    assert (policy.scheduler, policy.device.type, policy.grammar) == ("streaming", "cpu", None)
    assert len(policy.tokenizer) == policy.vocab_size  # type: ignore[arg-type]
    assert sample(policy) == sample(load_policy(str(BUILTIN_PATH))) == sample(load_policy(f"hf:{BUILTIN_PATH}"))


def test_options_reach_the_policy() -> None:
    policy = load_policy(
        "builtin", temperature=0.5, top_k=7, top_p=0.9, min_p=0.01, max_batch_size=3, dtype="bfloat16",
        options={"refill": 0.5, "raw_logprobs": True, "cache_bytes": 0},
    )  # fmt: skip
    assert (policy.sampling.temperature, policy.sampling.top_k) == (0.5, 7)
    assert (policy.sampling.top_p, policy.sampling.min_p) == (0.9, 0.01)
    assert (policy.max_batch_size, policy.model.dtype) == (3, torch.bfloat16)
    assert policy.complete([PROMPT], max_tokens=[2])[0].raw_logprobs is not None
    assert policy.cached_bytes == 0


def test_a_config_can_be_changed_in_passing() -> None:
    config = PolicyConfig("builtin", temperature=0.5)
    assert load_policy(config).sampling.temperature == 0.5
    assert load_policy(config, temperature=0.0).sampling.temperature == 0.0


def test_random_weights_are_those_of_the_seed() -> None:
    first, again, other = (load_policy("builtin", init="random", seed=seed) for seed in (4, 4, 5))
    assert sample(first) == sample(again) != sample(other)
    expected = make_tiny_model(train_tokenizer(), seed=4).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in first.model.state_dict().items())


def test_random_speaks_the_ids_of_its_tokenizer() -> None:
    policy = load_policy("random", seed=3)
    assert isinstance(policy, RandomPolicy)
    assert policy.vocab_size == len(policy.tokenizer)
    assert sample(policy) == sample(load_policy("random", seed=3))


def test_a_server_is_asked_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATHTURN_API_KEY", "a-secret-key")
    policy = load_policy(
        "http://127.0.0.1:1,http://127.0.0.1:2", tokenizer="builtin", temperature=0.5, max_batch_size=9,
        options={"retries": 0},
    )  # fmt: skip
    with policy:
        assert isinstance(policy, OpenAIPolicy)
        assert policy.urls == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        assert policy.sampling.temperature == 0.5
        assert len(policy.tokenizer) == 405
    with pytest.raises(InvalidValueError, match="needs tokenizer="):
        load_policy("http://127.0.0.1:1")


def test_vllm_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match="pip install vllm"):
        load_policy(f"vllm:{BUILTIN_PATH}")


def test_a_callable_gives_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policies.py").write_text(
        textwrap.dedent("""
            from mathturn_gym.env.dialogue import Dialogue
            from mathturn_gym.testing import ScriptedPolicy

            def say(text="7"):
                policy = ScriptedPolicy([text], Dialogue("builtin"))
                policy.tokenizer = Dialogue("builtin").tokenizer
                return policy

            ready = ScriptedPolicy(["9"], Dialogue("builtin"))
            nothing = 3

            def gives_nothing():
                return object()
            """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    tokenizer = load_policy("builtin").tokenizer
    made = load_policy("my_policies:say", options={"text": "11"})
    assert isinstance(made, ScriptedPolicy)
    assert tokenizer.decode(made.complete([PROMPT], max_tokens=[9])[0].ids).startswith("11")
    ready = load_policy("my_policies:ready")
    assert ready.tokenizer is None
    assert tokenizer.decode(ready.complete([PROMPT], max_tokens=[9])[0].ids).startswith("9")
    assert load_policy("my_policies:ready", tokenizer="builtin").tokenizer is not None
    for name, message in (
        ("my_policies:sya", "cannot be imported.*sya"),
        ("my_policies:nothing", "neither a policy nor callable"),
        ("my_policies:gives_nothing", "has no complete"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            load_policy(name)


@pytest.mark.parametrize(
    "name",
    ["evil.:x", "evil..a:x", "evil.1:x", "evil:x.", "evil:x.1", "evil:1x", "evil:", ":evil", "evil:x:y", "evil:x y",
     "evil.é:x", "evil:é", " evil:x", "evil:x\n", "evil/a:x"],
)  # fmt: skip
def test_what_nearly_is_an_import_path_imports_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loader imports is among what a run folder's gate calls code."""
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path(__file__).with_name('witness').touch()\nx = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidValueError, match="unknown policy"):
        load_policy(name)
    assert not (tmp_path / "witness").exists()
    assert names_code(name, MODEL_SCHEMES) or ":" not in name
    with pytest.raises(InvalidValueError, match="neither a policy nor callable"):
        load_policy("evil:x")
    assert (tmp_path / "witness").exists(), "the module would have said so"
    sys.modules.pop("evil")


def test_a_known_scheme_is_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {scheme.removesuffix(":") for scheme in loading.SCHEMES if "/" not in scheme} == set(MODEL_SCHEMES)
    for name in ("hf:gpt2", "vllm:smollm2", "http://a:1", "builtin", "ORG/NAME"):
        assert not names_code(name, MODEL_SCHEMES)
    monkeypatch.setitem(loading.SCHEMES, "sglang:", PolicyKind("sglang:", lambda config, place: place, ("lora",)))
    assert load_policy("sglang:my/model") == "my/model"
    with pytest.raises(InvalidValueError, match="lora has no meaning for sglang: policies"):
        load_policy("sglang:my/model", lora={"r": 4})


# ---- what a run remembers


def run_folder(path: Path, **options: Any) -> Path:
    """What training leaves: a checkpoint in a run's folder."""
    load_policy("builtin", **options).save_pretrained(path / "checkpoint")
    return path


def test_a_run_brings_back_how_it_sampled(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", temperature=0.6, top_k=5, grammar="boxed-integer")
    policy = load_policy(str(run))
    assert (policy.sampling.temperature, policy.sampling.top_k, policy.grammar) == (0.6, 5, "boxed-integer")
    expected = load_policy("builtin", temperature=0.6, top_k=5, grammar="boxed-integer")
    assert sample(policy) == sample(expected) == sample(load_policy(str(run / "checkpoint")))
    assert sample(policy) != sample(load_policy("builtin"))


def test_what_is_asked_for_goes_before_what_a_run_remembers(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", temperature=0.6, grammar="boxed-integer")
    policy = load_policy(PolicyConfig(str(run), temperature=1.0, grammar="none"))
    assert (policy.sampling.temperature, policy.grammar) == (1.0, None)
    assert sample(policy) == sample(load_policy("builtin"))


def test_training_leaves_a_run_that_samples_as_it_did(tmp_path: Path) -> None:
    from mathturn_gym.baselines import load_task, train

    settings = {"temperature": 0.9, "evaluation.episodes": 0, "evaluation.test_episodes": 0, "minibatches": 1}
    config = load_task("add1").config(settings={**settings, "batch_episodes": 64}, budget={"episodes": 64})
    result = train(config, run_dir=tmp_path / "run")
    again = load_policy(str(tmp_path / "run"))
    assert (again.sampling.temperature, again.grammar) == (0.9, "boxed-integer")
    assert sample(again) == sample(result.policy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must be an object"),
        ("{", "policy.json"),
        ('{"temprature": 1}', "did you mean 'temperature'"),
        ('{"temperature": -1}', "temperature must be"),
        ("[" * 100_000, "policy.json"),
    ],
)
def test_a_broken_memory_is_named(folder: Path, content: str, message: str) -> None:
    (folder / "policy.json").write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_policy(str(folder))
    assert "policy.json" in str(caught.value)


# ---- adapters


def test_a_new_adapter_changes_nothing_and_is_drawn_from_the_seed() -> None:
    pytest.importorskip("peft")
    policy, again, other = (load_policy("builtin", lora={"r": 4}, seed=seed) for seed in (1, 1, 2))
    assert sample(policy) == sample(load_policy("builtin"))

    def adapter(one: Any) -> dict[str, torch.Tensor]:
        return {name: p for name, p in one.model.named_parameters() if p.requires_grad}

    trained = adapter(policy)
    assert trained
    assert all("lora" in name for name in trained)
    assert all(torch.equal(p, adapter(again)[name]) for name, p in trained.items())
    assert not all(torch.equal(p, adapter(other)[name]) for name, p in trained.items())


def changed(policy: Any) -> Any:
    """The policy, after something that stands for training."""
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)
    policy.version = 1
    return policy


def test_an_adapter_is_saved_alone_and_found_with_its_base(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    policy = changed(load_policy("builtin", lora={"r": 4}, temperature=0.8))
    policy.save_pretrained(tmp_path / "run" / "checkpoint")
    saved = {file.name for file in (tmp_path / "run" / "checkpoint").iterdir()}
    assert "adapter_model.safetensors" in saved
    assert "model.safetensors" not in saved
    again = load_policy(str(tmp_path / "run"))
    assert sample(again) == sample(policy) != sample(load_policy("builtin", temperature=0.8))
    assert any(p.requires_grad for p in again.model.parameters())  # training can go on
    beside = load_policy("builtin", adapter=str(tmp_path / "run" / "checkpoint"), temperature=0.8)
    assert sample(beside) == sample(policy)


def test_a_mask_works_around_an_adapter() -> None:
    pytest.importorskip("peft")
    adapted = changed(load_policy("builtin", lora={"r": 4}, grammar="boxed-integer"))
    from mathturn_gym.policies import answer_ids

    allowed = set(answer_ids(adapted.tokenizer))
    assert {i for ids, _ in sample(adapted, 16) for i in ids} <= allowed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": {"rank": 4}}, "unknown lora setting 'rank'"),
        ({"lora": {"r": 4, "target_modules": ["nowhere"]}}, "does not fit the model"),
        ({"lora": {"r": -4}}, "does not fit the model"),
    ],
)
def test_adapters_that_cannot_be_made(options: dict[str, Any], message: str) -> None:
    pytest.importorskip("peft")
    with pytest.raises((InvalidValueError, CheckpointError), match=message):
        load_policy("builtin", **options)


def test_adapters_that_cannot_be_loaded(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    with pytest.raises(CheckpointError, match="no adapter can be loaded from 'nowhere/x'"):
        load_policy("builtin", adapter="nowhere/x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"holds no adapter_model\.safetensors: it is empty"):
        load_policy("builtin", adapter=str(tmp_path / "empty"))
    load_policy("builtin", lora={"r": 4}).save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no adapter can be loaded"):
        load_policy(str(tmp_path / "saved"))


@pytest.mark.parametrize("base", ["os:getcwd", "http://127.0.0.1:1", "vllm:x"])
def test_an_adapters_folder_does_not_choose_what_is_executed_or_asked(tmp_path: Path, base: str) -> None:
    pytest.importorskip("peft")
    load_policy("builtin", lora={"r": 4}).save_pretrained(tmp_path)
    memory = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps({**memory, "model": base}))
    with pytest.raises(CheckpointError, match="neither a folder nor a hub name"):
        load_policy(str(tmp_path))


# ---- mistakes


@pytest.mark.usefixtures("nothing_is_asked")
@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("biultin", "builtin"),
        ("randm", "random"),
        ("vlm:folder", "vllm:folder"),
        ("runs/demoo", "runs/demo"),
        ("./run/demo", "runs"),
        ("nowhere/at/all", None),
        ("gpt2", "hf:gpt2"),
    ],
)
def test_a_misspelt_name_fails_at_once(
    name: str, nearest: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValueError, match="unknown policy") as caught:
        load_policy(name)
    assert ("did you mean" in str(caught.value)) == (nearest is not None)
    assert nearest is None or f"did you mean {nearest!r}" in str(caught.value)


@pytest.mark.usefixtures("nothing_is_asked")
@pytest.mark.parametrize("name", ["hf:no-such-model", "nobody/no-such-model"])
def test_offline_a_hub_name_fails_before_anything_is_asked(name: str) -> None:
    """Where there is a network, `tests/base/test_model_folders.py` counts the questions: one, and no retry."""
    with pytest.raises(CheckpointError, match="no-such-model"):
        load_policy(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "bogus"}, "device 'bogus' cannot be used here"),
        ({"options": {"refil": 0.1}}, "unknown policy option 'refil': did you mean 'refill'"),
        ({"options": {"temperature": 0.1}}, "temperature is a field of PolicyConfig"),
        ({"attention": "flash_attention_9"}, "attention must be one of .*flash_attention_9"),
    ],
)
def test_options_that_are_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidValueError, CheckpointError), match=message):
        load_policy("builtin", **changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("random", {"temperature": 0.5}),
        ("random", {"init": "random"}),
        ("http://127.0.0.1:1", {"grammar": "boxed-integer"}),
        ("vllm:x", {"lora": {"r": 4}}),
    ],
)
def test_an_option_that_would_do_nothing_is_an_error(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=f"{next(iter(changes))}.* has no meaning for"):
        load_policy(name, **changes)


def test_folders_without_a_model_say_what_they_hold(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"holds no config\.json.*it is empty"):
        load_policy(str(tmp_path / "empty"))
    with pytest.raises(CheckpointError, match="is a file"):
        load_policy(str(folder / "config.json"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"holds no weights.*pickled weights are not opened.*pytorch_model\.bin"):
        load_policy(str(folder))
    (folder / "pytorch_model.bin").rename(folder / "model.gguf")
    with pytest.raises(CheckpointError, match="GGUF"):
        load_policy(str(folder))


@pytest.mark.parametrize("broken", ["empty", "truncated", "lacking", "garbage config", "unknown architecture"])
def test_broken_checkpoints_are_checkpoint_errors(folder: Path, broken: str) -> None:
    from safetensors.torch import load_file, save_file

    weights, config = folder / "model.safetensors", folder / "config.json"
    if broken == "empty":
        weights.write_bytes(b"")
    elif broken == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif broken == "lacking":
        tensors = load_file(weights)
        del tensors["model.norm.weight"]
        save_file(tensors, weights)
    elif broken == "garbage config":
        config.write_bytes(b"\xff\xfe{")
    else:
        config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "nonesuch"}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight" if broken == "lacking" else "no .* can be loaded"):
        load_policy(str(folder))


def test_tokenizers_that_are_mistakes(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match="tokenizer 'nowhere/at/all' does not load"):
        load_policy("builtin", tokenizer="nowhere/at/all")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    policy = load_policy(str(folder))
    with pytest.raises(ChatTemplateError, match="has no chat template: set"):
        Dialogue(policy.tokenizer)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer can be loaded.*give tokenizer="):
        load_policy(str(folder))


def test_a_classic_run_says_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "policy.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="load_classic"):
        load_policy(str(tmp_path))


# ---- nothing from outside is executed


def hostile(folder: Path, witness: Path) -> None:
    """Gives a model's folder Python of its own for its config, its model and its tokenizer."""
    code = f"open({str(witness)!r}, 'w').write('executed')\nclass Odd:\n    pass\n"
    for name in ("configuration_odd", "modeling_odd", "tokenization_odd"):
        (folder / f"{name}.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "odd",
        "auto_map": {"AutoConfig": "configuration_odd.Odd", "AutoModelForCausalLM": "modeling_odd.Odd"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Odd", "auto_map": {"AutoTokenizer": ["tokenization_odd.Odd", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_folders_own_python_is_never_run_and_nobody_is_asked(folder: Path, tmp_path: Path) -> None:
    hostile(folder, tmp_path / "witness")
    calls = [
        "load_policy(sys.argv[1])",
        "load_policy(sys.argv[1], tokenizer='builtin')",
        "load_policy('builtin', tokenizer=sys.argv[1])",
        "load_policy(sys.argv[1], init='random', tokenizer='builtin')",
        "load_policy('builtin').update_weights(sys.argv[1])",
    ]
    # One process for all of them: each would import torch and transformers.
    script = (
        "import sys\nfrom mathturn_gym.wrappers import load_policy\nfrom mathturn_gym.errors import MathTurnError\n"
        + "".join(
            f"try:\n    {call}\nexcept MathTurnError as error:\n    print({f'refused {call}:'!r}, error)\n"
            for call in calls
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        input="y\n" * 100,  # what would answer transformers' question
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert not (tmp_path / "witness").exists()
    assert "[y/N]" not in done.stdout + done.stderr
    assert [call for call in calls if f"refused {call}:" not in done.stdout] == [], done.stderr


def test_every_from_pretrained_of_the_package_refuses_foreign_code() -> None:
    """Whoever adds a call must say so too."""
    root = Path(__file__).resolve().parents[2]
    files = [*root.glob("mathturn_gym/**/*.py"), *root.glob("benchmarks/*.py"), *root.glob("experiments/*.py")]
    calls = [
        (file.name, line.strip())
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if ".from_pretrained(" in line or ".from_config(" in line
    ]
    ours = ("CausalLMPolicy.", "policy.from_pretrained")
    foreign = [(file, line) for file, line in calls if not any(name in line for name in ours)]
    assert foreign
    for file, line in foreign:
        assert "trust_remote_code=False" in line or "kwargs" in line or file == "models.py", f"{file}: {line}"
