"""A line says which process wrote it, is written whole, and holds no secret."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import threading

import pytest

from staging.process.process_logs import (
    PrefixedStream,
    RedactQueries,
    configure_logging,
    redact_queries,
)


class Writes(io.StringIO):
    """A stream that keeps the calls by which it was written."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def write(self, text):
        self.calls.append(text)
        return super().write(text)


# -- prefixes -----------------------------------------------------------------------------


def test_every_line_begins_with_the_prefix_empty_ones_too():
    out = Writes()
    PrefixedStream(out, "[w] ").write("one\n\nthree\n")
    assert out.getvalue() == "[w] one\n[w] \n[w] three\n"


def test_a_line_reaches_the_stream_in_one_call_however_it_was_written():
    out = Writes()
    print("a", 1, "b", file=PrefixedStream(out, "[w] "))
    assert out.calls == ["[w] a 1 b\n"]


def test_a_flush_shows_what_there_is_and_the_line_goes_on_behind_it():
    out = Writes()
    stream = PrefixedStream(out, "[w] ")
    stream.write("loading")
    assert out.calls == []
    stream.flush()
    assert out.getvalue() == "[w] loading"
    stream.write(" … done\nnext\n")
    assert out.getvalue() == "[w] loading … done\n[w] next\n"


def test_lines_of_several_threads_do_not_mix():
    out = Writes()
    stream = PrefixedStream(out, "")

    def work(letter):
        for _ in range(200):
            stream.write(letter * 50 + "\n")

    threads = [threading.Thread(target=work, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = out.getvalue().splitlines()
    assert len(lines) == 800
    assert all(len(line) == 50 and len(set(line)) == 1 for line in lines)


def test_everything_else_is_the_streams_own(tmp_path):
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        stream = PrefixedStream(file, "[w] ")
        assert stream.fileno() == file.fileno()
        assert stream.encoding == "utf-8"
        assert not stream.isatty()


# -- secrets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1?token=abc", "/v1?token=***"),
        ("/v1?access_token=abc&x=1", "/v1?access_token=***&x=1"),
        ("/v1?x=1&api_key=abc", "/v1?x=1&api_key=***"),
        ("/v1?API-KEY=abc", "/v1?API-KEY=***"),
        ("/v1?api%5Fkey=abc", "/v1?api%5Fkey=***"),
        ("/v1?%74oken=abc", "/v1?%74oken=***"),
        ("/v1?client.secret=a%20b;x=1", "/v1?client.secret=***;x=1"),
        ("/v1?password=&x=1", "/v1?password=***&x=1"),
        ("/v1?max_tokens=5&tokenizer=t", "/v1?max_tokens=5&tokenizer=t"),
        ("/v1/token=abc", "/v1/token=abc"),
        ("no path at all", "no path at all"),
    ],
)
def test_the_values_of_secret_parameters_are_not_shown(path, shown):
    assert redact_queries(path) == shown


def record(*args):
    return logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s " * len(args), args, None)


def test_a_record_keeps_everything_but_the_secret():
    kept = record("127.0.0.1:1", "GET", "/?token=abc", "1.1", 200)
    assert RedactQueries().filter(kept)
    assert kept.args == ("127.0.0.1:1", "GET", "/?token=***", "1.1", 200)


def test_a_scope_is_logged_without_its_secrets_and_its_state_and_is_left_alone():
    scope = {"type": "http", "query_string": b"api_key=abc&q=1", "state": {"password": "abc"}}
    logged = record(scope)
    RedactQueries().filter(logged)
    assert "abc" not in logged.getMessage()
    assert "q=1" in logged.getMessage()
    assert scope["query_string"] == b"api_key=abc&q=1"
    assert scope["state"] == {"password": "abc"}


def test_a_record_without_arguments_is_kept():
    assert RedactQueries().filter(record())


# -- configuration ------------------------------------------------------------------------


@pytest.fixture
def restored_logging():
    names = ["", "staging", "uvicorn", "uvicorn.access", "uvicorn.error", "uvicorn.asgi"]
    loggers = [logging.getLogger(name) for name in names]
    kept = [
        (logger, logger.level, logger.propagate, logger.handlers[:], logger.filters[:])
        for logger in loggers
    ]
    yield
    for logger, level, propagate, handlers, filters in kept:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers
        logger.filters[:] = filters


@pytest.mark.usefixtures("restored_logging")
def test_without_a_configuration_it_logs_to_stderr(capsys):
    configure_logging(None, level="debug")
    logging.getLogger("staging.anything").debug("a line of ours")
    logging.getLogger("uvicorn.error").info("a line of the server")
    logging.getLogger("else").info("not shown")
    err = capsys.readouterr().err
    assert "DEBUG" in err
    assert "a line of ours" in err
    assert "a line of the server" in err
    assert "not shown" not in err


@pytest.mark.usefixtures("restored_logging")
def test_a_dictionary_and_a_file_configure_the_same(tmp_path):
    config = {"version": 1, "loggers": {"staging": {"level": "ERROR"}}}
    for given in (config, tmp_path / "logging.json", str(tmp_path / "logging.json")):
        (tmp_path / "logging.json").write_text(json.dumps(config))
        logging.getLogger("staging").setLevel(logging.NOTSET)
        configure_logging(given)
        assert logging.getLogger("staging").level == logging.ERROR
    configure_logging(config)
    filters = logging.getLogger("uvicorn.access").filters
    assert sum(isinstance(known, RedactQueries) for known in filters) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "logging_config: dictionary doesn't specify a version"),
        ('{"version": 1, "handlers": {"h": {"class": "no.Such"}}}', "logging_config: "),
    ],
)
@pytest.mark.usefixtures("restored_logging")
def test_a_configuration_that_cannot_be_used_is_an_error_that_names_it(
    tmp_path, content, complaint
):
    path = tmp_path / "logging.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError) as error:
        configure_logging(str(path))
    assert complaint in str(error.value)
