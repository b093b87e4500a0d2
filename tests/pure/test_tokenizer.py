"""Ids, end tokens and begin tokens of tokenizers built from GGUF metadata and from tokenizer.json."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_toys import (
    BEGIN,
    END,
    TURN,
    WORDS,
    builtin,
    builtin_metadata,
    builtin_path,
    byte_backend,
    chat_tokenizer,
    folder,
    sentencepiece_metadata,
    sentencepiece_vocabulary,
    word_backend,
)
from tokenizers import Regex, decoders, pre_tokenizers

from engine.errors import RequestError, UserError
from engine.tokenizer import load_tokenizer
from engine.tokenizer.gguf_bpe import build_bpe
from engine.tokenizer.gguf_sentencepiece import build_sentencepiece
from engine.tokenizer.gguf_vocabulary import read_vocabulary
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "smollm2-tokenizer.json").read_text(encoding="utf-8"))
ROWS = REFERENCE["rows"]


def test_every_reference_text_gets_the_ids_of_llama_cpp() -> None:
    tokenizer = builtin()
    assert len(ROWS) >= 428
    wrong = [row["text"] for row in ROWS if tokenizer.encode(row["text"]) != row["ids_special"]]
    assert wrong == []


def test_every_reference_text_gets_the_ids_of_llama_cpp_when_special_tokens_are_plain_text() -> None:
    backend = build_bpe(read_vocabulary(builtin_metadata(), "built-in"))
    backend.encode_special_tokens = True
    wrong = [row["text"] for row in ROWS if backend.encode(row["text"]).ids != row["ids"]]
    assert wrong == []


def test_every_reference_text_comes_back() -> None:
    tokenizer = builtin()
    assert [row["text"] for row in ROWS if tokenizer.decode(row["ids_special"], False) != row["text"]] == []


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFFFF, exclude_categories=("Cs",)), max_size=60))
def test_text_comes_back(text: str) -> None:
    tokenizer = builtin()
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_facts_of_the_built_in() -> None:
    tokenizer = builtin()
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (49152, 1)
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert tokenizer.encode("") == [] == tokenizer.encode("", add_special_tokens=False)
    assert tokenizer.decode([1, 19556, 2]) == "Hello"
    assert tokenizer.decode([1, 19556, 2], skip_special_tokens=False) == "<|im_start|>Hello<|im_end|>"


def test_the_built_in_loads_in_time() -> None:
    start = time.process_time()
    load_tokenizer(builtin_path())
    assert time.process_time() - start < 1.5


def test_importing_loads_no_heavy_library() -> None:
    heavy = "tokenizers", "jinja2", "torch", "numpy", "transformers", "gguf"
    code = f"import sys, engine.tokenizer; sys.exit(bool(sys.modules.keys() & set({heavy!r})))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tokens_as_bytes_and_for_display() -> None:
    tokenizer = builtin()
    ids = tokenizer.encode("👩‍🚀 ok")
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == "👩‍🚀 ok".encode()
    assert tokenizer.token_text(tokenizer.encode(" ok")[0]) == " ok"
    assert tokenizer.token_text(1) == "<|im_start|>"
    parts = [tokenizer.token_text(i) for i in ids]
    assert any(part.startswith("bytes:\\x") for part in parts) and not any("\ufffd" in part for part in parts)
    for unknown in (-1, 49152, 1 << 40):
        assert tokenizer.token_bytes(unknown) == b"" and tokenizer.decode([unknown]) == ""


def test_half_of_a_surrogate_pair_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="surrogate") as caught:
        builtin().encode("a\ud800b")
    assert caught.value.param == "prompt"
    with pytest.raises(RequestError, match="surrogate") as caught:
        builtin().encode_chat([{"role": "user", "content": "\udc00"}])
    assert caught.value.param == "messages"


def test_H_TOK_02_raw_prompt_that_starts_with_the_begin_token(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = chat_tokenizer(None)
    begin = tokenizer.bos_id
    with caplog.at_level(logging.WARNING, logger="engine"):
        assert tokenizer.encode("hi")[:1] == [begin] and not caplog.records
        assert tokenizer.encode(f"{BEGIN}hi", add_special_tokens=False).count(begin) == 1 and not caplog.records
        assert tokenizer.encode(f"{BEGIN}hi").count(begin) == 2
        assert tokenizer.encode(f"{BEGIN}again").count(begin) == 2
    assert [(r.name, r.levelname) for r in caplog.records] == [("engine", "WARNING")]
    assert BEGIN in caplog.text and "add_special_tokens" in caplog.text


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({"eos_token": END}, {"eos_token_id": 258}, {END, TURN}),
        ({"eos_token": {"content": END}}, {"eos_token_id": [258, 257]}, {END, TURN}),
        ({"eos_token": TURN}, {}, {TURN}),
        ({}, {"eos_token_id": [257]}, {END}),
        ({"eos_token": None}, {"eos_token_id": None}, set()),
        ({}, {"eos_token_id": -1}, set()),
        ({"eos_token": TURN}, {"eos_token_id": [-1, 257, 10**6]}, {END, TURN}),
    ],
)
def test_H_TOK_05_end_tokens_are_the_union(tmp_path: Path, config: dict, generation: dict, ends: set[str]) -> None:
    path = folder(tmp_path, byte_backend(), tokenizer_config=config, generation_config=generation)
    tokenizer = load_tokenizer(path)
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == ends
    assert tokenizer.decode([*tokenizer.encode("hi"), *tokenizer.eos_ids]) == "hi"


def test_H_TOK_05_end_tokens_of_config_json_count_without_a_generation_config(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_backend(), config={"eos_token_id": [257, 258]})
    assert load_tokenizer(path).eos_ids == {257, 258}


@pytest.mark.parametrize("field", ["eot", "eom"])
def test_H_TOK_05_end_tokens_of_gguf_are_the_union(field: str) -> None:
    metadata = builtin_metadata() | {f"tokenizer.ggml.{field}_token_id": 7, "tokenizer.ggml.eos_token_id": 9}
    assert read_vocabulary(metadata, "toy").eos_ids == {0, 2, 7, 9}


def test_H_TOK_05_a_message_end_does_not_end_an_answer_that_has_its_own_end() -> None:
    tokens = ["<|end|>", "<|return|>", "<|call|>", "<|end", "a"]
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}
    both = read_vocabulary(metadata | {"tokenizer.ggml.token_type": [3, 3, 3, 1, 1]}, "toy")
    plain = read_vocabulary(metadata | {"tokenizer.ggml.token_type": [3, 1, 1, 1, 1]}, "toy")
    assert (both.eos_ids, plain.eos_ids) == ({1, 2}, {0})


# Pre-tokenizers


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_builds_and_loses_nothing(name: str) -> None:
    metadata = builtin_metadata() | {"tokenizer.ggml.pre": name}
    backend = build_bpe(read_vocabulary(metadata, "toy"))
    for row in ROWS[::9]:
        ids = backend.encode(row["text"], add_special_tokens=False).ids
        assert backend.decode(ids, skip_special_tokens=False) == row["text"]


def cut(name: str, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "I'll pay 12345!!", ["I", "'ll", " pay", " 12345", "!!"]),
        ("smollm", "pay 123", ["pay", " ", "1", "2", "3"]),
        ("llama-bpe", "I'LL pay 12345!\n\n x", ["I", "'LL", " pay", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", "pay 123\t(x)", ["pay", " ", "1", "2", "3", "\t", "(x", ")"]),
        ("tekken", "helloWorld 12", ["hello", "World", " ", "1", "2"]),
        ("gpt-4o", "helloWorld's 1234", ["hello", "World's", " ", "123", "4"]),
        ("deepseek-v3", "abc1234漢字!x", ["abc", "123", "4", "漢字", "!x"]),
        ("default", "a 12345", ["a", " ", "123", "45"]),
        ("falcon", "a 1234$b", ["a", " ", "123", "4", "$", "b"]),
        ("viking", "word 12.", ["word", " ", "1", "2", "."]),
    ],
)
def test_words_are_cut_as_the_name_says(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


def test_cuts_equal_those_of_the_models_own_tokenizers() -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    def pieces(pattern: str, text: str) -> list[str]:
        return [p for p, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]

    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in (row["text"] for row in ROWS):
        assert cut("qwen2", text) == pieces(PRETOKENIZE_REGEX, text)
        assert cut("llama-bpe", text) == pieces(TikTokenConverter(None).pattern, text)
        assert [letters.pre_tokenize_str(p)[0][0] for p in cut("gpt-2", text)] == [
            p for p, _ in gpt2.pre_tokenize_str(text)
        ]


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_names() -> None:
    metadata = builtin_metadata() | {"tokenizer.ggml.pre": "smollm3"}
    with pytest.raises(UserError, match=r"'smollm3'.*llama-bpe.*qwen2.*smollm") as caught:
        build_bpe(read_vocabulary(metadata, "file.gguf"))
    assert "file.gguf" in str(caught.value)


def test_a_missing_pre_tokenizer_is_default_and_said(caplog: pytest.LogCaptureFixture) -> None:
    metadata = {k: v for k, v in builtin_metadata().items() if k != "tokenizer.ggml.pre"}
    backend = build_bpe(read_vocabulary(metadata, "file.gguf"))
    assert "'default'" in caplog.text and caplog.records[0].levelname == "WARNING"
    expected = build_bpe(read_vocabulary(metadata | {"tokenizer.ggml.pre": "default"}, "file.gguf"))
    assert backend.encode("a 12345").ids == expected.encode("a 12345").ids


# GGUF fields


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": None}, "ggml.model.*missing"),
        ({"tokenizer.ggml.tokens": None}, "ggml.tokens.*missing"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "'a' twice"),
        ({"tokenizer.ggml.tokens": ["a", 3]}, "ggml.tokens.*list"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 entries for 284 tokens"),
        ({"tokenizer.ggml.eos_token_id": 284}, "eos_token_id.*284"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id.*expected int"),
        ({"tokenizer.ggml.scores": None}, "scores.*missing"),
    ],
)
def test_damaged_fields_are_named(change: dict[str, object], message: str) -> None:
    metadata = sentencepiece_metadata(**change)
    with pytest.raises(UserError, match=message):
        build_sentencepiece(read_vocabulary({k: v for k, v in metadata.items() if v is not None}, "toy.gguf"))


@pytest.mark.parametrize("merge", ["a b", "Ġ", "Ġ t h"])
def test_a_merge_outside_the_vocabulary_is_named(merge: str) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["Ġ", "t", "a"]}
    with pytest.raises(UserError, match=f"merges.*{merge!r}"):
        build_bpe(read_vocabulary(metadata | {"tokenizer.ggml.merges": [merge]}, "toy.gguf"))


def test_a_begin_flag_without_a_begin_token_is_refused() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.add_bos_token": True}
    with pytest.raises(UserError, match="bos_token_id"):
        read_vocabulary(metadata, "toy.gguf")


def test_user_defined_tokens_are_matched_first_and_kept_in_text() -> None:
    types = list(builtin_metadata()["tokenizer.ggml.token_type"])
    types[5] = 4
    backend = build_bpe(read_vocabulary(builtin_metadata() | {"tokenizer.ggml.token_type": types}, "toy"))
    ids = backend.encode("a<file_sep>b<filename>").ids
    assert 5 in ids and 6 in ids
    assert backend.decode(ids) == "a<file_sep>b"


def test_named_templates_of_a_file() -> None:
    named = {"tokenizer.chat_template": "D", "tokenizer.chat_templates": ["tool_use"]}
    metadata = sentencepiece_metadata(**named, **{"tokenizer.chat_template.tool_use": "T"})
    assert read_vocabulary(metadata, "toy").templates == {"default": "D", "tool_use": "T"}


# SentencePiece


def sentencepiece_reference(text: str) -> list[int]:
    """The algorithm by definition: join the neighbours whose union has the best score, the leftmost among equals."""
    tokens, _, scores = sentencepiece_vocabulary()
    ids = {token: i for i, token in enumerate(tokens)}
    parts = list(("▁" + text.replace(" ", "▁")) if text else "")
    while True:
        joins = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not joins:
            break
        _, at = min(joins)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [i for part in parts for i in ([ids[part]] if part in ids else [3 + byte for byte in part.encode()])]


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="helowrdcaf€é x", max_size=24))
def test_sentencepiece_ids_equal_the_definition(text: str) -> None:
    backend = build_sentencepiece(read_vocabulary(sentencepiece_metadata(), "toy"))
    assert backend.encode(text, add_special_tokens=False).ids == sentencepiece_reference(text)


def test_sentencepiece_uses_its_words() -> None:
    backend = build_sentencepiece(read_vocabulary(sentencepiece_metadata(), "toy"))
    assert backend.encode("hello world€é").tokens == ["▁hello", "▁w", "or", "ld", "€", "<0xC3>", "<0xA9>"]
    assert set(WORDS) <= set(backend.get_vocab())


@pytest.mark.parametrize(("flag", "text"), [(True, "▁h"), (None, "▁h"), (False, "h")])
def test_sentencepiece_prefix_follows_the_file(flag: bool | None, text: str) -> None:
    extra = {} if flag is None else {"tokenizer.ggml.add_space_prefix": flag}
    backend = build_sentencepiece(read_vocabulary(sentencepiece_metadata(**extra), "toy"))
    assert backend.encode("h").tokens == [text]
    assert backend.decode(backend.encode(" h").ids) == " h"


def write_gguf(path: Path, metadata: dict[str, object]) -> Path:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, str(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_sentencepiece_file_loads_with_its_begin_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "a.gguf", sentencepiece_metadata()))
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.chat_template) == (1, {2}, None)
    assert tokenizer.encode("hello") == [1, *tokenizer.encode("hello", add_special_tokens=False)]
    assert tokenizer.decode(tokenizer.encode("hello world €é")) == "hello world €é"
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    tokenizer = load_tokenizer(write_gguf(tmp_path / "b.gguf", sentencepiece_metadata(**flags)))
    assert tokenizer.encode("hello") == [*tokenizer.encode("hello", add_special_tokens=False), 2]


def test_a_tokenizer_model_that_cannot_be_built_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", sentencepiece_metadata(**{"tokenizer.ggml.model": "bert"}))
    with pytest.raises(UserError, match=r"'bert'.*gpt2.*llama"):
        load_tokenizer(path)


# Folders


def test_a_folder_with_a_begin_token_in_its_post_processor(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder(tmp_path, byte_backend(begin=True), tokenizer_config={"bos_token": BEGIN}))
    assert tokenizer.bos_id == 256 and tokenizer.vocab_size == 259
    assert tokenizer.encode("") == [256]
    assert tokenizer.encode("hi") == [256, *tokenizer.encode("hi", add_special_tokens=False)]
    assert tokenizer.encode(f"a{TURN}", add_special_tokens=False)[-1] == 258


def test_truncation_saved_in_a_folder_does_not_cut_prompts(tmp_path: Path) -> None:
    backend = byte_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    assert len(load_tokenizer(folder(tmp_path, backend)).encode("0123456789")) == 10


def test_metaspace_words_without_a_model_decoder(tmp_path: Path) -> None:
    backend = word_backend()
    assert load_tokenizer(folder(tmp_path, backend)).decode([1, 2, 3]) == "a bc" == backend.decode([1, 2, 3])
    backend.decoder = None
    assert load_tokenizer(folder(tmp_path, backend)).decode([1, 2, 3]) == "▁a ▁b c" == backend.decode([1, 2, 3])


def test_a_decoder_that_cannot_be_streamed_is_refused(tmp_path: Path) -> None:
    backend = word_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UserError, match="WordPiece"):
        load_tokenizer(folder(tmp_path, backend))


def test_folders_that_hold_no_tokenizer_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json is needed, found no tokenizer file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"found tokenizer\.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="absent"):
        load_tokenizer(tmp_path / "absent.gguf")
    folder(tmp_path, byte_backend())
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"tokenizer_config\.json.*object"):
        load_tokenizer(tmp_path)
