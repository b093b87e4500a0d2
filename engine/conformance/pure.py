"""Predicates asked twice, with facts they may meet, while somebody watches the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine.conformance.check import Wrong, said
from platforms.contract import DeviceProfile, Facts, Predicate, Verdict

if TYPE_CHECKING:
    from engine.conformance.subject import Subject


class _Watched(MutableMapping[str, str]):
    """An environment that notes every name somebody asked for or set."""

    def __init__(self, inner: MutableMapping[str, str]) -> None:
        self.inner, self.touched = inner, list[str]()

    def __getitem__(self, name: str) -> str:
        self.touched.append(name)
        return self.inner[name]

    def __setitem__(self, name: str, value: str) -> None:
        self.touched.append(name)
        self.inner[name] = value

    def __delitem__(self, name: str) -> None:
        self.touched.append(name)
        del self.inner[name]

    def __iter__(self) -> Iterator[str]:
        self.touched.append("all of it")
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


@contextmanager
def watched_environment() -> Iterator[list[str]]:
    """Yields the names that were asked for inside."""
    inner = os.environ
    watch = _Watched(inner)
    vars(os)["environ"] = watch
    try:
        yield watch.touched
    finally:
        vars(os)["environ"] = inner


def steady(where: str, call: Callable[[], Any]) -> Any:
    """What ``call`` gives, twice the same and without a look at the environment. Raises ``Wrong``."""
    with watched_environment() as touched:
        # A predicate is strangers' code; what it raised is the answer.
        try:
            first, second = call(), call()
        except (Exception, SystemExit) as error:
            raise Wrong(f"{where} raised {said(error)}") from error
    if touched:
        raise Wrong(f"{where} looked at the environment ({', '.join(sorted(set(touched)))}); use aliases()")
    if first != second:
        raise Wrong(f"{where} gave {first!r}, and asked again {second!r}")
    return first


def verdict(predicate: Predicate, profile: DeviceProfile, facts: Facts, where: str = "a predicate") -> Verdict:
    """Its answer. Raises ``Wrong`` where that is no ``Verdict``, or changes, or where it raises."""
    found = steady(where, lambda: predicate(profile, facts))
    if not isinstance(found, Verdict) or not isinstance(found.reason, str) or not found.reason.strip():
        raise Wrong(f"{where} gave {found!r}, not a Verdict with a reason")
    return found


def odd_facts(subject: Subject) -> dict[str, Facts]:
    """Facts a predicate may meet, by what is odd about them: none at all, every sample model, many ranks, and every
    alias with what users put into variables."""
    from engine.conformance.models import sample_facts

    samples = sample_facts()
    found: dict[str, Facts] = {"no facts": {}, **samples}
    first = next(iter(samples.values()))
    ranks = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 8)
    found["8 ranks"] = {**first, **ranks}
    found["batch invariance"] = {**first, "batch_invariant": True}
    names = set(subject.plugin.aliases().values())
    for value in ("", "0", "1", "-1", "true", "no such thing") if names else ():
        found[f"aliases set to {value!r}"] = {**first, **dict.fromkeys(names, value)}
    return found
