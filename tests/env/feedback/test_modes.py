import pickle
import re
from dataclasses import replace

import pytest

from mathturn_gym.env.feedback import FEEDBACK, TemplateFeedback
from mathturn_gym.env.feedback._registry import RIGHT_TEXT, TEXTS, WRONG_TEXT, get_feedback
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import load_problems
from mathturn_gym.problems.families import FAMILIES, Family
from mathturn_gym.types import Problem, Status, TurnContext, TurnRecord, Verdict

PROBLEM = Problem(
    "p/1", "6*7=?", "42", hints=("it is even.", "its last digit is 2."), false_hints=("it is odd.", "no.")
)
RIGHT = Verdict(Status.RIGHT, "equal", answer="42")
WRONG = Verdict(Status.WRONG, "different", answer="41")


def context(
    verdict: Verdict = WRONG,
    problem: Problem = PROBLEM,
    turn: int = 0,
    response: str | None = None,
    earlier: tuple[Verdict, ...] = (),
) -> TurnContext:
    said = f"\\boxed{{{verdict.answer}}}" if response is None else response
    records = tuple(TurnRecord("", one, "", 0.0, 0, 0) for one in earlier)
    return TurnContext(problem, turn, 5, said, earlier=records, verdict=verdict)


def say(mode: str, *args: object, **kwargs: object) -> str:
    return get_feedback(mode)(context(*args, **kwargs))  # type: ignore[arg-type]


def test_plain_has_the_original_sentences() -> None:
    assert say("plain", RIGHT) == "Congratulations! You are correct!"
    for status in (Status.WRONG, Status.NO_ANSWER, Status.UNDECIDED):
        assert say("plain", Verdict(status)) == "Unfortunately your answer is wrong. Let's try again."


def test_none_says_the_same_whatever_the_verdict() -> None:
    assert {say("none", v) for v in (RIGHT, WRONG, Verdict(Status.NO_ANSWER))} == {"Please check your answer."}


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (RIGHT, "right"),
        (WRONG, "wrong"),
        (Verdict(Status.NO_ANSWER, "no answer found"), "no_answer"),
        (Verdict(Status.UNDECIDED, "time limit"), "undecided"),
        (Verdict(Status.WRONG, "different", answer="+*+"), "unreadable"),
        (Verdict(Status.WRONG, "unevaluated", answer="6*7"), "unevaluated"),
    ],
)
def test_reason_says_why(verdict: Verdict, said: str) -> None:
    assert say("reason", verdict) == TEXTS["en"][said]
    assert say("reason:zh", verdict) == TEXTS["zh"][said]


def test_reasons_are_those_of_the_verifier() -> None:
    from mathturn_gym.verifier import Verifier

    with Verifier() as verifier:
        for response, said in (
            ("I do not know.", "no_answer"),
            (r"\boxed{6\cdot 7}", "unevaluated"),
            (r"\boxed{41}", "wrong"),
        ):
            assert say("reason", verifier.verify(response, "42")) == TEXTS["en"][said]
        for unreadable in (
            r"\boxed{\foo{3}{4}}",
            r"\boxed{+*+}",
            r"\boxed{((}",
            r"\boxed{1 +}",
        ):
            for gold in ("42", r"x+\sqrt{2}", "(1, 2)"):
                assert say("reason", verifier.verify(unreadable, gold)) == TEXTS["en"]["unreadable"], (unreadable, gold)
        assert say("reason", verifier.verify(r"\boxed{\text{the cows}}", "42")) == TEXTS["en"]["wrong"]


@pytest.mark.parametrize(
    ("answer", "gold", "said"),
    [
        ("-40", "42", "Its sign is wrong."),
        ("41", "42", "It is too small in size. 1 of its 2 digits are right."),
        ("92", "42", "It is too large in size. 1 of its 2 digits are right."),
        ("5", "42", "It is too small in size."),
        ("4", "42", "It is too small in size. It is off by a factor of more than ten."),
        ("0.3", "1/2", "It is too small in size."),
        ("0", "7", "It is too small in size."),
        ("(1, 3)", "(1, 2)", "These of its elements are right: 1."),
        ("(0.5, 9, 3)", r"\left(\frac12, 1, 3\right)", "These of its elements are right: 1, 3."),
        ("(8, 9)", "(1, 2)", "None of its elements is right."),
        ("7", "(1, 2)", "It should have 2 elements."),
        ("blue", "red", ""),
        ("x+1", "x+2", ""),
    ],
)
def test_graded_says_what_is_wrong(answer: str, gold: str, said: str) -> None:
    text = say("graded", Verdict(Status.WRONG, "different", answer=answer), Problem("p", "?", gold))
    assert text == f"{WRONG_TEXT} {said}".rstrip()


