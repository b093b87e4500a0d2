"""One look at ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from engine.endpoint import address_of
from engine.errors import UserError

PREFIXES = ("engine:", "vllm:")
PATIENCE = 5.0
"""Seconds that a server has to answer."""
Series = list[tuple[Mapping[str, str], float]]


class NoAnswerError(Exception):
    """There are no metrics to be had now; the message says why."""


class LoadingError(NoAnswerError):
    """There will be in a while."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """``at``: seconds of the monotonic clock; ``series``: by the sample's name without its prefix."""

    at: float
    series: Mapping[str, Series]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels; 0 where there are none."""
        wanted = labels.items()
        return sum(value for found, value in self.series.get(name, ()) if wanted <= found.items())

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """Of every series."""
        return [labels for labels, _ in self.series.get(name, ())]

    def buckets(self, name: str) -> dict[float, float]:
        """Upper bound → observations up to it, of a histogram."""
        found: dict[float, float] = {}
        for labels, value in self.series.get(f"{name}_bucket", ()):
            bound = float(labels["le"])
            found[bound] = found.get(bound, 0.0) + value
        return dict(sorted(found.items()))


def read_scrape(text: str, at: float) -> Scrape:
    """Raises ``NoAnswerError`` for a text without metrics of this engine."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        raise NoAnswerError(f"what it answers is no text of Prometheus: {error}") from error
    for prefix in PREFIXES:
        series: dict[str, Series] = {}
        for sample in (sample for family in families for sample in family.samples if sample.name.startswith(prefix)):
            series.setdefault(sample.name.removeprefix(prefix), []).append((sample.labels, sample.value))
        if series:
            return Scrape(at, series)
    raise NoAnswerError(f"it has no metric that begins with {' or '.join(PREFIXES)}")


def look(url: str) -> Scrape:
    """The metrics of the server at ``url``. Raises ``NoAnswerError``, and ``UserError`` for what is no address."""
    try:
        asked = Request(f"{address_of(url)}/metrics", headers={"Accept": "text/plain"})
        with urlopen(asked, timeout=PATIENCE) as answer:
            text = answer.read().decode("utf-8", "replace")
    except HTTPError as error:
        error.close()
        if error.code == 503:
            raise LoadingError("the model is still loading") from error
        raise NoAnswerError(f"status {error.code}") from error
    except URLError as error:
        raise NoAnswerError(str(error.reason)) from error
    except (OSError, HTTPException) as error:
        raise NoAnswerError(str(error) or type(error).__name__) from error
    except ValueError as error:
        raise UserError(f"--url {url!r} is no address: {error}; give one like http://127.0.0.1:8000") from error
    return read_scrape(text, time.monotonic())
