"""Figures in words, charts, settings, history, export, themes, runs, context."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from macspec.errors import RequestError
from macspec.request import Finished, GenerationStats, Round, Started, Text, TokenInfo, ToolCall
from macspec.worker.protocol import LoadProgress
from macspec.worker.scripted import DEFAULT_INFO, ScriptedClient
from macspec_tui import export, figures, themes
from macspec_tui.context import ContextUse, measure
from macspec_tui.conversation import Conversation, Message
from macspec_tui.draft import AnswerDraft
from macspec_tui.history import PromptHistory
from macspec_tui.runs import RunRecorder
from macspec_tui.settings import ChatSettings
from macspec_tui.widgets.activity import meter
from macspec_tui.widgets.charts import bars, ladder
from macspec_tui.widgets.status_line import join_fitting


class TestFigures:
    @pytest.mark.parametrize(("count", "text"), [(0, "0"), (950, "950"), (3100, "3.1k"), (128_000, "128k")])
    def test_tokens(self, count: int, text: str) -> None:
        assert figures.tokens(count) == text

    @pytest.mark.parametrize(("count", "text"), [(12, "12 B"), (4_600_000_000, "4.6 GB"), (310_000_000, "310 MB")])
    def test_sizes(self, count: int, text: str) -> None:
        assert figures.size(count) == text

    @pytest.mark.parametrize(("value", "text"), [(0.81, "0.8 s"), (12.2, "12 s"), (125.0, "2 min 5 s")])
    def test_seconds(self, value: float, text: str) -> None:
        assert figures.seconds(value) == text

    def test_a_summary_names_plain_decoding(self) -> None:
        stats = GenerationStats(generation_tokens=9, generation_tps=3.0, rounds=9, parked_rounds=9)
        assert figures.summary(stats) == "9 tokens at 3.0 tok/s · plain decoding"

    def test_one_is_not_many(self) -> None:
        assert figures.counted(1, "answer") == "1 answer" and figures.counted(0, "answer") == "0 answers"

    def test_loading_says_how_large(self) -> None:
        assert figures.progress(LoadProgress("download", 500_000_000, 2_000_000_000)) == (
            "download: 500 MB of 2.0 GB (25 %)"
        )
        assert figures.progress(LoadProgress("weights", 1, 4)) == "weights: 25 %"
        assert figures.progress(LoadProgress("warming up")) == "warming up"


class TestCharts:
    def test_bars_show_the_last_values_and_zero_as_a_dot(self) -> None:
        assert bars([9, 0, 4, 8], 3) == "·▅█"
        assert bars([], 5) == ""

    def test_the_present_row_count_is_marked(self) -> None:
        chart = ladder([10.0, 10.0, 20.0, 20.0], 3, 20, 2)
        assert chart == ["    █ █ ", "█ █ █ █ ", "    ▲"]

    def test_a_ladder_wider_than_its_place_is_thinned(self) -> None:
        chart = ladder([float(n) for n in range(1, 65)], 64, 20, 3)
        assert all(len(line) <= 20 for line in chart)

    def test_no_ladder_no_chart(self) -> None:
        assert ladder([], 1, 20, 3) == []

    @pytest.mark.parametrize(("share", "text"), [(-1.0, "░░░░"), (0.5, "██░░"), (7.0, "████")])
    def test_a_meter_stays_in_its_place(self, share: float, text: str) -> None:
        assert meter(share, 4) == text


class TestFitting:
    def test_whole_parts_only(self) -> None:
        assert join_fitting(["model", "12 tok/s", "x"], 12, " · ") == "model · x"

    def test_wide_characters_count_double(self) -> None:
        assert join_fitting(["日本", "ab"], 6, " ") == "日本"

    def test_a_first_part_that_is_too_long_is_shortened(self) -> None:
        assert join_fitting(["abcdefgh"], 5, " ") == "abcd…"


class TestSettings:
    def test_every_sampling_parameter_can_be_set(self) -> None:
        settings = ChatSettings()
        for name, value in (("temperature", "0.7"), ("top-k", "40"), ("seed", "7"), ("stop", "END"), ("depth", "4")):
            settings = settings.set(name, value)
        sampling = settings.base.sampling
        assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.stop) == (0.7, 40, 7, ("END",))
        assert settings.base.depth == "4"

    @pytest.mark.parametrize(
        ("name", "value"), [("temperature", "hot"), ("top_p", "2"), ("depth", "deep"), ("nope", "1"), ("n", "2")]
    )
    def test_a_wrong_value_is_refused_and_changes_nothing(self, name: str, value: str) -> None:
        settings = ChatSettings()
        with pytest.raises(RequestError):
            settings.set(name, value)
        assert settings.shown() == ChatSettings().shown()

    def test_a_wrong_name_is_told_the_names_that_a_chat_takes(self) -> None:
        with pytest.raises(RequestError, match="no setting 'nope'.*top_p.*depth") as told:
            ChatSettings().set("nope", "1")
        assert "logprobs" not in str(told.value)

    def test_every_request_has_its_own_id(self) -> None:
        conversation = Conversation()
        conversation.say("x")
        settings = ChatSettings()
        assert settings.request(conversation).id != settings.request(conversation).id

    def test_a_depth_set_for_another_model_is_no_obstacle_without_a_drafter(self) -> None:
        conversation = Conversation()
        conversation.say("x")
        alone = replace(DEFAULT_INFO, drafter=None, drafter_reason="nobody trained one")
        for depth, info, asked in (("3", DEFAULT_INFO, "3"), ("3", alone, "auto"), ("0", alone, "0"), ("3", None, "3")):
            assert ChatSettings().set("depth", depth).request(conversation, info).depth == asked

    def test_an_empty_conversation_is_no_request(self) -> None:
        with pytest.raises(RequestError, match="empty"):
            ChatSettings().request(Conversation())

    def test_what_can_be_set_is_shown(self) -> None:
        shown = dict(ChatSettings().shown())
        assert shown["temperature"] == "0.0" and shown["depth"] == "auto" and "n" not in shown
        assert shown["coupled"] == shown["thinking"] == "auto" and shown["grammar"] == "none"
        assert {"json_schema", "temperature", "depth"} <= {name for name, _ in ChatSettings().known()}


class TestHistory:
    def test_it_is_kept_private_and_comes_back(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        history = PromptHistory(path)
        for text in ("one", "two\nlines", "two\nlines", " "):
            history.add(text)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert PromptHistory(path).entries == ["one", "two\nlines"]

    def test_damage_costs_a_line(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        path.write_bytes(b'"one"\n{broken\n3\n"two"\n')
        assert PromptHistory(path).entries == ["one", "two"]

    def test_a_long_history_is_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        path.write_text("".join(f'"{n}"\n' for n in range(2500)))
        assert len(PromptHistory(path).entries) == 1000
        assert len(path.read_text().splitlines()) == 1000

    def test_a_file_that_cannot_be_written_costs_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "h").mkdir()
        history = PromptHistory(tmp_path / "h")
        history.add("x")
        assert history.entries == ["x"]

    def test_search_is_newest_first_without_repeats(self, tmp_path: Path) -> None:
        history = PromptHistory(tmp_path / "h")
        for text in ("rain haiku", "tides", "sun haiku", "rain haiku"):
            history.add(text)
        assert history.search("HAIKU") == ["rain haiku", "sun haiku"]


class TestExport:
    def _conversation(self) -> Conversation:
        conversation = Conversation("Be brief.")
        said = conversation.say("Add")
        conversation.add(Message("assistant", "```\n1+1\n```", parent=said.id, thinking="hm\nhm", reason="length"))
        return conversation

    def test_markdown_has_the_source_text(self) -> None:
        text = export.as_markdown(self._conversation())
        assert "```\n1+1\n```" in text and "> hm\n> hm" in text and "## System" in text and "cut off" in text

    def test_json_has_everything(self) -> None:
        values = json.loads(export.as_json(self._conversation()))
        assert [m["role"] for m in values["messages"]] == ["user", "assistant"]

    def test_a_file_is_never_replaced(self, tmp_path: Path) -> None:
        target = tmp_path / "x.md"
        assert export.export(self._conversation(), "md", str(target), "n") == target.resolve()
        with pytest.raises(RequestError, match="exists already"):
            export.export(self._conversation(), "md", str(target), "n")

    @pytest.mark.parametrize("kind", ["pdf", ""])
    def test_other_formats_are_refused(self, kind: str) -> None:
        with pytest.raises(RequestError, match="/export md"):
            export.export(self._conversation(), kind, "", "n")

    def test_nothing_to_export_and_nowhere_to_write(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match="nothing"):
            export.export(Conversation(), "md", "", "n")
        with pytest.raises(RequestError, match="cannot be written"):
            export.export(self._conversation(), "md", str(tmp_path / "no" / "x"), "n")


class TestThemes:
    @pytest.mark.parametrize(
        ("environ", "theme"),
        [
            ({"COLORTERM": "truecolor", "TERM": "xterm-256color"}, "dark"),
            ({"TERM": "xterm-256color"}, "dark"),
            ({"TERM": "xterm-256color", "COLORFGBG": "0;15"}, "light"),
            ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "ansi"),
            ({"TERM": "xterm-256color", "NO_COLOR": "", "COLORFGBG": "0;15"}, "ansi-light"),
            ({"TERM": "xterm"}, "ansi"),
            ({"TERM": "linux"}, "ansi"),
            ({"TERM": "rxvt-16color", "COLORTERM": "truecolor"}, "dark"),
        ],
    )
    def test_auto_follows_the_terminal(self, environ: dict[str, str], theme: str) -> None:
        assert themes.resolve("auto", environ) == themes.resolve(None, environ) == theme

    @pytest.mark.parametrize(("light", "theme"), [(True, "light"), (False, "dark"), (None, "light")])
    def test_what_the_terminal_says_counts_more_than_its_environment(self, light: bool | None, theme: str) -> None:
        environ = {"TERM": "xterm-256color", "COLORFGBG": "0;15"}
        assert themes.resolve("auto", environ, light=light) == theme

    @pytest.mark.parametrize(
        ("name", "environ", "asked"),
        [
            (None, {"TERM": "xterm-256color"}, True),
            ("auto", {"TERM": "tmux-256color"}, True),
            ("dark", {"TERM": "xterm-256color"}, False),
            (None, {"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
            (None, {"TERM": "dumb"}, False),
            (None, {"TERM": "linux"}, False),
        ],
    )
    def test_only_a_terminal_that_matters_is_asked(
        self, name: str | None, environ: dict[str, str], asked: bool
    ) -> None:
        assert themes.worth_asking(name, environ) is asked

    def test_a_named_theme_is_taken(self) -> None:
        assert themes.resolve("light", {"NO_COLOR": "1"}) == "light"


class TestRuns:
    def test_accepted_drafts_and_the_models_own_token(self) -> None:
        recorder = RunRecorder()
        recorder.take(Started())
        tokens = tuple(TokenInfo(id=n, text=text) for n, text in enumerate(("a", "b", "c")))
        recorder.take(Round(accepted=2, committed=3))
        recorder.take(Text(text="abc", tokens=tokens))
        recorder.take(Text(text="hm", section="thinking"))
        assert [(run.text, run.drafted) for run in recorder.runs] == [("ab", True), ("c", False)]

    def test_characters_that_straddle_tokens(self) -> None:
        recorder = RunRecorder()
        recorder.take(Round(accepted=2, committed=3))
        recorder.take(Text(text="日", tokens=tuple(TokenInfo(id=n, text="�") for n in range(3))))
        assert [(run.text, run.drafted) for run in recorder.runs] == [("日", True)]

    def test_a_replayed_answer_starts_again(self) -> None:
        recorder = RunRecorder()
        recorder.take(Text(text="x"))
        recorder.take(Started())
        assert recorder.runs == []


class TestDraft:
    def test_thinking_is_timed_by_the_engine_and_kept_apart(self) -> None:
        draft = AnswerDraft(None, "m")
        draft.take(Round(draft_ms=500, verify_ms=1400, other_ms=100))
        draft.take(Text(text="hm", section="thinking", tokens=(TokenInfo(id=1),)))
        draft.take(Round(verify_ms=1000))
        draft.take(Text(text="Yes."))
        draft.take(Round(verify_ms=9000))
        draft.take(Finished(reason="stop", stats=GenerationStats(thinking_tokens=1)))
        message = draft.message()
        assert (message.text, message.thinking, message.thinking_seconds) == ("Yes.", "hm", 3.0)

    def test_an_answer_without_thinking_took_no_time_to_think(self) -> None:
        draft = AnswerDraft(None, "m")
        draft.take(Round(verify_ms=1000))
        draft.take(Text(text="Yes."))
        assert draft.message().thinking_seconds == 0.0

    def test_a_tool_call_is_shown(self) -> None:
        draft = AnswerDraft(None, "m")
        draft.take(ToolCall(name="weather", arguments='{"city": "Rome"}'))
        assert 'weather({"city": "Rome"})' in draft.text


class TestContext:
    async def test_parts_add_up(self) -> None:
        client = ScriptedClient()
        conversation = Conversation("You are brief.")
        said = conversation.say("one two three")
        conversation.add(Message("assistant", "four", parent=said.id))
        use = await measure(client, ChatSettings(), conversation)
        assert (use.system, use.history, use.used) == (3, 4, 7)

    async def test_an_empty_conversation(self) -> None:
        assert (await measure(ScriptedClient(), ChatSettings(), Conversation())).used == 0

    def test_the_table_is_aligned(self) -> None:
        lines = ContextUse(100, 2000, 0).text(DEFAULT_INFO.max_context).split("\n")
        assert lines[1].startswith("system") and lines[-1].endswith("4,096")
        assert len({len(line) for line in lines[1:5]}) == 1
