"""How good a verifier is on labelled cases.

    Case, load_cases         labelled cases from a JSON-lines file, or those of the package
    run_audit, AuditReport   a verifier run over them in a process of its own, and what it did
    check_verifier_name      whether `run_audit` knows a verifier
    wilson                   95 % interval of a proportion

On the command line: `mathturn verify --audit`.
"""

from __future__ import annotations

from mathturn_gym.verifier.audit._cases import Case, load_cases
from mathturn_gym.verifier.audit._figures import AuditReport, wilson
from mathturn_gym.verifier.audit._run import check_verifier_name, run_audit

__all__ = ["AuditReport", "Case", "check_verifier_name", "load_cases", "run_audit", "wilson"]
