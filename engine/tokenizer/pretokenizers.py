"""How text is cut into words before byte-pair merging, by the name a GGUF file gives in ``tokenizer.ggml.pre``.

The names and their patterns are those of llama.cpp (src/llama-vocab.cpp); where llama.cpp approximates a pattern that
its regex engine cannot express, this table has the original of the model's own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """``patterns``: applied in order, each cutting the pieces that the one before left; matches and the gaps between
    them both become pieces. ``ignore_merges``: a whole piece that is a token is taken without merging. ``add_bos``:
    whether text gets a begin token when the file does not say."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"


def _cl100k(digits: str) -> str:
    return "|".join((_CONTRACTION, _WORD, digits, _SYMBOLS, _SPACES))


def _cased(digits: str, suffix: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{_UPPER}*{_LOWER}+{suffix}|{start}{_UPPER}+{_LOWER}*{suffix}"
    return "|".join((words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACES))


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT, _THREE = r"\p{N}", r"\p{N}{1,3}"
_MARKED = "|".join(
    (_CONTRACTION, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", _DIGIT, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACES)
)
_BAILING = "|".join((r"'(?i:[sdmt]|ll|ve|re)", _WORD, _DIGIT, _SYMBOLS, r"\s*[\r\n]|\s+(?!\S)|\s+"))
_SEED = "|".join((_CONTRACTION, _WORD, _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES))
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_TRIPLE = "[0-9][0-9][0-9]"

_gpt2 = PreTokenizer((_GPT2,))
_digits = PreTokenizer((_DIGIT, _GPT2))
_llama3 = PreTokenizer((_cl100k(_THREE),), ignore_merges=True, add_bos=True)
_cl100k_base = PreTokenizer((_cl100k(_THREE),))
_qwen2 = PreTokenizer((_cl100k(_DIGIT),))
_tekken = PreTokenizer((_cased(_DIGIT, ""),), ignore_merges=True, add_bos=True)
_o200k = PreTokenizer((_cased(_THREE, _CONTRACTION + "?"),))
_deepseek3 = PreTokenizer((_THREE, _CJK, _DEEPSEEK))
_deepseek_coder = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT))
_bloom = PreTokenizer((_BLOOM,))
_bailing = PreTokenizer((_BAILING,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _TRIPLE)),
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "mpt": _gpt2,
    "olmo": _gpt2,
    "jais": _gpt2,
    "gigachat": _gpt2,
    "a.x-4.0": _gpt2,
    "mellum": _gpt2,
    "exaone4": _gpt2,
    "trillion": _gpt2,
    "granite-docling": _gpt2,
    "smollm": _digits,
    "starcoder": _digits,
    "refact": _digits,
    "command-r": _digits,
    "codeshell": _digits,
    "exaone": _digits,
    "minerva-7b": _digits,
    "mellum2": _digits,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "llama-bpe": _llama3,
    "falcon3": _llama3,
    "falcon-h1": _llama3,
    "pixtral": _llama3,
    "midm-2.0": _llama3,
    "lfm2": _llama3,
    "dbrx": _cl100k_base,
    "smaug-bpe": _cl100k_base,
    "glm4": _cl100k_base,
    "chatglm-bpe": _cl100k_base,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "stablelm2": _qwen2,
    "hunyuan": _qwen2,
    "megrez": _qwen2,
    "kormo": _qwen2,
    "grok-2": _qwen2,
    "solar-open": _qwen2,
    "qwen35": PreTokenizer((_MARKED,)),
    "tekken": _tekken,
    "gpt-4o": _o200k,
    "llama4": _o200k,
    "kanana2": _o200k,
    "minimax-m2": _o200k,
    "deepseek-v3": _deepseek3,
    "hunyuan-dense": _deepseek3,
    "joyai-llm": _deepseek3,
    "deepseek-coder": _deepseek_coder,
    "falcon": PreTokenizer((_PUNCTUATION, _GPT2, _TRIPLE)),
    "bloom": _bloom,
    "poro-chat": _bloom,
    "gpt3-finnish": _bloom,
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "bailingmoe": _bailing,
    "bailingmoe2": _bailing,
    "llada-moe": _bailing,
    "seed-coder": PreTokenizer((_SEED,)),
}
