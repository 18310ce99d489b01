from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import jsonschema
import pytest
from synthetic_reports import make_report

from macspec.bench import export, schema
from macspec.bench.document import FORMAT, Report, dumps, loads, read
from macspec.errors import RequestError

REPORT = make_report({"plain": 40.0, "depth 3": 80.0, "mlx_lm": 39.0})


def test_json_round_trip() -> None:
    assert loads(dumps(REPORT), "x") == REPORT


def test_json_fits_the_published_schema() -> None:
    published = json.loads(schema.FILE.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(json.loads(dumps(REPORT)), published)
    wrong = json.loads(dumps(REPORT))
    wrong["results"][0]["tok_per_s"] = "fast"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, published)


def test_published_schema_is_that_of_the_types() -> None:
    assert json.loads(schema.FILE.read_text("utf-8")) == schema.schema()


def test_promised_keys_are_there() -> None:
    values = json.loads(dumps(REPORT))
    promised = {"arm", "category", "tok_per_s", "ratio_to_plain", "acceptance_length", "identical", "prompts"}
    assert all(promised <= set(row) for row in values["results"])
    assert {"machine", "pair", "versions"} <= set(values)
    assert {(r["arm"], r["category"]) for r in values["results"]} >= {("depth 3", "all"), ("plain", "chat")}
    assert values["samples"][0]["rounds"][0]["verify_ms"] == 5.0
    keys = set(values["results"][0]["spec_decode"])
    assert {"num_drafts", "draft_tokens", "accepted_tokens", "per_position_acceptance_rates"} <= keys


def test_csv_agrees_with_json() -> None:
    rows = list(csv.DictReader(io.StringIO(export.to_csv(REPORT))))
    assert len(rows) == len(REPORT.results)
    for line, row in zip(rows, REPORT.results, strict=True):
        assert (line["id"], line["arm"], line["category"]) == (REPORT.id, row.arm, row.category)
        assert float(line["tok_per_s"]) == row.tok_per_s
        assert float(line["ratio_to_plain"]) == row.ratio_to_plain
        assert line["identical"] == "true"


def test_id_depends_on_content() -> None:
    other = make_report({"plain": 40.0, "depth 3": 80.0, "mlx_lm": 39.0}, seed=1)
    assert len(REPORT.id) == 12 and other.id != REPORT.id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"format": "macspec-bench/99"}',
        json.dumps({"format": FORMAT, "surprise": 1}),
        json.dumps({"format": FORMAT, "results": 3}),
        json.dumps({"format": FORMAT, "results": [{"arm": "x"}]}),
        json.dumps({"format": FORMAT, "samples": [[]]}),
        "[" * 50000,
    ],
)
def test_rubbish_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="here.json"):
        loads(text, "here.json")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read(tmp_path / "none.json")


def test_no_nan_can_be_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(dataclasses.replace(REPORT, elapsed_s=math.nan))


def test_write_replaces_as_a_whole_and_a_full_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.json"
    export.write(file, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(export.WriteError, match="the disk is full"):
        export.write(file, "new")
    assert file.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_device_full() -> None:
    with pytest.raises(export.WriteError, match="the disk is full"):
        export.write(Path("/dev/full"), "x" * 100)


def test_a_result_that_cannot_be_delivered_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "last_file", lambda: tmp_path / "state" / "last.json")
    kept = export.keep(REPORT)
    assert kept == tmp_path / "state" / "last.json" and read(kept) == REPORT
    with pytest.raises(export.WriteError, match="kept in .*last.json"):
        export.deliver(REPORT, "text", tmp_path / "no" / "x.json", kept)


def test_keep_falls_back_to_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setattr(export, "last_file", lambda: blocker / "last.json")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = export.keep(REPORT)
    assert kept == tmp_path / f"macspec-bench-{REPORT.id}.json"


def test_paths_are_checked_before_measuring(tmp_path: Path) -> None:
    export.check_writable(tmp_path / "fine.json")
    with pytest.raises(RequestError, match="no folder"):
        export.check_writable(tmp_path / "none" / "x.json")
    with pytest.raises(RequestError, match="is a folder"):
        export.check_writable(tmp_path)


def test_a_report_without_anything_is_still_a_report() -> None:
    assert loads(dumps(Report()), "x") == Report()
