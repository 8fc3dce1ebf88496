"""``workbench history``: a folder of sessions as a table and a chart."""

import json

from session_files import save_one

from workbench.cli import main


def test_a_folder_is_a_table_and_a_chart(tmp_path, capsys):
    for name in ("a", "b"):
        save_one(tmp_path / f"{name}.h5")
    (tmp_path / "c.h5").write_text("no session")
    (tmp_path / "d.h5").symlink_to(tmp_path / "removed.h5")
    assert main(["history", str(tmp_path), "--json", "-o", str(tmp_path / "h.svg")]) == 0
    printed = capsys.readouterr()
    assert [row[0] for row in json.loads(printed.out)["rows"]] == ["a", "b"]
    assert "left out" in printed.err and "<svg" in (tmp_path / "h.svg").read_text()
    assert main(["history", str(tmp_path), "-o", str(tmp_path / "h.md")]) == 0
    assert "Step time over commits" in (tmp_path / "h.md").read_text()


def test_a_folder_without_sessions_is_a_mistake(tmp_path, capsys):
    assert main(["history", str(tmp_path)]) == 2
    assert "no session with steady steps" in capsys.readouterr().err
