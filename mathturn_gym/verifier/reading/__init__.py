"""Reading: from a response to its answer, from an answer to one spelling, a value, words or trees.

    _extraction   response -> answer: boxes, `####`, "answer is" …
    _cleaning     one spelling for what is written in many ways
    _numbers      literal integers, decimals, fractions
    _words        names, choices, numbers spelt out, times of day
    _units        units of measurement that are known
    _lexer, _parser, _nodes   a small grammar: tokens, trees, and the visitors that walk them
    _prepared     all of it for one text, made once
    _answers      questions about an answer alone

All of it is internal; `mathturn_gym.verifier` has the names for others.
"""
