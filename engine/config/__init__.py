"""What users can set, from where, and how it is written. Importing it reads no environment and no file."""

from engine.config.fields import BY_KEY, FIELDS, Field
from engine.config.sources import Collected, collect, from_environment, from_keywords, merge, value_of

__all__ = [
    "BY_KEY",
    "FIELDS",
    "Collected",
    "Field",
    "collect",
    "from_environment",
    "from_keywords",
    "merge",
    "value_of",
]
