"""The demo: its proof can fail, it leaves nothing behind, and run for real it holds."""

import json
import pathlib
import subprocess
import sys

import pytest

from orbax_gds.demo import DemoFailed, crash, main, story
from orbax_gds.demo.job import Job, Life
from orbax_gds.errors import Unsupported


def killed_at_15() -> crash.Killed:
    life = Life(losses={9: 2.5, 10: 2.25, 11: 2.125}, sha256={5: "five", 10: "ten", 15: "fifteen"})
    return crash.Killed(step=15, stripe_bytes=4096, committed=(5, 10), life=life)


def resumed_at(step: int, sha256: str, losses: dict[int, float] | None = None) -> Life:
    return Life(resumed_step=step, resumed_sha256=sha256, losses=losses or {11: 2.125})


def test_the_proof_holds_when_the_newest_committed_bits_were_resumed():
    judgement = crash.judge(killed_at_15(), resumed_at(10, "ten"))
    assert judgement.identical
    assert judgement.steps_again == (11,)
    assert judgement.same_losses


@pytest.mark.parametrize(
    "resumed",
    [
        resumed_at(10, "other bits"),
        resumed_at(5, "five"),  # right bits of an older step: a committed step was lost
        resumed_at(15, "fifteen"),  # the step whose save was cut short
        Life(losses={1: 5.5}),  # began anew
    ],
    ids=["other bits", "older step", "killed step", "nothing"],
)
def test_the_proof_fails_when_anything_else_was_resumed(resumed: Life):
    assert not crash.judge(killed_at_15(), resumed).identical


def test_the_proof_fails_when_nothing_was_committed_and_nothing_resumed():
    killed = crash.Killed(step=15, stripe_bytes=1, committed=(), life=Life())
    assert not crash.judge(killed, Life(losses={1: 5.5})).identical


def test_other_losses_are_told():
    assert not crash.judge(killed_at_15(), resumed_at(10, "ten", {11: 2.0})).same_losses


def test_only_an_uncommitted_step_with_bytes_in_a_stripe_is_mid_save(tmp_path: pathlib.Path):
    assert crash.stripe_bytes(tmp_path, 15) == 0
    item = tmp_path / "15.orbax-checkpoint-tmp" / "default.orbax-checkpoint-tmp"
    item.mkdir(parents=True)
    assert crash.stripe_bytes(tmp_path, 15) == 0
    (item / "p00000.ogds").write_bytes(b"frame")
    assert crash.stripe_bytes(tmp_path, 15) == 5
    item.parent.rename(tmp_path / "15")
    assert crash.stripe_bytes(tmp_path, 15) == 0
    assert crash.committed_steps(tmp_path) == (15,)


def result(*, identical: bool) -> story.Result:
    row = {"blocking_secs": 0.01, "durable_secs": 0.2, "cpu_secs": 0.1, "restore_secs": 0.1}
    return {
        "identical": identical,
        "committed_step": 10,
        "resumed_step": 10,
        "sha256_saved": "ten",
        "sha256_resumed": "ten" if identical else "other",
        "steps_again": (11, 12),
        "same_losses": True,
        "killed_step": 15,
        "killed_stripe_bytes": 3 << 20,
        "state_bytes": 43 << 20,
        "raw_write_secs": 0.1,
        "report": "committed once",
        "rows": [{"name": name, "disk_bytes": 31 << 20, **row} for name in ("ours", "theirs")],
        "seconds": 61.0,
    }


@pytest.mark.parametrize(("identical", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_the_proof(
    identical: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    used: list[pathlib.Path] = []

    def run(directory: pathlib.Path, **_: object) -> story.Result:
        used.append(directory)
        (directory / "training").mkdir()
        return result(identical=identical)

    monkeypatch.setattr(story, "run", run)
    assert main() == code
    text = capsys.readouterr().out
    assert ("PROVEN" in text) is identical
    assert ("FAILED" in text) is not identical
    assert main(as_json=True) == code
    assert json.loads(capsys.readouterr().out)["identical"] is identical
    assert not any(directory.exists() for directory in used)


def test_a_directory_to_keep_is_kept_and_must_be_empty(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def run(directory: pathlib.Path, **_: object) -> story.Result:
        (directory / "training").mkdir()
        return result(identical=True)

    monkeypatch.setattr(story, "run", run)
    kept = tmp_path / "new" / "kept"
    assert main(keep=kept, as_json=True) == 0
    assert (kept / "training").is_dir()
    with pytest.raises(Unsupported, match=r"is not empty\. Name a new or an empty directory"):
        main(keep=kept)


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(story.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"needs flax and optax\. Run: pip install 'orbax-gds"):
        main()


@pytest.mark.slow
def test_a_job_that_fails_is_reported_with_its_log(tmp_path: pathlib.Path):
    (tmp_path / "steps" / "3").mkdir(parents=True)
    with pytest.raises(DemoFailed, match=r"ended with code 1, but it was to train to step 4") as e:
        crash.resume(tmp_path / "steps", until=4, every=4)
    assert "Traceback" in str(e.value)


@pytest.mark.slow
def test_a_job_is_ended_with_its_context(tmp_path: pathlib.Path):
    with Job(tmp_path / "steps", until=1000, every=1000) as job:
        job.freeze()
    assert "ended with code -9, but it was told to" in str(job.failure("it was told to"))


@pytest.mark.slow
def test_digest_changes_with_a_single_bit():
    import jax
    import jax.numpy as jnp

    from orbax_gds.demo import model

    state = {"w": jnp.zeros(1000, jnp.bfloat16), "key": jax.random.key(0)}
    one_bit = {**state, "w": state["w"].at[999].set(-0.0)}
    other_key = {**state, "key": jax.random.key(1)}
    digests = {model.digest(tree) for tree in (state, one_bit, other_key)}
    assert len(digests) == 3
    assert model.digest(dict(state)) in digests


@pytest.mark.slow
def test_demo_killed_in_a_save_resumes_with_identical_bits(tmp_path: pathlib.Path):
    command = [sys.executable, "-P", "-m", "orbax_gds", "demo", "--json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["identical"]
    assert found["sha256_saved"] == found["sha256_resumed"]
    assert found["killed_step"] > found["committed_step"] == found["resumed_step"]
    assert 0 < found["killed_stripe_bytes"] < found["state_bytes"]
    ours, plain = found["rows"]
    assert (ours["name"], plain["name"]) == ("orbax_gds", "plain Orbax")
    assert ours["disk_bytes"] < plain["disk_bytes"] < found["state_bytes"]
    assert found["report"].startswith("committed once: ")
    assert all(row["blocking_secs"] < row["durable_secs"] for row in found["rows"])
    assert not list(tmp_path.iterdir())
