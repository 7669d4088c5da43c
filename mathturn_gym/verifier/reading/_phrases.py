r"""The words around a value: which of them introduce it, which say what it counts, and which change it.

In front of a value the grammar is closed: a word that is not known to introduce a value may change it, as "half of" does.
Behind a value any noun may stand, since anything can be counted; the words that change a value are listed, and those
with a meaning of their own ("million", "squared", "half of") are computed.
"""

from __future__ import annotations

import re
from fractions import Fraction

from mathturn_gym.verifier.reading._lexer import listed
from mathturn_gym.verifier.reading._numbers import is_unit

SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "fourth": 4,
    "quarter": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
}
PARTS |= {"ninth": 9, "tenth": 10, "twelfth": 12, "hundredth": 100, "thousandth": 1000}
PARTS |= {f"{name}s": value for name, value in PARTS.items() if name[-1] != "s"}


# Before a value: a closed grammar. What is asked is named by these words, in front of "is" or a sign of equality.
_FILLERS = listed(
    """
    a an ans in the of to exactly precisely just simply total answer answers final result value so thus hence therefore
    then and equal overall altogether there it this that we i get have find obtain conclude indeed finally now
    approximately usd dollar dollars euro euros
    """
)
_ASKED = listed(
    """
    he she they you i could can needed necessary a an the this that its their his her your our my these those such and so thus hence therefore then finally in of
    for to on between per each all every one there it we final correct required requested desired total largest
    smallest greatest least minimum maximum minimal maximal highest lowest possible exact numerical new original
    whole simplified shaded resulting common expected average first second third last next overall only unique
    distinct positive real integer integers equivalent simplest given sought combined remaining initial actual
    current full entire general particular complete main lateral inner outer answer answers result results value
    values sum product number numbers amount area areas perimeter volume length lengths width height depth radius
    diameter circumference distance speed velocity rate time times age ages price cost costs profit probability
    probabilities chance odds ratio percentage percent fraction proportion count quantity angle angles measure
    measures size slope intercept solution solutions root roots zero zeros min max remainder quotient difference
    mean median mode range variance deviation expectation determinant degree rank dimension side sides edge edges
    base expression function equation equations derivative integral limit series term terms coefficient constant
    digit digits units unit day days year years week weeks month months hour hours minute minutes seconds weight
    mass temperature score money savings salary income revenue budget discount tax tip interest balance bill fee
    capacity surface point points coordinate coordinates vertex center centre intersection line circle rectangle
    triangle sphere cylinder cone polygon hypotenuse leg diagonal altitude domain set interval matrix vector norm
    index order period frequency amplitude phase energy power force work pressure density charge voltage resistance
    acceleration momentum wavelength people students children kids men women boys girls workers apples oranges books
    pages cards coins marbles balls boxes bags bottles cups pieces items objects elements members ways outcomes
    combinations permutations arrangements subsets pairs triples tuples paths choices possibilities factors divisors
    multiples primes cars miles kilometers meters feet inches dollars cents pounds grams kilograms liters gallons
    trips games questions problem question problems
    """
)
_COUNTS = re.compile(r"\b(?:number|amount|count|quantity|total)\s+(?:number\s+)?of\s+((?:[a-z]+\s*){1,6})$")
_COPULA = re.compile(
    r"(?:\b(?:is|are|was|were|be|equals?|becomes?|has|have|had|needs?|takes?|costs?|gives?|yields?|get|gets|got)\b(?:\s+equal\s+to\b)?|=|:|：)\s*"
)
_SENTENCE_WORD = re.compile(r"[a-z']+|[^\sa-z']+")
_NAME = re.compile(
    r"[a-zA-Z](?:_\{?\w+\}?)?'*|[A-Z]{2,12}|\\(?:angle|triangle|alpha|beta|gamma|theta|phi|lambda|mu|sigma|Delta)"
)

