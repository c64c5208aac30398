"""The tests of the function. They need neither Spark nor a server."""

from weighted_avg import WeightedAvg

from foldflight import connect
from foldflight.testing import check_laws, run_epochs

weighted_avg = connect(WeightedAvg)["weighted_avg"]


def test_each_value_counts_by_its_weight():
    (epoch,) = run_epochs(
        {"price": weighted_avg("price", "quantity")},
        keys=["customer"],
        epochs=[[{"customer": "ann", "price": 10, "quantity": 1}, {"customer": "ann", "price": 40, "quantity": 2}]],
    )
    assert epoch.changelog == [("+I", {"customer": "ann", "price": 30})]


def test_an_update_replaces_the_row_before_it():
    _, epoch = run_epochs(
        {"price": weighted_avg("price", "quantity")},
        keys=["customer"],
        epochs=[
            [("+I", {"customer": "ann", "price": 10, "quantity": 1})],
            [
                ("-U", {"customer": "ann", "price": 10, "quantity": 1}),
                ("+U", {"customer": "ann", "price": 40, "quantity": 1}),
            ],
        ],
    )
    assert epoch.changelog == [("-U", {"customer": "ann", "price": 10}), ("+U", {"customer": "ann", "price": 40})]


def test_the_laws_hold():
    assert [law for law in check_laws(WeightedAvg, examples=20) if law.passed is False] == []
