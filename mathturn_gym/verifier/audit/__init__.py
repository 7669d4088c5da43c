"""How good a verifier is on labelled cases.

    Case, load_cases         labelled cases from a JSON-lines file, or those of the package
    run_audit, AuditReport   a verifier run over them in a process of its own, and what it did
    check_verifier_name      whether `run_audit` knows a verifier
    installed_verifiers      those that are to be had here
    audit_markdown, audit_html, audit_rows   the reports of several verifiers as a page, or as rows of cells
    wilson                   95 % interval of a proportion

On the command line: `mathturn verify --audit`.
"""

from __future__ import annotations

from mathturn_gym.verifier.audit._report import AuditReport, Case, audit_html, audit_markdown, audit_rows, load_cases
from mathturn_gym.verifier.audit._run import check_verifier_name, installed_verifiers, run_audit

__all__ = [
    "AuditReport",
    "Case",
    "audit_html",
    "audit_markdown",
    "audit_rows",
    "check_verifier_name",
    "installed_verifiers",
    "load_cases",
    "run_audit",
]
