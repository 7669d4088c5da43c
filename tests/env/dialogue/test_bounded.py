from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from mathturn_gym.env.dialogue import Dialogue, _dialogue
from mathturn_gym.env.dialogue._bounded import bounded
from mathturn_gym.errors import ChatTemplateError
from mathturn_gym.testing import make_tokenizer


def spin() -> None:
    while True:
        pass


def test_what_never_ends_is_stopped_and_leaves_no_thread() -> None:
    with pytest.raises(TimeoutError, match=r"more than 0\.2 s"):
        bounded(spin, 0.2)
    for _ in range(200):
        if not any(thread.name == "mathturn-bounded" for thread in threading.enumerate()):
            break
        time.sleep(0.05)
    assert not any(thread.name == "mathturn-bounded" for thread in threading.enumerate())


def test_waiting_is_no_work() -> None:
    def wait() -> int:
        time.sleep(0.5)
        return 3

    assert bounded(wait, 0.2) == 3


def test_its_exception_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 / 0, 5.0)


ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
LATE = (
    f"{{% for m in messages %}}{{{{ m.content }}}}{{% if messages | length > 8 %}}{ENDLESS}{{% endif %}}{{% endfor %}}"
)


@pytest.mark.parametrize("template", [ENDLESS, LATE])
def test_an_endless_chat_template_is_an_error_in_bounded_time(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dialogue, "_PROBE_SECONDS", 0.5)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ChatTemplateError, match=r"did not write a few short messages within 0\.5 s of processor time"):
        Dialogue(tokenizer)


@pytest.mark.parametrize(
    "template",
    ["{{ 1 / 0 }}", "{{ range(10**9) | list }}", "{{ messages[99].content.x }}", "{{ ''.__class__.__mro__ }}{{ x() }}"],
)
def test_a_failing_chat_template_is_named(template: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ChatTemplateError, match="cannot render the roles"):
        Dialogue(tokenizer)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """This process may have a GiB more than it has now, as under `ulimit -v`."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        pages = int(file.read().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc; macOS does not enforce the limit")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("text", ["{{ 'a' * 10**10 }}", "{{ '%010000000000d' | format(1) }}", "{{ [1] * 10**10 }}"])
def test_a_template_that_asks_for_more_memory_than_there_is_is_an_error(text: str) -> None:
    """The limit is the process's own: one expression asks at once, so that nothing of ours could stop it in between."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = text
    with pytest.raises(ChatTemplateError, match=r"cannot render the roles \[.*\]: MemoryError"):
        Dialogue(tokenizer)
