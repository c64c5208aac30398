"""A CombineFn written for Beam, with retraction added in a subclass."""

from foldflight import udaf


class AverageFn:  # where Beam is installed: AverageFn(beam.CombineFn)
    def create_accumulator(self):
        return 0.0, 0

    def add_input(self, accumulator, element):
        total, count = accumulator
        return total + element, count + 1

    def merge_accumulators(self, accumulators):
        totals, counts = zip(*accumulators, strict=True)
        return sum(totals), sum(counts)

    def extract_output(self, accumulator):
        total, count = accumulator
        return total / count if count else None


@udaf(input_types=["BIGINT"], result_type="DOUBLE", skip_nulls=True)
class Average(AverageFn):
    """The average, also of rows that change."""

    def retract(self, accumulator, element):
        total, count = accumulator
        return total - element, count - 1