def test_hints_rise_with_the_turn_and_the_last_one_stays() -> None:
    assert [say("hint", WRONG, turn=k) for k in range(3)] == [
        f"{WRONG_TEXT} Hint: {hint}" for hint in ("it is even.", "its last digit is 2.", "its last digit is 2.")
    ]
    assert say("hint", RIGHT) == RIGHT_TEXT
    assert say("hint", WRONG, Problem("p", "?", "1")) == WRONG_TEXT
    assert say("hint-flipped", WRONG) == f"{WRONG_TEXT} Hint: it is odd."


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("So 12*3 + 4 = 41.", "You wrote 12*3+4 = 41. A calculator says 12*3+4 = 40."),
        (r"$\frac{1}{2} \cdot 3 = 2$", "You wrote (1/2)*3 = 2. A calculator says (1/2)*3 = 3/2."),
        ("(3+4) * 2 =", "A calculator says (3+4)*2 = 14."),
        ("first 1+1=2, then 2^10 = 1000", "You wrote 2^10 = 1000. A calculator says 2^10 = 1024."),
        ("(so (3+4=7)", "You wrote 3+4 = 7. A calculator says 3+4 = 7."),
        ("-3 - 4 = -7", "You wrote -3-4 = -7. A calculator says -3-4 = -7."),
        ("x = 5", TEXTS["en"]["tool_none"]),
        ("x + 3*4 = 7", TEXTS["en"]["tool_none"]),
        ("2x+3 = 7", TEXTS["en"]["tool_none"]),
        ("1/0 = 1", TEXTS["en"]["tool_none"]),
        ("0^(-1) = 1", TEXTS["en"]["tool_none"]),
        ("9^9^9 = 1", TEXTS["en"]["tool_none"]),
        ("2^64^64 = 1", TEXTS["en"]["tool_none"]),
        ("(((((1+1 = 2", "You wrote 1+1 = 2. A calculator says 1+1 = 2."),
        ("__import__('os') + 1 = 2", TEXTS["en"]["tool_none"]),
        ("", TEXTS["en"]["tool_none"]),
    ],
)
def test_tool_repeats_the_last_calculation(response: str, said: str) -> None:
    assert say("tool", WRONG, response=response) == f"{WRONG_TEXT} {said}"


def test_tool_is_bounded_in_time_whatever_is_written() -> None:
    import time

    hostile = (
        "(" * 4_000,
        "1" * 4_000,
        "1 " * 2_000,
        "1+" * 2_000 + "=",
        "9^" * 40 + "9 =",
        "-" * 4_000 + "1 =",
        "=" * 4_000,
    )
    start = time.process_time()
    for text in hostile:
        assert WRONG_TEXT in say("tool", WRONG, response=text)
    assert time.process_time() - start < 20  # quadratic work over the whole text would take minutes


def test_controls() -> None:
    assert (say("flipped", WRONG), say("flipped", RIGHT)) == (RIGHT_TEXT, WRONG_TEXT)
    assert say("delayed", RIGHT) == TEXTS["en"]["neutral"]
    assert say("delayed", RIGHT, earlier=(RIGHT, WRONG)) == WRONG_TEXT
    assert say("delayed", WRONG, earlier=(WRONG, RIGHT)) == RIGHT_TEXT


def test_random_is_a_fair_coin_that_repeats_itself_and_ignores_the_verdict() -> None:
    said = [say("random", WRONG, response=str(i)) for i in range(1_000)]
    assert said == [say("random", RIGHT, response=str(i)) for i in range(1_000)]
    assert 430 < said.count(RIGHT_TEXT) < 570  # more than four standard errors
    hints = [say("hint-random", WRONG, response=str(i)) for i in range(1_000)]
    assert 430 < sum("even" in hint for hint in hints) < 570


MODES = sorted(FEEDBACK)
BLIND = [mode for mode in MODES if not mode.startswith(("hint", "graded", "above"))]


