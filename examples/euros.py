"""Amounts in several currencies: the rates of all groups of a bundle are looked up at once."""

from decimal import Decimal

from foldflight import Applied, Segment, udaf

_RATES = {"EUR": Decimal(1), "USD": Decimal("0.9"), "GBP": Decimal("1.2")}


def look_up(currencies: set[str]) -> dict[str, Decimal]:
    """Return the rates of some currencies. In practice this is one request to a service."""
    return {currency: _RATES.get(currency, Decimal(0)) for currency in currencies}


@udaf(
    input_types=["DECIMAL(12,2)", "STRING"],
    result_type="DECIMAL(20,2)",
    state_type="DECIMAL(38,3)",
    skip_nulls=True,
    bundled_retract=True,
    bundled_merge=True,
    invertible=True,
)
class TotalInEuros:
    """Add up amounts in euros. Amounts in unknown currencies are left out."""

    def fold_bundle(self, segments: list[Segment[Decimal]]) -> list[Applied[Decimal, Decimal]]:
        rates = look_up({currency for segment in segments for _, currency in segment.rows})
        return [self.applied(segment, rates) for segment in segments]

    def applied(self, segment, rates):
        """Fold one group."""
        total = sum(segment.accumulators, Decimal(0))
        values = []
        for (amount, currency), sign in zip(segment.rows, segment.signs, strict=True):
            total += sign * amount * rates[currency]
            values.append(round(total, 2))
        return Applied(total, round(total, 2), values)
