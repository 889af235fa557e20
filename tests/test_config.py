from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ncclmon.config import MODES, OPTIONS, Settings, load_site, parse_options
from slurm_ncclmon.errors import OptionError


def test_nothing_gives_the_defaults() -> None:
    assert parse_options("", Settings()) == Settings()
    assert Settings().mode == "observe"


def test_mode_and_keys_change_only_what_they_name() -> None:
    settings = parse_options("cancel,confirm=15s,interval=2s", Settings(dir="/reports"))
    assert (settings.mode, settings.confirm, settings.interval, settings.dir) == ("cancel", 15, 2, "/reports")
    assert settings.suspect == Settings().suspect


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill", "neither a mode (off, observe, cancel, requeue) nor key=value"),
        ("confirm=5m,cancel", "'cancel' is neither a mode"),
        ("cancel,confim=5m", "did you mean confirm?"),
        ("confirm=soon", "confirm: 'soon' is not a duration (write 15s, 5m or 1h)"),
        ("confirm=0s", "confirm: '0s' must be more than nothing"),
        ("probe=maybe", "probe: 'maybe' is not one of on, off, auto"),
        ("dir=", "dir: needs a value"),
    ],
)
def test_a_wrong_word_is_named_with_what_would_be_right(text: str, words: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_options(text, Settings())
    assert words in str(error.value)


@given(st.sampled_from(MODES), st.lists(st.sampled_from([key for key in OPTIONS if key != "dir"]), unique=True))
def test_every_mode_goes_with_every_key(mode: str, keys: list[str]) -> None:
    values = {"probe": "on", "stacks": "off", "keep": "findings", "ras": "off"}
    text = ",".join([mode, *(f"{key}={values.get(key, '7s')}" for key in keys)])
    settings = parse_options(text, Settings())
    assert settings.mode == mode
    assert all(getattr(settings, key) in (7.0, values.get(key)) for key in keys)


@given(st.text())
def test_any_text_is_settings_or_an_option_error(text: str) -> None:
    with contextlib.suppress(OptionError):
        parse_options(text, Settings())


def test_site_file_gives_defaults_and_phases(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('mode = "cancel"\nconfirm = "10m"\nsuspect = 90\n[phases]\n"write_shard" = "saving"\n')
    settings = load_site(path)
    assert (settings.mode, settings.confirm, settings.suspect) == ("cancel", 600, 90)
    assert settings.phases == (("write_shard", "saving"),)
    assert parse_options("observe", settings).mode == "observe"


def test_no_site_file_is_no_error(tmp_path: Path) -> None:
    assert load_site(tmp_path / "none.toml") == Settings()


@pytest.mark.parametrize("content", ["confirm = ", 'confirm = "x"', 'conform = "5m"', "phases = 3", "\x00"])
def test_a_wrong_site_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(OptionError, match=r"config\.toml"):
        load_site(path)


def test_short_confirm_makes_all_of_it_faster() -> None:
    scaled = parse_options("confirm=15s,interval=2s", Settings()).scaled()
    assert scaled.suspect < scaled.confirm
    assert max(scaled.dead, scaled.exited) <= scaled.confirm
    assert Settings().scaled() == Settings()