def wrong_contexts() -> list[TurnContext]:
    problems = [Family(family, level).get(0, i) for family in FAMILIES for level in (1, 4) for i in range(3)]
    problems += [load_problems("guess8").get(0, i) for i in range(20)]
    return [
        context(Verdict(Status.WRONG, "different", answer=answer, gold=problem.gold[0]), problem, turn)
        for problem in problems
        for answer in ("987", "-1", "(7, 9)", "x")
        if answer not in problem.gold
        for turn in (0, 1, 2)
    ]


@pytest.mark.parametrize("mode", BLIND)
def test_what_does_not_reveal_the_answer_does_not_depend_on_it(mode: str) -> None:
    """The strongest form: with another gold answer and the same verdict, the text is the same."""
    for found in wrong_contexts():
        other = replace(
            found, problem=replace(found.problem, gold=("123456",)), verdict=replace(found.judged, gold="123456")
        )
        assert get_feedback(mode)(found) == get_feedback(mode)(other)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in BLIND])
def test_what_reveals_something_does_not_say_the_answer(mode: str) -> None:
    """A gold answer is a text of its own in no feedback: hints and grades tell about it without naming it."""
    for found in wrong_contexts():
        if found.problem.metadata.get("family", "") == "guess8":
            continue  # its hints name the half, so that a bound may be the number itself
        gold = found.problem.gold[0]
        if len(gold) < 2:
            continue  # one digit is in any count
        said = get_feedback(mode)(found)
        assert not re.search(rf"(?<![\w.]){re.escape(gold)}(?![\w.])", said), (found.problem.id, said)


def test_every_mode_speaks_every_language_it_says_it_does() -> None:
    for mode in MODES:
        for verdict in (
            RIGHT,
            WRONG,
            Verdict(Status.NO_ANSWER, "no answer found"),
            Verdict(Status.UNDECIDED, "time limit"),
        ):
            said = say(mode, verdict, earlier=(WRONG,))
            assert said.strip()
            assert "{" not in said.replace(r"\boxed{}", "")
            spoken = said.split("Hint")[0].split("提示")[0]
            assert any("\u4e00" <= letter <= "\u9fff" for letter in spoken) == mode.endswith(":zh")
    assert TEXTS["en"].keys() == TEXTS["zh"].keys()


def test_feedbacks_can_be_sent_to_other_processes() -> None:
    for mode in MODES:
        assert pickle.loads(pickle.dumps(get_feedback(mode)))(context()) == say(mode)  # made here, a line above


def test_unknown_names_and_things_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="did you mean 'graded'"):
        get_feedback("gradded")
    with pytest.raises(InvalidValueError, match="must be a name or a function of a TurnContext"):
        get_feedback(3)  # type: ignore[arg-type]
    assert get_feedback(str) is str


class TestTemplates:
    def test_fields_are_filled(self) -> None:
        said = TemplateFeedback(
            "Yes.", "{{{answer}}} is not it ({reason}); turn {turn}, {turns_left} left. {hint}", "Write!"
        )
        assert said(context()) == "{41} is not it (different); turn 1, 4 left. it is even."
        assert said(context(RIGHT)) == "Yes."
        assert said(context(Verdict(Status.NO_ANSWER))) == "Write!"
        assert (
            said(context(Verdict(Status.UNDECIDED, "time limit")))
            == "{} is not it (time limit); turn 1, 4 left. it is even."
        )

    def test_what_the_model_wrote_is_not_a_template(self) -> None:
        said = TemplateFeedback("Yes.", "Not {answer}.")
        assert said(context(Verdict(Status.WRONG, answer="{turn}{0.__class__}"))) == "Not {turn}{0.__class__}."

    @pytest.mark.parametrize(
        ("right", "wrong", "message"),
        [
            ("Yes.", "{gold}", "unknown field of the template wrong 'gold'"),
            ("{turn", "No.", "right is no template"),
            ("Yes.", "{turn:>9}", "no format"),
            ("Yes.", "{turn!r}", "no format"),
            ("Yes.", "{}", "unknown field"),
            (None, "No.", "right must be a template, got None"),
        ],
    )
    def test_impossible_templates_are_refused_at_once(self, right: str, wrong: str, message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            TemplateFeedback(right, wrong)
