"""What other parts of the package ask about an answer, without a gold to compare it with."""

from __future__ import annotations

from mathturn_gym.verifier.reading._prepared import MAX_ANSWER, prepare

__all__ = ["answer_key", "is_readable"]


def answer_key(answer: str) -> str:
    r"""The canonical form of an answer: two texts with one key are one answer.

    The value of a literal number as a reduced fraction, the words of a text in lower case, the letter of a choice, and
    otherwise the text in one spelling without the spaces that separate nothing. Answers with different keys may still
    be equal as mathematics: that is a verifier's work, not a key's.

    Args:
        answer: The answer as it was taken from a response (`Verdict.answer`).

    >>> [answer_key(text) for text in (" 0.50", "\\frac{1}{2}", "1,234", "1234.0", "x + 1", "\\text{Yes}")]
    ['1/2', '1/2', '1234', '1234', 'x+1', 'yes']
    """
    if len(answer) > MAX_ANSWER:
        return "".join(answer.split())
    read = prepare(answer)
    if read.value is not None:
        return str(read.value)
    return read.choice or read.word or read.squeezed


def is_readable(answer: str) -> bool:
    """Whether a text is mathematics, words or a choice to us, whatever the gold answer is."""
    if len(answer) > MAX_ANSWER:
        return False
    read = prepare(answer)
    return read.value is not None or bool(read.readings) or read.word is not None or read.choice is not None
