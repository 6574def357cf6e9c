"""`ductile apply`: one command puts a changed configuration in force."""

from __future__ import annotations

from pathlib import Path

from builders.daemons import a_daemon, a_place


def test_apply_shows_seals_and_reloads(tmp_path: Path) -> None:
    """Also a change of the high tier, which a reload alone refuses. A dry run changes nothing."""
    place = a_place(tmp_path)
    assert place.ductile("config", "lock").status == 0
    with a_daemon(place) as daemon:
        before = (place.config.parent / ".checksums").read_bytes()
        place.append("  again: {uses: echo}\ntokens: [{name: spare, key: hunter2}]\n")
        assert place.ductile("reload").status == 78
        dry = place.ductile("apply", "--dry-run")
        assert dry.status == 0, dry
        assert "+ plugins.again.uses: echo" in dry.out
        assert "+ tokens[spare].key: ********" in dry.out
        assert "hunter2" not in dry.out
        assert "added: again" in dry.out
        assert (place.config.parent / ".checksums").read_bytes() == before
        done = place.said("apply")
        assert (done["sealed"], done["daemon"], done["reload"]["added"]) == (True, True, ["again"])
        loaded = daemon.wait_for("config.loaded", lambda line: line.get("origin") == "reload")
        assert loaded["fingerprint"] == done["reload"]["config"]
        assert place.said("run", "again")["status"] == "succeeded"
        same = place.ductile("apply")
        assert "The files are as sealed." in same.out


def test_apply_without_a_daemon_checks_and_seals(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    done = place.ductile("apply")
    assert done.status == 0, done
    assert "No daemon is running" in done.out
    place.append("  echo2: {uses: echo}\n")
    assert place.said("apply")["files"][0]["differences"] == ["+ plugins.echo2.uses: echo"]
    place.config.write_text(place.config.read_text() + "tokens: [{name: spare, key: hunter2}]\n")
    assert place.said("apply")["sealed"] is True
    place.config.write_text(place.config.read_text().replace("spare", "other"))
    assert place.said("apply")["sealed"] is True
    place.append("servise: {}\n")
    assert place.ductile("apply").status == 78


def test_a_refused_reload_seals_nothing_that_cannot_be_loaded(tmp_path: Path) -> None:
    """What a reload cannot change is refused before the seal is renewed."""
    place = a_place(tmp_path)
    assert place.ductile("config", "lock").status == 0
    with a_daemon(place):
        before = (place.config.parent / ".checksums").read_bytes()
        place.append("state: {path: ./data/other.db}\n")
        ran = place.ductile("apply")
        assert ran.status == 1
        assert "a reload cannot change state" in ran.err
        assert (place.config.parent / ".checksums").read_bytes() == before
