"""The recipe of summaries by a model, against one that counts and fails."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from examples import summary_by_model
from examples.summary_by_model import SummaryByModel, tokens_of
from foldflight import FunctionError, connect
from foldflight.client import Functions
from foldflight.testing import run_epochs


def functions() -> Functions:
    return connect(SummaryByModel)


@pytest.mark.parametrize("budget", [12, 40])
def test_the_sample_depends_neither_on_order_nor_on_merges(budget: int) -> None:
    """Any split of the texts, in any order, keeps the same texts, which fit into the budget; some are equal."""
    chance = random.Random(7)
    fold = SummaryByModel(budget=budget, prompt=20)
    for _ in range(200):
        texts = ["word " * chance.randrange(9) + str(chance.randrange(9)) for _ in range(chance.randrange(1, 12))]
        samples = []
        for _ in range(6):
            chance.shuffle(texts)
            parts = [fold.create_accumulator() for _ in range(chance.randrange(1, 4))]
            for text in texts:
                fold.accumulate(chance.choice(parts), text)
            for part in parts[1:]:
                fold.merge(parts[0], part)
            samples.append(parts[0])
        assert all(sample == samples[0] for sample in samples)
        assert samples[0].count == len(texts)
        assert 0 < sum(map(tokens_of, samples[0].kept)) <= budget


def test_a_long_text_is_cut(model) -> None:
    """A text that is longer than the whole budget is summarised, too; once it ended the sample before it began."""
    rows = [{"key": "a", "text": "long " * 1000}]
    summary = functions()["summary_by_model"]("text", budget=30, prompt=40)
    (epoch,) = run_epochs({"s": summary}, keys=["key"], epochs=[rows])
    assert epoch.changelog[0][1]["s"].startswith("LONG")


def test_only_groups_that_changed_are_summarised(model) -> None:
    """The first epoch asks for each group, the second for the one that changed."""
    rows = [{"key": key, "text": f"{key}{number}"} for key in "ab" for number in range(3)]
    first, second = run_epochs(
        {"s": functions()["summary_by_model"]("text")}, keys=["key"], epochs=[rows, [{"key": "a", "text": "more"}]]
    )
    assert {row["key"] for _, row in first.changelog} == {"a", "b"}
    assert [(kind, row["key"]) for kind, row in second.changelog] == [("-U", "a"), ("+U", "a")]
    assert "MORE" in second.changelog[1][1]["s"]
    assert sum(model.asked.values()) == 3


def test_many_texts_are_a_tree_of_prompts(model) -> None:
    """No prompt exceeds its bound, and the answers of one level are the texts of the next, down to one."""
    summary = functions()["summary_by_model"]("text", budget=400, prompt=40)
    rows = [{"key": "a", "text": f"text number {number}"} for number in range(100)]
    (epoch,) = run_epochs({"s": summary}, keys=["key"], epochs=[rows])
    assert len(model.asked) > 5
    assert max(map(tokens_of, model.asked)) <= 40 + 10
    assert epoch.changelog[0][1]["s"] is not None


def test_a_model_that_fails_is_asked_again(model) -> None:
    """429, 500 and lost connections pass; a model that stays away fails the epoch, with the group."""
    model.behave = lambda prompt, before: (429, 500, "close", "ok")[min(before, 3)]
    (epoch,) = run_epochs(
        {"s": functions()["summary_by_model"]("text")}, keys=["key"], epochs=[[{"key": "a", "text": "x"}]]
    )
    assert epoch.changelog == [("+I", {"key": "a", "s": "X"})]
    model.behave = lambda prompt, before: 400
    with pytest.raises(FunctionError, match="the model answered 400") as excinfo:
        run_epochs({"s": functions()["summary_by_model"]("text")}, keys=["key"], epochs=[[{"key": "b", "text": "x"}]])
    assert excinfo.value.group == {"key": "b"}


def test_a_failed_prompt_does_not_ask_the_whole_tree_again(model) -> None:
    """Each prompt of large trees fails once, and is asked twice; no more than the bound are open at once."""
    open_at_once = []

    def behave(prompt: str, before: int) -> Any:
        with model.lock:
            open_at_once.append(sum(model.asked.values()) - sum(model.answered.values()) - failure_counts[0])
            failure_counts[0] += not before
        return 503 if not before else "ok"

    failure_counts = [0]
    model.behave = behave
    summary = functions()["summary_by_model"]("text", budget=800, prompt=40)
    rows = [{"key": key, "text": f"text number {number} of {key}"} for number in range(100) for key in "abc"]
    (epoch,) = run_epochs({"s": summary}, keys=["key"], epochs=[rows])
    assert len(epoch.changelog) == 3
    assert len(model.asked) > 60
    assert all(count == len(model.ids[prompt]) + 1 for prompt, count in model.asked.items())
    assert max(open_at_once) <= 2 * summary_by_model.PROMPTS_OPEN_MAX


def test_no_texts_are_null(model) -> None:
    """A group of NULLs asks nothing."""
    (epoch,) = run_epochs(
        {"s": functions()["summary_by_model"]("text")},
        keys=["key"],
        epochs=[[{"key": "a", "text": None}]],
        types={"text": pa.string()},
    )
    assert epoch.changelog == [("+I", {"key": "a", "s": None})]
    assert not model.asked
    assert summary_by_model.__doc__
