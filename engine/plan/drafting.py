"""Whether tokens are guessed, and how."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.plan.ledger import Ledger
from engine.plan_values import Decision

METHOD, TOKENS, LONGEST, SHORTEST = (
    f"speculative_config.{name}"
    for name in ("method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
)
AHEAD = "scheduler.async_scheduling"
DEFAULT_LOOKUP = 5


def decode_tokens(decisions: Mapping[str, Decision]) -> int:
    """The most tokens that a step computes of a request that generates."""
    return 1 + decisions[TOKENS].value if TOKENS in decisions else 1


def decide_drafting(ledger: Ledger) -> None:
    """Settles nothing without a method. With one, also that a step waits for the one before. Raises ``UserError`` for
    settings of drafts that contradict each other or lack one."""
    given = [key for key in (METHOD, TOKENS, LONGEST, SHORTEST) if ledger.user(key) is not None]
    for key, example in ((METHOD, "ngram"), (TOKENS, "4")):
        if given and key not in given:
            flag = BY_KEY[key].flag
            raise UserError(f"{ledger.asked(given[0])} needs {flag} ({key}) as well; add {flag}={example}, or drop it.")
    if not given:
        return
    ledger.own(METHOD)
    ledger.own(TOKENS)
    known = [value for value in (ledger.user(SHORTEST), ledger.user(LONGEST)) if value is not None]
    longest = ledger.own(LONGEST, max(known, default=DEFAULT_LOOKUP), "as prompt_lookup_min" if known else "")
    shortest = ledger.own(SHORTEST, min(known, default=DEFAULT_LOOKUP), "as prompt_lookup_max" if known else "")
    if shortest > longest:
        raise UserError(
            f"{ledger.asked(SHORTEST)} and {ledger.asked(LONGEST)} contradict each other: the least that is looked for "
            "is more than the most. Change one of them."
        )
    if ledger.user(AHEAD):
        raise UserError(
            f"{ledger.asked(AHEAD)} and {ledger.asked(METHOD)} contradict each other: drafts continue tokens that a "
            "step made ahead would not know yet. Drop one."
        )
    ledger.wish(AHEAD)
    ledger.settle(Decision(AHEAD, False, "derived", f"{METHOD} {ledger.user(METHOD)}: drafts continue known tokens"))
