"""Run where `[openai]` alone is installed: the policy asks a server, here one that is not there."""

from __future__ import annotations

import subprocess

words = [
    "mathturn",
    "eval",
    "--policy",
    "http://127.0.0.1:9",
    "--tokenizer",
    "TOKENIZER",
    "--problems",
    "lins:test",
    "--episodes",
    "1",
]
done = subprocess.run(words, capture_output=True, text=True, check=False)
said = " ".join((done.stdout + done.stderr).split())
assert done.returncode, "nothing listens there, and the command did not say so"
assert "cannot be reached" in said, said
assert "pip install" not in said, said