# After a value: counted things, whatever they are called. These words are none: they change a value, or say how sure it is.
_CHANGES = listed(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds thousand thousands
    million millions billion billions trillion trillions quadrillion quadrillions zillion zillions googol grand mille lac lacs myriad myriads kidding joke joking hoax lacks lacking anti ex lakh lakhs
    crore crores mil mln bn tn dozen dozens score scores gross couple half halves third thirds fourth fourths
    quarter quarters fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths eleventh
    twelfth twelfths hundredth hundredths thousandth thousandths millionth millionths billionth billionths double
    doubled doubles doubling triple tripled triples tripling quadruple quadrupled twice thrice once fold twofold
    threefold tenfold hundredfold plus minus times over divided divide divides dividing multiplied multiply
    multiplies multiplying added add adds adding subtracted subtract subtracts subtracting subtraction addition
    multiplication division sum difference product quotient squared square squares squaring cubed cube cubing
    factorial factorials root roots rooted radical power powers powered raised raise exponent exponents exponential
    exponentiated modulo mod modulus percent percentage percents permille inverse inverses inverted invert
    reciprocal reciprocals negated negate negative negatives negation positive opposite opposites halved halve
    halving reversed reverse reversing backward backwards increased increase increases increasing decreased decrease
    decreases decreasing reduced reduce reduces reducing incremented increment decremented decrement rounded round
    rounding truncated complement complementary supplement supplementary conjugate log logs logarithm logarithms ln
    sine cosine tangent cotangent secant sin cos tan cot sec csc exp sqrt choose permute derivative integral
    differentiated integrated transposed transpose scaled binary octal hexadecimal hex ternary base bases digit
    reflected rotated shifted swapped mirrored flipped remainder ratio fraction fractions decimal decimals
    decimalised kilo mega giga milli micro nano pico centi more less fewer greater smaller larger bigger higher
    lower least most above below under underneath beneath beyond exceeding exceeds exceed minimum maximum minimal
    maximal max about around approx approximate approximation circa roughly nearly almost close closer near
    nearby upward upwards downward downwards up down off short shy extra additional another other others further
    again too also odd deficit debt debts owed owing owe owes loss losses lost lose overdrawn deducted deduct
    deducting discounted tops inclusive exclusive ago bc bce prime primes not no never none nor neither nothing nobody
    nowhere nope nah without except excepting excluding excluded exclude excludes wrong wrongly incorrect invalid
    false fake untrue bogus absurd nonsense instead rather but unless if when whenever where wherever whether
    provided providing assuming assumed assume suppose supposed supposing only maybe perhaps possibly probably
    presumably supposedly allegedly either both unlikely impossible unknown undefined undetermined unsure uncertain
    hardly barely scarcely error errors erroneous mistake mistaken mistakes guess guessed guessing guesses rejected
    reject rejecting refuted refute disproved disproven denied deny discarded discard eliminated eliminate ruled
    dismissed retracted withdrawn cancelled canceled crossed removed remove removing erased deleted omitted ignore
    ignored ignoring extraneous inadmissible forbidden disallowed counterexample contradiction contradictory lie
    lies lying doubtful doubt doubts questionable hypothetical hypothetically fictional conjecture conjectured
    estimate estimated estimates estimation tentative random typo typos actually vs versus against contrary unequal
    differs differ differing disagree avoid avoided avoiding missing misses miss fails fail
    failed failing unacceptable insufficient inadequate outside is isn't are aren't was wasn't were be been being am
    equal equals equaled has had have having do does doesn't did didn't don't can cannot can't could couldn't may
    might must mustn't shall should shouldn't will won't would wouldn't ought let lets become becomes became
    becoming turns turned makes made gives given gave yields means mean meant stands seems seemed appears and or xor
    nand and/or then thus hence therefore so because since until till while during before after although though
    however yet still whereas otherwise else as than to from by with within into onto out on upon at through
    throughout across via amid among between along toward towards for regarding concerning according depending
    depends subject it its it's itself this that these those he she they we you i who whom whose which what why how
    me him us them such same some always sideways sometimes besides nowadays
    afterwards basis ones twos threes fours fives sixes sevens eights nines tens twelves twenties thirties forties fifties
    sixties seventies eighties nineties multiples minuses pluses grands folds sums ratios averages digits percentiles anything something everything all many much several few enough himself herself
    themselves ourselves myself yourself here there
    """
)
_COUNTING_LY = listed(
    """
    exactly precisely only family assembly supply jelly fly lily belly butterfly early daily weekly monthly yearly hourly
    july italy reply ally bully
    """
)
_TOTALS = re.compile(r"\b(?:in (?:all|total|each|every)|all together|altogether|each|for (?:each|every))\b")
# Where something is counted: harmless behind the counted things, and without them the name of something else.
_PLACES = re.compile(r"\b(?:in the|for (?:the|a)|on the|from the)\b")
_MAX_COUNTED = 12
# `contradicts the claim`: what stands before an article is a verb.
_VERB = re.compile(r"[a-z]+s (?:the|an?|this|that|my|our|your|his|her|its|their)\b")
# Parts and large numbers in Spanish, French, German, Italian and Portuguese.
_ABROAD = re.compile(
    r"\b(?:\w+(?:[éeè]sim[oaie]s?|i[eè]mes?|avos|tel|illon[ei]s?|illones|illiards|illiarden|illionen|ilhões)|d[eé]cim[oa]s|tercios|"
    r"cuartos|quintos|tiers|quarts|mitad|metade|moiti[eé]|docenas|douzaines|dutzend|miles|milhares|tausend\w*|hundert\w*|hälfte)\b"
)
# Where sentences end in their verb.
_FINAL = re.compile(r"(?:です|である|だ|입니다|이다|है|হয়|ครับ|ค่ะ)[\s。.]*\Z")
_WORDS_BEHIND = re.compile(r"[^\W\d_]+(?:['’][a-z]+)?")
# Counted things stand in the plural; these words do not show it, or need no counted thing beside them.
_UNCOUNTED = listed(
    """
    people men women children feet teeth mice geese fish sheep deer dice data cattle police oxen criteria fries
    total totals altogether together remaining left combined overall apiece unit work wide long tall high deep thick
    old away percent pm am usd hrs per text
    """
)
# Words in -s that name nothing.
_NO_PLURAL = re.compile(r"(?:ss|us|is|wards)\Z")
# Chinese, Japanese and Korean measure words; any other sign behind a number may multiply it, as that for 10,000 does.
_MEASURES = re.compile(
    r"(?:平方|立方)?(?:厘米|千米|公里|分米|毫米|千克|公斤|毫升|分钟|小时|个月|美元|米|克|升|吨|里|度|元|円|원|角|分|秒|时|天|日|周|月|年|岁|个|個|개|명|人|名|位|"
    r"只|头|匹|条|张|本|支|枝|把|件|台|辆|棵|朵|颗|粒|块|片|根|盒|箱|袋|包|瓶|杯|碗|页|道|题|种|次|组|对|双|套|层|排|行|列|步|户|家|所|座|间|班|"
    r"学生|同学|苹果|单位)+"
)


def may_follow(words: str, *, one: bool = False) -> bool:
    """Whether words behind a value only say what was counted or measured.

    What is counted is named in the plural, so that an adverb or an adjective alone ("upside down", "short") is refused
    without being listed. The words that are listed as changing a value are refused beside any noun.

    Args:
        words: The words.
        one: Whether the value may be 1 or less, behind which a noun stands in the singular.

    >>> [may_follow(words) for words in ("small red apples per basket", "million", "below zero", "upside down", "cm")]
    [True, False, False, False, True]
    """
    plain = _FINAL.sub("", _PLACES.sub(" ", _TOTALS.sub(" total ", words.lower()))).strip(" .,;:!()$*\"'")
    if "..." in words or "\\ldots" in words:
        return False  # something is left out
    if not plain or _MEASURES.fullmatch(plain):
        return True
    if any(char > "\u024f" or char.isdigit() or char in "=<>+*^|&~?%" for char in plain):
        return False
    if _VERB.match(plain) is not None or _ABROAD.search(plain) is not None:
        return False
    parts = _WORDS_BEHIND.findall(plain)
    first = parts[0] if parts else ""
    for part in parts:
        if part in _CHANGES and not (part in _AREAS and (part != first or len(parts) > 1)):
            return False
        if part.endswith("ly") and part not in _COUNTING_LY:
            return False
        if part[:3] in ("non", "mis", "dis") and part not in _HARMLESS:
            return False
    return 0 < len(parts) <= _MAX_COUNTED and (one or any(map(_counts, parts)))


def _counts(word: str) -> bool:
    """Whether a word names counted things, or a measure."""
    if is_unit(word) or word in _UNCOUNTED or word.endswith(("men", "women", "people", "children", "fish")):
        return True
    return len(word) > 3 and word.endswith("s") and _NO_PLURAL.search(word) is None


# `8 square feet` and `8 feet squared` measure an area; `8 squared` does not.
_AREAS = listed(
    """
    square squares squared cube cubed
    """
)
_HARMLESS = listed(
    """
    miss mister mistress disk disks disc discs dish dishes distance distances district districts discount none
    nonprofit nonfiction dispenser dispensers display displays dishwasher disciple disciples mist misty noncredit
    """
)


# Markup, and words of Chinese that introduce a value: there is, in all, is, equals, the answer, the result.
_ELSEWHERE = re.compile(r"[$*`_#>]|共有|总共|一共|共计|共|有|是|为|等于|答案|结果|值|：")


def may_precede(words: str) -> bool:
    """Whether words in front of a value only introduce it, or name what is asked.

    >>> [may_precede(words) for words in ("The answer is", "exactly", "half of", "the largest value of $n$ is", "never")]
    [True, True, False, True, False]
    """
    if "\\{" in words or "\\(" in words or (words[-1:] == ">" != words[-2:-1] and words[-2:] not in ("=>", "->")):
        return False
    plain = " ".join(_ELSEWHERE.sub(" ", words).split()).strip(" ,;(\"'“")
    if not plain:
        return True
    copula = None
    for copula in _COPULA.finditer(plain.lower()):  # noqa: B007 - the last one is looked at
        pass
    if copula is None:
        return all(part.strip("',") in _FILLERS or not part.strip("',.:()[]{}\\-") for part in _tokens(plain))
    behind = _tokens(plain[copula.end() :])
    if not all(part in _FILLERS or not part.strip(",:()[]{}\\") for part in behind):
        return False
    named = plain[: copula.start()].strip(" ,;:")
    if copula.group().strip() == "=" and _TWO_LETTERS.search(named) is not None:
        return False  # `an = 170` is a product's value, and no article's
    counted = _COUNTS.search(named.lower())
    if counted is not None and may_follow(counted[1], one=True):
        named = named[: counted.start()]
    return all(_names(part) for part in re.split(r"[\s,;:()]+", named) if part)


def _tokens(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,;]+", text.lower()) if part]


def _names(part: str) -> bool:
    """Whether a word may belong to the name of what is asked: one that is known, or a letter."""
    lower = part.lower().strip(".'’")
    return lower in _ASKED or lower in _FILLERS or lower in _IS_WORDS or _NAME.fullmatch(part) is not None


_TWO_LETTERS = re.compile(r"(?<![a-zA-Z])[a-z]{2}\Z")
_IS_WORDS = listed(
    """
    is are was were be equals equal has have had get gets
    """
)
_TEXT_PART = re.compile(r"\\text\s*\{([^{}]*)\}")


def names_asked(text: str) -> bool:
    """Whether the words on one side of an equation name what is asked (`Area`, `total cost`): `half of` does not.

    >>> names_asked("area"), names_asked("half of"), names_asked("number of red apples")
    (True, False, True)
    """
    return may_precede(f"{text} is")


_PART_NAMES = "|".join(sorted((name for name in PARTS if name not in ("half",)), key=len, reverse=True))
_LITERAL = r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+"
_WORDED_VALUE = re.compile(
    rf"(?:(?P<before>negative|minus|half of|one half of|a half of|twice|double|triple|(?:the )?square root of|a third of|a quarter of)\s+)?"
    rf"(?P<value>{_LITERAL})"
    rf"(?:\s*(?P<after>and a half|and a quarter|and a third|and three quarters|hundred|thousand|million|billion|trillion|dozen|squared|cubed|factorial|{_PART_NAMES})(?![a-zA-Z]))?"
    r"(?P<rest>\s+[a-zA-Z][a-zA-Z ./]{0,60})?\.?"
)
_WORDED_HINT = re.compile(
    r"negative|minus|half|twice|double|triple|root of|quarter|third|hundred|thousand|illion|dozen|squared|cubed|factorial|"
    r"halves|fourth|fifth|sixth|seventh|eighth|ninth|tenth|twelfth|hundredth"
)
_BEFORE_VALUE = {
    "negative": "-{}", "minus": "-{}", "twice": "2\\cdot {}", "double": "2\\cdot {}", "triple": "3\\cdot {}",
    "a third of": "\\frac{{{}}}{{3}}", "a quarter of": "\\frac{{{}}}{{4}}",
}  # fmt: skip


def worded_value(text: str) -> str | None:
    r"""A number and words that change it, as mathematics; None for anything else.

    >>> [worded_value(text) for text in ("8\\text{ million}", "half of 8", "8 squared", "8 and a half", "8 apples")]
    ['8000000', '\\frac{8}{2}', '8^{2}', '\\frac{17}{2}', None]
    """
    if _WORDED_HINT.search(text) is None or len(text) > 200:
        return None
    plain = " ".join(_TEXT_PART.sub(r" \1 ", text).split())
    match = _WORDED_VALUE.fullmatch(plain) or _WORDED_VALUE.fullmatch(plain.lower())
    if match is None or not (match["before"] or match["after"]):
        return None
    number = match["value"].replace(",", "")
    before, after, rest = match["before"], match["after"], match["rest"] or ""
    if (before and after) or (rest and not may_follow(rest)):
        return None
    if before:
        pattern = _BEFORE_VALUE.get(before) or ("\\sqrt{{{}}}" if "root" in before else "\\frac{{{}}}{{2}}")
        if number.startswith("-"):
            return None
        value = pattern.format(number)
    else:
        value = _with_word_behind(Fraction(number), number, after)
    return f"{value}\\text{{{rest}}}" if rest else value


def _with_word_behind(number: Fraction, text: str, word: str) -> str:
    if word in ("squared", "cubed"):
        base = f"({text})" if text.startswith("-") else text
        return f"{base}^{{{2 if word == 'squared' else 3}}}"
    if word == "factorial":
        return f"{text}!"
    if word in PARTS:
        # Three quarters may be coins: a fraction that is written with words.
        return f"\\frac{{{text}}}{{{PARTS[word]}}}"
    if word.startswith("and"):
        part = {"half": Fraction(1, 2), "quarter": Fraction(1, 4), "third": Fraction(1, 3), "quarters": Fraction(3, 4)}[
            word.split()[-1]
        ]
        number += part if number >= 0 else -part
    else:
        number *= 12 if word == "dozen" else 100 if word == "hundred" else SCALES[word]
    return str(number.numerator) if number.denominator == 1 else f"\\frac{{{number.numerator}}}{{{number.denominator}}}"
