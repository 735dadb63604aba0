"""Secrets are masked by their key, at any depth, and nothing else is."""

from __future__ import annotations

import json

import pytest

from staging.process.redaction import MASK, is_secret, redacted


@pytest.mark.parametrize(
    "key",
    ["token", "hf_token", "hf-token", "HF_TOKEN", "secret", "client_secret", "password",
     "db_password", "passwd", "api_key", "api-key", "openai_api_key", "watermark_config"],
)  # fmt: skip
def test_secret_keys(key):
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    ["tokenizer", "tokenizer_mode", "max_num_batched_tokens", "tokens", "secretary", "key",
     "api_keys_file", "password_policy", "model", "", 3],
)  # fmt: skip
def test_other_keys(key):
    assert not is_secret(key)


def test_depth_and_kind_of_value_do_not_matter():
    value = {
        "a": [{"b": ({"api_key": ["k1", "k2"]},)}],
        "token": None,
        "secret": {"x": 1},
        "max_num_batched_tokens": 8192,
    }
    assert redacted(value) == {
        "a": [{"b": [{"api_key": MASK}]}],
        "token": MASK,
        "secret": MASK,
        "max_num_batched_tokens": 8192,
    }


def test_the_value_itself_is_not_changed():
    value = {"a": [{"token": "t"}]}
    redacted(value)
    assert value == {"a": [{"token": "t"}]}


def test_json_in_a_string_is_looked_into():
    inner = json.dumps({"kv": {"password": "p"}, "n": 1})
    assert json.loads(redacted({"config": inner})["config"]) == {"kv": {"password": MASK}, "n": 1}


@pytest.mark.parametrize("text", ["{not json", "[1, 2]", '{"n": 1}', "plain", "{}"])
def test_other_strings_stay_as_they_are(text):
    assert redacted(text) == text
